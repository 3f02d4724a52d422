"""PyTorch's idle threads leave the engine its cores; see host/src/machine/openmp.h."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux") or "OpenMP" not in torch.__config__.parallel_info(),
    reason="PyTorch without OpenMP, or no Linux",
)

#: PyTorch works with 4 threads
PYTORCH = """
import os, time, warnings
import torch
torch.set_num_threads(4)
x = torch.ones(1_000_000)
def sum_on_threads():
    return float((x + x).sum())
assert sum_on_threads() == 2e6
"""

#: the engine works with 2
ENGINE = """
import sparsesnn
sparsesnn.set_num_threads(2)
layer = sparsesnn.Layer(sparsesnn.LIF(65), n_pre=33, generator=torch.Generator().manual_seed(1))
spikes = sparsesnn.SpikeBatch.from_lists([[[3, 30], [], [1]]] * 5, 33)
def run():
    with torch.no_grad():
        return layer(spikes)[1].v
"""

FORK = """
warnings.simplefilter("ignore")  # Python warns of every fork in a process with threads; this one is the subject
child = os.fork()
if child == 0:
    {late}
    os._exit(0 if float(run().abs().sum()) > 0 else 1)
assert os.waitpid(child, 0)[1] == 0
"""


def python(code: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code], cwd=cwd, capture_output=True, text=True, check=False, timeout=120
    )


def runtimes_can_pause() -> bool:
    """Whether the OpenMP runtimes in this process are of OpenMP 5.0; that of PyTorch's wheels up to 2.6 is not."""
    paths = {line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if "/" in line}
    runtimes = [path for path in paths if Path(path).name.startswith(("libgomp", "libiomp", "libomp"))]
    return all(hasattr(ctypes.CDLL(path), "omp_pause_resource_all") for path in runtimes)


@pytest.mark.slow
@pytest.mark.skipif(not runtimes_can_pause(), reason="PyTorch's OpenMP is older than 5.0: it keeps its idle threads")
def test_idle_threads_go_and_come_back(tmp_path: Path) -> None:
    code = """
def n_threads():
    return len(os.listdir("/proc/self/task"))
def left(n):  # the system lists a thread for a moment after it has ended
    until = time.monotonic() + 5
    while n_threads() != n and time.monotonic() < until:
        time.sleep(0.001)
    return n_threads()
first = run()
alone = n_threads()
for _ in range(100):
    assert sum_on_threads() == 2e6
    together = n_threads()
    assert together == alone + 3, (together, alone)
    assert torch.equal(run(), first)
    assert left(alone) == alone
"""
    done = python(PYTORCH + ENGINE + code, tmp_path)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_child_of_a_fork_waits_for_nobody(tmp_path: Path) -> None:
    """It has PyTorch's pool without its threads, and would wait for them for ever."""
    done = python(PYTORCH + ENGINE + "run()\nsum_on_threads()" + FORK.format(late="pass"), tmp_path)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_child_that_loads_the_engine_waits_for_nobody(tmp_path: Path) -> None:
    late = f"exec({ENGINE!r})"
    done = python(PYTORCH + FORK.format(late=late), tmp_path)
    assert done.returncode == 0, done.stderr
