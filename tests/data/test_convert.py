from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from sparsesnn.datasets import convert
from sparsesnn.datasets.convert import Job, run
from sparsesnn.errors import ConfigError, DataError

pytestmark = pytest.mark.slow

#: a data set's module, as a worker imports it
MODULE = """
import os, signal, time
from pathlib import Path
import numpy as np
from sparsesnn.datasets.binning import bin_events
from sparsesnn.datasets.convert import Part
from sparsesnn.errors import ConfigError, DataError

def convert(first, last, *, log, bad=(), how="error", seconds=0.0, n_workers=1, n_neurons=5):
    with open(log, "a") as file:
        file.write(f"{os.getpid()} {first} {last}\\n")
    print("a library that talks", flush=True)
    os.write(1, b"even past Python\\n")
    while n_workers > 1 and len({line.split()[0] for line in Path(log).read_text().splitlines()}) < n_workers:
        time.sleep(0.01)  # all have started before any continues
    time.sleep(seconds)
    for item in range(first, last):
        if item in bad:
            if how == "kill":
                os.kill(os.getpid(), signal.SIGSEGV)
            if how == "bug":
                raise IndexError("our own fault")
            if how == "memory":
                raise MemoryError("8 TiB")
            if how == "config":
                raise ConfigError(f"item {item}: no such option")
            time.sleep(0.3 / (1 + item))
            raise DataError(f"item {item} is damaged: ä")
    items = np.arange(first, last)
    events = [(np.arange(k % 4), np.arange(k % 4) + k % 2) for k in items]
    binned = bin_events(events, n_neurons=n_neurons, n_steps=3, dt_us=1.0)
    return Part(binned, {"labels": items % 3, "squares": items**2})
"""


