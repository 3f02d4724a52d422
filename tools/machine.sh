# shellcheck shell=bash disable=SC2154
# The caller sets venv, the folder of the virtual environment, and defines say and die.
# What ./dev needs of a machine: each check ends with one sentence, before anything is downloaded. `dev` reads this file.
# PYTHON chooses the interpreter of the virtual environment, CXX the compiler.

python=${PYTHON:-python3}

# The default build of PyTorch and the packages with CUDA that it requires: torch 2.14.1 for Python 3.11 on x86-64,
# measured 2026-11-29. The CPU build of torch 2.13.0 takes 0.2 and 0.7 GB.
cuda_download="3.0 GB" cuda_disk="5.4 GB" cpu_download="0.2 GB"
# Free space in MB: PyTorch with CUDA, while pip keeps the downloaded files too; and everything else, PyTorch's CPU build included.
cuda_space=9000 other_space=2500
cpu_index=https://download.pytorch.org/whl/cpu

check_machine() {
  check_python
  check_compiler
}

check_python() {
  command -v "$python" >/dev/null || die "$python is not installed; on Debian: apt-get install python3-dev python3-venv"
  "$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null || die "$(old_python)"
  "$python" -c 'import sys; sys.exit(sys.implementation.name != "cpython" or sys.maxsize < 2**32)' \
    || die "$python is not a 64-bit CPython, which PyTorch requires; name another one: PYTHON=/path/to/python3 ./dev ..."
  "$python" -c 'import ensurepip, venv' 2>/dev/null \
    || die "$python cannot make virtual environments; on Debian: apt-get install python3-venv"
  "$python" -c 'import os, sys, sysconfig
sys.exit(not os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h")))' \
    || die "the headers of $python (Python.h) are missing; on Debian: apt-get install python3-dev"
}

# The message about a Python that is too old names a newer one of this machine.
old_python() {
  local minor text
  text="$python is $("$python" --version 2>&1), sparsesnn needs Python 3.10 or newer"
  for minor in $(seq 30 -1 10); do
    if "python3.$minor" -c '' 2>/dev/null; then
      echo "$text; python3.$minor is here: PYTHON=python3.$minor ./dev ..."
      return
    fi
  done
  echo "$text; install one, and name it if it is not python3: PYTHON=/path/to/python3 ./dev ..."
}

check_compiler() {
  local compiler=${CXX:-}
  for compiler in "$compiler" c++ g++ clang++; do
    [ -z "$compiler" ] || ! command -v "${compiler%% *}" >/dev/null || break
    [ "$compiler" != clang++ ] || die "there is no C++ compiler (c++, g++ or clang++); on Debian: apt-get install g++"
  done
  # shellcheck disable=SC2086 # CXX may hold options
  printf '#include <bit>\n#include <concepts>\n#include <span>\nint main() {}\n' | $compiler -std=c++20 -fsyntax-only -x c++ - 2>/dev/null \
    || die "$compiler ($($compiler --version 2>&1 | head -n 1)) does not compile C++20; install GCC 12 or Clang 15, or newer, or name another compiler: CXX=g++-12 ./dev ..."
}

has_torch() { "$venv/bin/python" -c 'import importlib.util, sys; sys.exit(importlib.util.find_spec("torch") is None)' 2>/dev/null; }

has_gpu() { [ -e /dev/nvidiactl ] || command -v nvidia-smi >/dev/null; }

# check_space FOLDER MB WHY
check_space() {
  local free
  free=$(df -Pm "$1" | awk 'NR == 2 { print $4 }')
  [ "$free" -ge "$2" ] || die "$1 has $((free / 1024)) GB of free space, $3 needs $(($2 / 1000)) GB; ${4:-free some space}"
}

# Says how large PyTorch is before it is downloaded, and how to take the small build. WHERE is the option --torch.
announce_torch() {
  local where=$1
  if has_torch || [ -n "$where" ]; then
    check_space "$PWD" $other_space "the installation"
    return
  fi
  check_space "$PWD" $cuda_space "PyTorch with CUDA" "free some space, or take PyTorch's CPU build: ./dev --torch $cpu_index ..."
  if [ "$(uname -m)" != x86_64 ] || has_gpu; then return; fi
  say "PyTorch is not installed in ${venv##*/} yet. By default pip takes the build with CUDA: $cuda_download to download, $cuda_disk on disk."
  say "This machine has no NVIDIA GPU, and the engine does not need CUDA. For the CPU build ($cpu_download), press Ctrl-C and run:"
  say "    ./dev --torch $cpu_index ${command:-demo}"
  say "A wheel works too (./dev --torch FILE.whl ...), and so does pip's own configuration (pip config set global.index-url ...)."
}

# install_torch WHERE PIP...: PyTorch alone, so that pip shows the progress of its download. WHERE: an index, a wheel, a requirement, or nothing.
install_torch() {
  local where=$1 required
  shift
  required=$(sed -n 's/^ *"\(torch[>=][^"]*\)",$/\1/p' pyproject.toml)
  case $where in
    "") "$@" "$required" ;;
    *.whl) "$@" "$where" ;;
    http://* | https://* | file://*) "$@" --index-url "$where" "$required" ;;
    *) "$@" "$where" ;;
  esac
}

# Shows how far a build is, from the lines of pip and Ninja: one line that changes on a terminal, else a line every tenth of the files.
show_build() {
  local tty=0
  [ ! -t 2 ] || tty=1
  awk -v tty="$tty" '
    match($0, /\[[0-9]+\/[0-9]+\]/) {
      split(substr($0, RSTART + 1, RLENGTH - 2), n, "/")
      if (n[2] < 10) next
      if (tty) printf "\r    compiling: %d of %d files", n[1], n[2] > "/dev/stderr"
      else if (int(10 * n[1] / n[2]) > shown) { shown = int(10 * n[1] / n[2]); printf "    compiling: %d of %d files\n", n[1], n[2] > "/dev/stderr" }
      fflush("/dev/stderr"); any = 1
    }
    END { if (tty && any) print "" > "/dev/stderr" }'
}

# This machine's widest instruction set; the engine's copies for others would never run here.
own_isas() {
  if grep -qw avx512vl /proc/cpuinfo 2>/dev/null; then
    echo avx512
  elif grep -qw avx2 /proc/cpuinfo 2>/dev/null; then
    echo avx2
  else
    echo base
  fi
}
