"""How ranks learn of one another's end: here as threads; tests/ranks/test_mpi.py kills processes."""

from __future__ import annotations

import errno
import os
import queue
import re
import resource
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
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
        world.barrier()
        try:
            end(world.rank, line)
            return codes.get(timeout=60 if told(world.rank) else 0.3)
        except queue.Empty:
            return None
        finally:
            line.close()
            if line.line is not None:
                line.listener.join(60)
                line.line.close()

    return simulate(n_ranks, run)


def dies(line: Lifeline) -> None:
    """Closes the connection, as the kernel does when a process has ended."""
    assert line.line is not None
    line.over = True
    line.line.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def two_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks 0 and 1 share a host, the others another one: each host has its own loopback address."""

    def addresses() -> list[str]:
        rank = int(threading.current_thread().name.rpartition("-")[2])
        return ["127.0.0.1", "127.0.0.2" if rank < 2 else "127.0.0.3"]

    monkeypatch.setattr(module, "_addresses", addresses)


def test_a_run_that_ends_well_says_nothing(capfd):
    assert fates(3, lambda rank, line: line.close(), told=lambda rank: False) == [None] * 3
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("gone", [0, 2])
def test_a_rank_that_is_killed(gone, capfd):
    def end(rank: int, line: Lifeline) -> None:
        if rank == gone:
            dies(line)

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
    """As Slurm sends SIGTERM at a time limit. The ranks write their checkpoint; the death of one is still noticed."""
    signaled = threading.Barrier(3)

    def end(rank: int, line: Lifeline) -> None:
        if line.started:
            os.kill(line.started.pid, number)
        signaled.wait(60)
        if rank == 2:
            dies(line)

    assert fates(3, end, told=lambda rank: rank < 2) == [1, 1, None]
    assert re.fullmatch(r"sparsesnn: error: rank 2/3: exited without an error message .*\n", _said(capfd))


def test_ranks_go_on_without_the_watch(capfd):
    lost = threading.Barrier(3)

    def end(rank: int, line: Lifeline) -> None:
        if line.started:
            os.kill(line.started.pid, signal.SIGKILL)
        line.listener.join(60)
        lost.wait(60)
        if rank == 1:
            line.fail(2, "loss: is NaN")

    assert fates(3, end, told=lambda rank: rank == 1) == [None, 2, None]
    said = _said(capfd).splitlines()
    assert len(said) == 2
    assert re.match(r"sparsesnn: warning: rank 0/3: the process that watches .* was killed; the run continues", said[0])
    assert said[1] == "sparsesnn: error: rank 1/3: loss: is NaN"


# ---- over hosts -----------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("two_hosts")
class TestTwoHosts:
    @pytest.mark.parametrize("gone", [0, 1, 2, 4])
    def test_a_rank_that_is_killed(self, gone, capfd):
        codes = fates(5, lambda rank, line: rank == gone and dies(line), told=lambda rank: rank != gone)
        assert codes == [None if rank == gone else 1 for rank in range(5)]
        assert f"error: rank {gone}/5: exited without an error message (killed" in _said(capfd)

    @pytest.mark.parametrize("failing", [1, 3])
    def test_a_rank_that_fails_says_why(self, failing, capfd):
        assert fates(5, lambda rank, line: rank == failing and line.fail(2, "loss: is NaN")) == [2] * 5
        assert _said(capfd) == f"sparsesnn: error: rank {failing}/5: loss: is NaN\n"

    def test_what_all_ranks_say_is_said_once(self, capfd):
        assert fates(5, lambda rank, line: line.fail(2, "loss: is NaN")) == [2] * 5
        assert _said(capfd) == "sparsesnn: error: loss: is NaN\n"

    def test_a_run_that_ends_well_says_nothing(self, capfd):
        assert fates(5, lambda rank, line: line.close(), told=lambda rank: False) == [None] * 5
        assert _said(capfd) == ""

    @pytest.mark.parametrize(("host", "failing"), [(0, 1), (0, 3), (1, 1), (1, 3)])
    def test_a_watch_that_is_killed(self, host, failing, capfd):
        """The ranks continue. Those of the failing rank's host end together; the others end if their host's process learns of it."""
        lost = threading.Barrier(5)
        watched = [rank for rank in range(5) if (rank >= 2) != host]

        def end(rank: int, line: Lifeline) -> None:
            if rank == 2 * host:
                os.kill(line.started.pid, signal.SIGKILL)
            if rank not in watched:
                line.listener.join(60)
            lost.wait(60)
            time.sleep(0.2)  # the other host's process notices it too
            if rank == failing:
                line.fail(2, "loss: is NaN")

        told = [rank == failing or (rank in watched and failing in watched) for rank in range(5)]
        assert fates(5, end, told=lambda rank: told[rank]) == [2 if one else None for one in told]
        said = _said(capfd).splitlines()
        assert len(said) == 2
        assert re.match(
            rf"sparsesnn: warning: rank {2 * host}/5: the process that watches the ranks of this host", said[0]
        )
        assert said[1] == f"sparsesnn: error: rank {failing}/5: loss: is NaN"

    def test_a_host_that_cannot_reach_rank_0_is_named(self, monkeypatch, capfd):
        connect, tried = module._connect, []
        monkeypatch.setattr(module, "_connect", lambda *a: tried.append(a[0]) if a[3] >> 31 else connect(*a))

        def run(world: Communicator) -> list[int]:
            codes: list[int] = []
            line = Lifeline(world, ends=codes.append)
            world.barrier()
            if world.rank == 3:  # the others of that host are informed anyway
                line.fail(2, "loss: is NaN")
            if world.rank >= 2:
                line.listener.join(60)
            world.barrier()
            line.over = True
            line.line.close()
            return codes

        with pytest.warns(UserWarning, match=r"^ranks 2, 3, 4 of 5 cannot reach .*, addresses 127.0.0.2\)") as said:
            assert [codes[:1] for codes in simulate(5, run)] == [[], [], [2], [2], [2]]
        assert len(said) == 1
        assert tried == [["127.0.0.2"]]  # the secret goes to no address on this host, where another program may listen
        assert _said(capfd) == "sparsesnn: error: rank 3/5: loss: is NaN\n"


@pytest.mark.parametrize("hosts", [1, 2])
def test_a_run_on_one_host_listens_on_its_loop(hosts, monkeypatch, request):
    """Once all ranks have connected, nothing listens."""
    if hosts == 2:
        request.getfixturevalue("two_hosts")
    started: list[tuple[str, int]] = []

    class Started(module._Started):
        def __init__(self, secret: bytes, size: int, expected: int, address: str, above: Any = None) -> None:
            super().__init__(secret, size, expected, address, above)
            started.append((address, self.port))

    monkeypatch.setattr(module, "_Started", Started)

    def end(rank: int, line: Lifeline) -> None:
        limit = time.monotonic() + 60
        while any(_answers(port) for _, port in started):
            assert time.monotonic() < limit
            time.sleep(0.01)

    assert fates(3, end, told=lambda rank: False) == [None] * 3
    assert [address for address, _ in started] == (["127.0.0.1"] if hosts == 1 else ["", "127.0.0.1"])


def _answers(port: int) -> bool:
    with socket.socket() as line:
        return line.connect_ex(("127.0.0.1", port)) == 0


# ---- who connects ---------------------------------------------------------------------------------------------------


class Watched:
    """A `Watch` in a thread of this process, and its connections."""

    def __init__(self, size: int = 2, listener: Any = None) -> None:
        self.secret, (door, self.open_door) = b"s" * 16, os.pipe()
        self.listener = listener or socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.watch = watch.Watch(self.listener, self.secret, size, size, door)
        self.thread = threading.Thread(target=self.watch.run)
        self.door = door

    def __enter__(self) -> Watched:
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close_door()
        self.thread.join(60)
        assert not self.thread.is_alive()
        os.close(self.door)

    def close_door(self) -> None:
        if self.open_door >= 0:
            os.close(self.open_door)
        self.open_door = -1

    def connect(self, hello: bytes = b"") -> socket.socket:
        line = socket.create_connection(("127.0.0.1", self.port), 60)
        line.sendall(hello)
        return line

    def join(self, rank: int) -> socket.socket:
        line = self.connect(self.secret + struct.pack(">I", rank))
        assert line.recv(1) == b"+"
        line.sendall(b"+")
        assert line.recv(1) == b"+"
        return line


def is_hung_up(line: socket.socket) -> bool:
    """Whether the other end closes the connection."""
    try:
        return line.recv(1) == b""
    except ConnectionResetError:  # it had not read all
        return True


def leave(line: socket.socket) -> None:
    watch.send(line, -1, 0, "")
    line.close()


def test_strangers_are_not_heard(capfd):
    """A client that does not know the secret can neither end the run nor take a rank's place."""
    with Watched() as watched:
        good = watched.join(0)
        for hello in (
            b"x" * 16 + struct.pack(">I", 1),
            watched.secret + struct.pack(">I", 2),
            b"GET / HTTP/1.0\r\n\r\n.......",
        ):
            line = watched.connect(hello)
            assert is_hung_up(line)
            line.close()
        silent = watched.connect(b"s")
        watched.close_door()
        assert is_hung_up(silent)  # the deadline of those who do not speak
        silent.close()
        leave(good)
    assert _said(capfd) == ""