@pytest.fixture
def module(tmp_path, monkeypatch) -> str:
    name = f"toy_set_{tmp_path.name}".replace("-", "_").replace("[", "_").replace("]", "_")
    (tmp_path / f"{name}.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    return name


def job(module: str, tmp_path: Path, n_items: int = 10, **arguments: object) -> Job:
    return Job(module, {"log": str(tmp_path / "log"), **arguments}, n_items, n_bytes=0, title="toy train", block=3)


def test_the_number_of_processes_changes_nothing(tmp_path, module):
    one = run(job(module, tmp_path), 1)
    np.testing.assert_array_equal(one.columns["squares"], np.arange(10) ** 2)
    assert one.binned.n_spikes.shape == (10, 3)
    (tmp_path / "log").unlink()
    other = run(job(module, tmp_path), 2)
    lines = [line.split() for line in (tmp_path / "log").read_text().splitlines()]
    assert sorted((int(first), int(last)) for _, first, last in lines) == [(0, 3), (3, 6), (6, 9), (9, 10)]
    assert str(os.getpid()) not in {pid for pid, _, _ in lines}
    for name in ("ids", "n_spikes"):
        ours, theirs = getattr(one.binned, name), getattr(other.binned, name)
        assert ours.dtype == theirs.dtype
        np.testing.assert_array_equal(ours, theirs)
    assert other.columns.keys() == one.columns.keys()
    for name in one.columns:
        np.testing.assert_array_equal(one.columns[name], other.columns[name])
    assert (one.binned.n_neurons, one.binned.n_lost) == (other.binned.n_neurons, other.binned.n_lost)


def test_nothing_to_convert(tmp_path, module):
    part = run(job(module, tmp_path, 0))
    assert part.binned.n_spikes.shape == (0, 3)
    assert part.columns["labels"].size == 0


def test_processes_are_as_many_as_pay(module, tmp_path, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
    small = job(module, tmp_path, 100)
    assert convert.n_workers_for(small, None) == 1
    assert convert.n_workers_for(small, 3) == 3
    assert convert.n_workers_for(small, 1000) == len(small.blocks()) == 34
    for n_bytes, n_workers in ((200 << 20, 3), (100 << 30, 8)):
        large = Job(module, {}, 100, n_bytes, "toy", block=3)
        assert convert.n_workers_for(large, None) == n_workers
    with pytest.raises(ConfigError, match="toy train: 0 worker processes requested; give a number from 1"):
        convert.n_workers_for(small, 0)


@pytest.mark.parametrize("n_workers", [1, 2])
def test_an_error_is_that_of_the_first_block_that_has_one(tmp_path, module, n_workers):
    with pytest.raises(DataError, match="^item 2 is damaged: ä$"):
        run(job(module, tmp_path, bad=[2, 4, 8]), n_workers)
    if n_workers == 1:
        with pytest.raises(ConfigError, match="^item 9: no such option$"):
            run(job(module, tmp_path, bad=[9], how="config"))


@pytest.mark.parametrize(
    ("how", "error", "message"),
    [
        ("kill", DataError, r"toy train: the process that converted items 6 to 8 was ended by SIGSEGV; .*get a fresh"),
        ("bug", RuntimeError, r"(?s)Traceback.*IndexError: our own fault"),
        ("memory", MemoryError, "^8 TiB$"),
    ],
)
def test_a_worker_that_dies_is_an_error_that_names_the_block(tmp_path, module, how, error, message):
    with pytest.raises(error, match=message):
        run(job(module, tmp_path, bad=[7], how=how), 2)


SCRIPT = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # shells start background processes without it
from sparsesnn.datasets.convert import Job, run
print("running", flush=True)  # no `if __name__ == "__main__"`: a worker must not run this again
arguments = {"log": sys.argv[2], "seconds": float(sys.argv[3]), "n_workers": 2}
job = Job(sys.argv[1], arguments, 10, n_bytes=0, title="toy", block=3)
print(run(job, 2).columns["labels"].tolist())
"""


def start(tmp_path: Path, module: str, seconds: float) -> subprocess.Popen[str]:
    (tmp_path / "script.py").write_text(SCRIPT)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *(p for p in sys.path if p)])}
    command = [sys.executable, "script.py", module, str(tmp_path / "log"), str(seconds)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(command, text=True, env=environment, cwd=tmp_path, **pipes)


def workers(tmp_path: Path) -> set[int]:
    """The workers that have begun; waits for two."""
    stop = time.monotonic() + 300
    while True:
        log = (tmp_path / "log").read_text().splitlines() if (tmp_path / "log").exists() else []
        found = {int(line.split()[0]) for line in log}
        if len(found) == 2:
            return found
        assert time.monotonic() < stop, "no workers began"
        time.sleep(0.02)


def gone(pid: int) -> bool:
    try:
        return "\nState:\tZ" in Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return True


def test_a_script_needs_no_guard_and_runs_once(tmp_path, module):
    script = start(tmp_path, module, 0.0)
    out, _ = script.communicate(timeout=600)
    assert out == "running\n[0, 1, 2, 0, 1, 2, 0, 1, 2, 0]\n"


@pytest.mark.parametrize("signal_number", [signal.SIGKILL, signal.SIGINT])
def test_workers_end_with_their_caller(tmp_path, module, signal_number):
    script = start(tmp_path, module, 3.0)
    pids = workers(tmp_path)
    script.send_signal(signal_number)
    script.communicate(timeout=600)
    assert script.returncode != 0
    stop = time.monotonic() + 300
    while not all(map(gone, pids)):
        assert time.monotonic() < stop, "a worker outlives its caller"
        time.sleep(0.05)
    assert len((tmp_path / "log").read_text().splitlines()) == 2  # none began another block


def test_a_bar_shows_in_a_terminal_and_nowhere_else(tmp_path, module, capfd):
    """Even in one that does not know its size."""
    program = (
        "from sparsesnn.datasets.convert import Job, run\n"
        f"job = Job({module!r}, {{'log': {str(tmp_path / 'log')!r}, 'seconds': 0.6}}, 8, n_bytes=0, title='toy', block=2)\n"
        "run(job)"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *(p for p in sys.path if p)])}
    ours, theirs = os.openpty()
    with subprocess.Popen([sys.executable, "-c", program], stderr=theirs, stdout=theirs, env=environment) as process:
        os.close(theirs)
        said = b""
        with contextlib.suppress(OSError):  # how a terminal ends
            while chunk := os.read(ours, 1000):
                said += chunk
        os.close(ours)
        assert process.wait(600) == 0
    assert b"converting toy" in said
    run(job(module, tmp_path, 4, seconds=0.6))
    assert capfd.readouterr().err == ""
