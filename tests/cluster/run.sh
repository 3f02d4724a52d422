#!/usr/bin/env bash
# run.sh COMMAND …: runs a command, as root, on a cluster of two virtual nodes, n1 and n2, with real Slurm.
#
# The cluster runs in its own namespaces. Each node has its own host name and loopback interface, and one wire joins them; nothing
# outside reaches them. The process namespace ends with the command, and with it every process that was started here.
set -euo pipefail

if [ "${1:-}" != --inside ]; then
  [ $# -gt 0 ] || { echo "usage: run.sh COMMAND …" >&2; exit 2; }
  [ "$(id -u)" = 0 ] || { echo "run.sh: needs root, for namespaces" >&2; exit 1; }
  for program in slurmctld slurmd munged srun ip unshare nsenter; do
    command -v "$program" >/dev/null || { echo "run.sh: there is no $program; run tests/cluster/setup.sh" >&2; exit 1; }
  done
  folder=$(mktemp -d /tmp/cluster.XXXXXX)
  trap 'rm -rf "$folder"' EXIT
  status=0
  unshare --net --pid --uts --ipc --mount --fork --kill-child --mount-proc \
    bash "${BASH_SOURCE[0]}" --inside "$folder" "$@" || status=$?
  [ $status = 0 ] || tail -n 20 "$folder"/*.log >&2 || true
  exit $status
fi

folder=$2
shift 2
wait_until() { # COMMAND …: at most 20 s
  for _ in $(seq 200); do
    if "$@" 2>/dev/null; then return; fi
    sleep 0.1
  done
  echo "run.sh: this did not come true within 20 s: $*" >&2
  return 1
}

# ---- two nodes ----
hostname n1
ip link set lo up
unshare --net --uts --mount sleep infinity &
other=$!
apart() { [ "$(readlink /proc/$other/ns/mnt)" != "$(readlink /proc/self/ns/mnt)" ]; }
wait_until apart
on_n2() { nsenter --target $other --net --uts --mount "$@"; }
ip link add name v1 type veth peer name v2 netns $other
ip address add 10.213.0.1/24 dev v1
ip link set v1 up
on_n2 hostname n2
on_n2 ip link set lo up
on_n2 ip address add 10.213.0.2/24 dev v2
on_n2 ip link set v2 up
printf '127.0.0.1 localhost\n10.213.0.1 n1\n10.213.0.2 n2\n' >"$folder/hosts"
mount --bind "$folder/hosts" /etc/hosts
on_n2 mount --bind "$folder/hosts" /etc/hosts
on_n2 mount -t tmpfs none /dev/shm

# ---- Slurm on them ----
chmod 755 "$folder"
mkdir -p "$folder"/{munge,run,state} "$folder"/{spool,tmp}/{n1,n2}
chmod 700 "$folder/munge"
head -c 128 /dev/urandom >"$folder/munge/key"
chmod 400 "$folder/munge/key"
munged --force --key-file="$folder/munge/key" --socket="$folder/run/munge" --pid-file="$folder/munge/pid" \
  --log-file="$folder/munge/log" --seed-file="$folder/munge/seed"
cat >"$folder/slurm.conf" <<END
ClusterName=tests
SlurmctldHost=n1
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket=$folder/run/munge
StateSaveLocation=$folder/state
SlurmdSpoolDir=$folder/spool/%n
TmpFS=$folder/tmp/%n
SlurmctldPidFile=$folder/slurmctld.pid
SlurmdPidFile=$folder/%n.pid
SlurmctldLogFile=$folder/slurmctld.log
SlurmdLogFile=$folder/%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=sched_interval=2,batch_sched_delay=1,requeue_delay=1,bf_interval=2
SlurmdParameters=config_overrides
ReturnToService=2
MpiDefault=none
NodeName=n[1-2] CPUs=4 Sockets=1 CoresPerSocket=4 ThreadsPerCore=1 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
END
export SLURM_CONF="$folder/slurm.conf" SPARSESNN_CLUSTER=1
# MPICH over the wire: its UCX takes two nodes with one kernel for one host, and Slurm's pmi2 cuts its long addresses.
export MPIR_CVAR_CH4_NETMOD=ofi FI_PROVIDER=tcp
slurmctld
slurmd
on_n2 slurmd
idle() { [ "$(sinfo -h -t idle -o %D)" = 2 ]; }
wait_until idle
"$@"