def test_only_so_many_strangers_wait(monkeypatch, capfd):
    """The client that waits longest makes room; ranks are accepted anyway."""
    monkeypatch.setattr(watch, "MAX_STRANGERS", 3)
    with Watched(size=2) as watched:
        strangers = [watched.connect() for _ in range(3 + 2)]
        more = watched.connect()
        assert is_hung_up(strangers[0])
        ranks = [watched.join(rank) for rank in range(2)]
        assert is_hung_up(strangers[1])
        for line in ranks:
            leave(line)
        for line in [*strangers, more]:
            line.close()
    assert _said(capfd) == ""


class Exhausted:
    """A listener that has no file descriptor left for a while."""

    def __init__(self, listener: socket.socket, failures: int) -> None:
        self.listener, self.failures = listener, failures

    def accept(self) -> Any:
        self.failures -= 1
        if self.failures >= 0:
            raise OSError(errno.EMFILE if self.failures % 2 else errno.ECONNABORTED, "no")
        return self.listener.accept()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.listener, name)


def test_errors_of_accept_are_survived(capfd):
    with Watched(listener=Exhausted(socket.create_server(("127.0.0.1", 0)), 7)) as watched:
        for line in [watched.join(0), watched.join(1)]:
            leave(line)
    assert _said(capfd) == ""


