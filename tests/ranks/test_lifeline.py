"""How ranks learn of one another's end: here as threads; tests/ranks/test_mpi.py kills processes."""

from __future__ import annotations

import os
import queue
import re
import signal
import socket
import struct
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sparsesnn.host.comm import Communicator, Lifeline, simulate, watch
from sparsesnn.host.comm import lifeline as module


def fates(n_ranks: int, end: Any, told: Any = lambda rank: True) -> list[Any]:
    """Calls end(rank, lifeline) on each rank; returns the exit code that each got, None where it got none.

    A rank that will be `told` one waits for it as long as a loaded machine takes.
    """

    def run(world: Communicator) -> Any:
        codes: queue.Queue[int] = queue.Queue()
        line = Lifeline(world, ends=codes.put)
        assert line.line is not None
        end(world.rank, line)
        try:
            return codes.get(timeout=60 if told(world.rank) else 0.3)
        except queue.Empty:
            return None
        finally:
            line.over = True
            if line.line is not None:
                line.line.close()

    return simulate(n_ranks, run)


def watch_process() -> int:
    """The process that this one started to watch ranks."""
    children = [
        int(pid) for task in Path("/proc/self/task").iterdir() for pid in (task / "children").read_text().split()
    ]
    (found,) = (
        pid for pid in children if watch.__file__.encode() in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    )
    return found


def test_a_run_that_ends_well_says_nothing(capfd):
    assert fates(3, lambda rank, line: line.close(), told=lambda rank: False) == [None] * 3
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("gone", [0, 2])
def test_a_rank_that_is_killed(gone, capfd):
    def end(rank: int, line: Lifeline) -> None:
        if rank == gone:
            line.over = True
            line.line.shutdown(socket.SHUT_RDWR)  # as the kernel does for a process that is no more

    codes = fates(3, end, told=lambda rank: rank != gone)
    assert codes == [None if rank == gone else 1 for rank in range(3)]
    assert f"error: rank {gone}/3: exited without an error message (killed" in _said(capfd)


def test_a_rank_that_fails_says_why(capfd):
    def end(rank: int, line: Lifeline) -> None:
        if rank == 1:
            line.fail(2, "data: no such file; give another")

    assert fates(3, end) == [2, 2, 2]
    assert _said(capfd) == "sparsesnn: error: rank 1/3: data: no such file; give another\n"


def test_what_all_ranks_say_is_said_once_and_names_none(capfd):
    assert fates(3, lambda rank, line: line.fail(2, "loss: is NaN")) == [2, 2, 2]
    assert _said(capfd) == "sparsesnn: error: loss: is NaN\n"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1], ids=str)
def test_a_signal_to_every_process_leaves_the_watch_alive(number, capfd):
    """As Slurm sends SIGTERM at a time limit. The ranks write their checkpoint; one that dies meanwhile is still heard."""
    signalled = threading.Barrier(3)

    def end(rank: int, line: Lifeline) -> None:
        if rank == 0:
            os.kill(watch_process(), number)
        signalled.wait(60)
        if rank == 2:
            line.over = True
            line.line.shutdown(socket.SHUT_RDWR)

    assert fates(3, end, told=lambda rank: rank < 2) == [1, 1, None]
    assert re.fullmatch(r"sparsesnn: error: rank 2/3: exited without an error message .*\n", _said(capfd))


def test_ranks_go_on_without_the_watch(capfd):
    lost = threading.Barrier(3)

    def end(rank: int, line: Lifeline) -> None:
        if rank == 0:
            os.kill(watch_process(), signal.SIGKILL)
        line.listener.join(60)
        lost.wait(60)
        if rank == 1:
            line.fail(2, "loss: is NaN")

    assert fates(3, end, told=lambda rank: rank == 1) == [None, 2, None]
    said = _said(capfd).splitlines()
    assert said.pop() == "sparsesnn: error: rank 1/3: loss: is NaN"
    assert [line for line in said if "warning" not in line or "was killed; the run goes on" not in line] == []


