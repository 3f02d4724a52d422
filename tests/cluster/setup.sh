#!/usr/bin/env bash
# Installs what tests/cluster needs, on Debian and Ubuntu, as root: real Slurm and real Open MPI. No service is started:
# tests/cluster/run.sh starts its own.
set -euo pipefail
# libpmix-dev: Slurm looks for libpmix.so by the name that only this package gives it.
wanted=(slurmctld slurmd slurm-client munge openmpi-bin libpmix-dev iproute2)
missing=()
for package in "${wanted[@]}"; do
  dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q '^install ok installed' || missing+=("$package")
done
[ ${#missing[@]} -gt 0 ] || exit 0
[ "$(id -u)" = 0 ] || { echo "setup.sh: ${missing[*]} are missing; run it as root" >&2; exit 1; }
apt-get update -qq
DEBIAN_FRONTEND=noninteractive RUNLEVEL=1 apt-get install -y -qq --no-install-recommends "${missing[@]}"