@pytest.fixture
def file_limits() -> Iterator[tuple[int, int]]:
    """Those of this process, which are put back."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield limits
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_connections_of_1024_ranks(file_limits, capfd):
    """The process starts with a limit of 64 files, raises it, holds all connections, and tells all ranks when one dies."""
    n, secret, hard = 1024, b"s" * 16, file_limits[1]
    if 0 <= hard < n + 100:
        pytest.skip(
            f"this machine lets a process open {hard} files (ulimit -Hn); the ranks of this test need {n + 100}"
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, hard))
    started = module._Started(secret, n, n, "127.0.0.1")
    assert watch.open_many_files() >= n + 100
    lines = [module._connect(["127.0.0.1"], started.port, secret, rank) for rank in range(n)]
    started.close_door()
    assert None not in lines
    dead = lines.pop()
    dead.close()
    assert all(module._read(line, 4) == struct.pack(">I", 1) for line in lines)
    for line in lines:
        line.close()
    os.waitpid(started.pid, 0)  # it speaks last
    assert re.fullmatch(rf"sparsesnn: error: rank {n - 1}/{n}: exited without .*\n", _said(capfd))


def test_a_limit_of_files_that_is_too_low_is_said(capfd):
    """Ranks that connect in time are kept anyway."""
    limit, n, secret = 40, 100, b"s" * 16
    program = f"import resource, runpy, sys; resource.setrlimit(resource.RLIMIT_NOFILE, ({limit}, {limit})); runpy.run_path(sys.argv.pop(1), run_name='__main__')"
    with socket.create_server(("127.0.0.1", 0), backlog=n) as listener:
        port = listener.getsockname()[1]
        command = [sys.executable, "-c", program, watch.__file__, str(listener.fileno())]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, pass_fds=[listener.fileno()])
    assert process.stdin is not None
    process.stdin.write(secret + struct.pack(">II", n, n))
    process.stdin.flush()
    lines = [module._connect(["127.0.0.1"], port, secret, rank) for rank in range(5)]
    process.stdin.close()
    assert None not in lines
    for line in lines:
        leave(line)
    assert process.wait(60) == 0
    said = _said(capfd)
    assert "warning: the process that watches the ranks needs 100 connections" in said
    assert "may open 40 files; raise the limit (ulimit -Hn)" in said


def test_without_a_connection_a_rank_speaks_for_itself(capfd, monkeypatch):
    monkeypatch.setattr(module, "_connect", lambda *_: None)

    def run(world: Communicator) -> list[int]:
        codes: list[int] = []
        line = Lifeline(world, ends=codes.append)
        line.close()
        line.fail(1, "too late")
        return codes

    with pytest.warns(UserWarning, match="ranks 0, 1 of 2 cannot reach"):
        assert simulate(2, run) == [[1], [1]]
    assert sorted(_said(capfd).splitlines()) == [f"sparsesnn: error: rank {r}/2: too late" for r in range(2)]


def test_an_address_that_is_slow_is_not_given_up(monkeypatch, capfd):
    """A connection that a rank tried and left does not count as a rank that ended, whenever it closes."""
    monkeypatch.setattr(module, "MOMENT_S", 0.05)
    lines: queue.Queue[Any] = queue.Queue()
    watched = Watched(listener=socket.create_server(("", 0)))

    def connect(rank: int) -> None:
        lines.put(module._connect(["127.0.0.1", "127.0.0.2", "127.0.0.3"], watched.port, watched.secret, rank))

    ranks = [threading.Thread(target=connect, args=(rank,)) for rank in range(2)]
    for rank in ranks:
        rank.start()
    time.sleep(0.5)  # the process that answers starts late: all addresses have been tried
    with watched:
        for rank in ranks:
            rank.join(60)
        chosen = [lines.get(timeout=60) for _ in range(2)]
        assert None not in chosen
        time.sleep(0.3)  # the watch notices the connections that were left
        assert sorted(watched.watch.lines) == [0, 1]
        assert not watched.watch.failures
        for line in chosen:
            leave(line)
    assert _said(capfd) == ""


def test_no_address_that_answers(monkeypatch):
    """One refuses; the other accepts but never answers."""
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