def test_without_a_connection_a_rank_speaks_for_itself(capfd, monkeypatch):
    monkeypatch.setattr(module, "_connect", lambda *_: None)

    def run(world: Communicator) -> list[int]:
        codes: list[int] = []
        line = Lifeline(world, ends=codes.append)
        line.close()
        line.fail(1, "too late")
        return codes

    monkeypatch.setattr(watch, "FIRST_S", 0.1)
    with pytest.warns(UserWarning, match="ranks 0, 1 of 2 cannot reach"):
        assert simulate(2, run) == [[1], [1]]
    assert sorted(_said(capfd).splitlines()) == [f"sparsesnn: error: rank {r}/2: too late" for r in range(2)]


def test_strangers_are_not_heard(capfd):
    """Somebody who does not know the secret can neither end the run nor take a rank's place."""
    secret = b"s" * 16
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    thread = threading.Thread(target=watch.Watch(listener, secret, 2).run)
    thread.start()

    def connect(hello: bytes) -> socket.socket:
        line = socket.create_connection(("127.0.0.1", port), 60)
        line.sendall(hello)
        return line

    good = connect(secret + struct.pack(">I", 0))
    assert good.recv(1) == b"+"
    good.sendall(b"+")
    assert good.recv(1) == b"+"
    for hello in (b"x" * 16 + struct.pack(">I", 1), secret + struct.pack(">I", 2), b"GET / HTTP/1.0\r\n\r\n......."):
        line = connect(hello)
        assert line.recv(1) == b""
        line.close()
    text = b'{"end": 0, "message": ""}'
    good.sendall(struct.pack(">I", len(text)) + text)
    thread.join(60)
    assert not thread.is_alive()
    good.close()
    listener.close()
    assert _said(capfd) == ""


def test_an_address_that_is_slow_is_not_given_up(monkeypatch, capfd):
    """A connection that a rank tried and left is no rank that ended, whenever it is heard of."""
    secret = b"s" * 16
    listener = socket.create_server(("", 0))
    port = listener.getsockname()[1]
    watched = watch.Watch(listener, secret, 2)
    monkeypatch.setattr(module, "MOMENT_S", 0.05)
    lines: queue.Queue[Any] = queue.Queue()

    def connect(rank: int) -> None:
        lines.put(module._connect(["127.0.0.1", "127.0.0.2", "127.0.0.3"], port, secret, rank))

    ranks = [threading.Thread(target=connect, args=(rank,)) for rank in range(2)]
    for rank in ranks:
        rank.start()
    time.sleep(0.5)  # the process that answers starts late: all addresses have been tried
    thread = threading.Thread(target=watched.run)
    thread.start()
    for rank in ranks:
        rank.join(60)
    chosen = [lines.get(timeout=60) for _ in range(2)]
    assert None not in chosen
    time.sleep(0.3)  # what was left is heard of
    assert sorted(watched.lines) == [0, 1]
    assert not watched.said
    for line in chosen:
        text = b'{"end": 0, "message": ""}'
        line.sendall(struct.pack(">I", len(text)) + text)
        line.close()
    thread.join(60)
    assert not thread.is_alive()
    listener.close()
    assert _said(capfd) == ""


def test_no_address_that_answers(monkeypatch):
    """One refuses; at the other somebody listens who never speaks."""
    monkeypatch.setattr(module, "CONNECT_S", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as mute:
        port = mute.getsockname()[1]
        assert module._connect(["127.0.0.2", "127.0.0.1"], port, b"s" * 16, 0) is None


def test_ranks_that_cannot_connect_are_named(monkeypatch):
    connect = module._connect
    monkeypatch.setattr(module, "_connect", lambda *a: None if a[3] in (1, 2) else connect(*a))

    def run(world: Communicator) -> None:
        line = Lifeline(world)
        line.close()
        world.barrier()
        if line.line is not None:
            line.line.close()

    with pytest.warns(UserWarning, match=r"^ranks 1, 2 of 3 cannot reach the host of rank 0 \(TCP port \d+, ") as said:
        simulate(3, run)
    assert len(said) == 1


def test_addresses_begin_with_the_loop():
    addresses = module._addresses()
    assert addresses[0].startswith("127.")
    assert all(len(np.fromstring(a.replace(".", " "), sep=" ")) == 4 for a in addresses)


def _said(capfd: pytest.CaptureFixture[str]) -> str:
    return capfd.readouterr().err
