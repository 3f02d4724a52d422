"""A process on every host of a run that hears how the ranks there end, and says so; `lifeline.py` starts it and talks to it.

The one beside rank 0 decides. Those of other hosts keep one connection to it, pass on how their ranks end, and are told the
exit code. So no process holds more connections than a host has ranks, and hosts.

It is a process of its own, which imports nothing but the standard library and waits for nothing else: launchers kill the ranks
of a run within milliseconds of the first one that dies, so there is no time to wait for a rank that is computing. On standard
input it is told its secret, how many ranks the run has, and how many connections to expect. Where that input ends, nobody else
will come: it closes its port. It ends with the ranks.

It ignores the signals that ask a run to end. Slurm sends them to every process of a step, this one too, and the ranks answer
with a checkpoint: while they write it they need somebody who tells a slow rank from a dead one.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import resource
import selectors
import signal
import socket
import struct
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

#: seconds to wait for what other ranks have to say, once one has failed: often all fail alike
GRACE_S = 0.3
#: seconds in which a launcher ends once a rank was killed
LAUNCHER_S = 2.0
#: connections of those who have not shown the secret, in addition to the ranks that are expected; of more the oldest is closed
MAX_STRANGERS = 64
#: files that this process has open beside its connections: standard ones, listener, selector, the connection above, the launcher's
OWN_FILES = 8
#: bytes of a message, at most
MAX_MESSAGE = 65_536
#: added to the number of a rank by a process that speaks for all ranks of its host
OF_HOST = 1 << 31
#: signals by which a scheduler, a launcher or a person asks all processes of a run to end, or tells them something
SIGNALS = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
KILLED = "exited without an error message (killed, or its host went down)"


@dataclass(eq=False)
class Line:
    """A connection that a rank may make over several addresses at once; `rank` is -1 until it has chosen this one.

    Args:
        claims: the rank that it showed to be, and was told that it was heard; -1 before.
        of_host: whether the process that watches another host is at the other end, where `rank` is the first rank.
        failed: whether a failure was heard on it.
        silent: whether the other end stopped to answer, as where a host goes down: the kernel there closes no connection.
    """

    socket: socket.socket
    claims: int = -1
    rank: int = -1
    of_host: bool = False
    failed: bool = False
    silent: bool = False
    data: bytes = b""

    def receive(self) -> bool:
        """Takes what has come; whether the other end is still there."""
        try:
            part = self.socket.recv(MAX_MESSAGE)
        except OSError as error:
            part = b""
            self.silent = not isinstance(error, ConnectionError)
        self.data += part
        return bool(part)

    def messages(self) -> Iterator[Any]:
        """The whole messages that have come."""
        while len(self.data) >= 4 and len(self.data) >= (end := 4 + struct.unpack(">I", self.data[:4])[0]):
            text, self.data = self.data[4:end], self.data[end:]
            yield json.loads(text)


class Watch:
    """Waits until all ranks of a host have ended; beside rank 0, until all other hosts have, too.

    Args:
        listener: where ranks connect.
        secret: what they must say first, 16 bytes, before their rank as 4 bytes, plus `OF_HOST` where they speak for a host.
            They are answered "+", say "+" on the one connection that they keep, and are told "+" that it counts.
        size: number of ranks of the run.
        expected: connections that will be kept.
        door: a file descriptor that ends once nobody else will connect.
        above: the connection to the process beside rank 0; None there.
    """

    def __init__(
        self,
        listener: socket.socket,
        secret: bytes,
        size: int,
        expected: int,
        door: int,
        above: socket.socket | None = None,
    ) -> None:
        self.listener, self.secret, self.size, self.expected, self.door = listener, secret, size, expected, door
        self.above = None if above is None else Line(above)
        self.launcher = Launcher()
        self.selector = selectors.DefaultSelector()
        listener.setblocking(False)  # who has come may have gone before it is accepted
        self.selector.register(listener, selectors.EVENT_READ, self._accept)
        self.selector.register(door, selectors.EVENT_READ, self._close_door)
        if above is not None:
            keep_alive(above)
            self.selector.register(above, selectors.EVENT_READ, self._hear_above)
        self.open = True
        self.waiting: list[Line] = []  # in the order in which they came; not one of `lines` yet
        self.lines: dict[int, Line] = {}
        self.said: dict[int, tuple[int, str]] = {}  # how ranks failed: exit code and why
        self.deadline = 0.0
        self.code: int | None = None  # told by the process beside rank 0

    def run(self) -> None:
        while self.open or self.lines or self.said:
            decides = bool(self.said) and self.above is None
            for key, _ in self.selector.select(max(0.0, self.deadline - time.monotonic()) if decides else None):
                if not isinstance(key.data, Line):
                    key.data()
                elif key.data.socket.fileno() >= 0:  # it was not dropped a moment ago
                    self._hear(key.data)
            if self.code is not None:
                self._tell_all(self.code)
                return
            over = time.monotonic() >= self.deadline or len(self.said) == self.size
            if self.said and self.above is None and over:
                self._end_all()
                return
        if self.above is not None:
            send(self.above.socket, -1, 0, "")

    def _accept(self) -> None:
        try:
            accepted, _ = self.listener.accept()
        except OSError as error:  # gone already, if not this
            if error.errno in (errno.EMFILE, errno.ENFILE):
                self._drop_stranger()
                time.sleep(0.01)
            return
        keep_alive(accepted)
        line = Line(accepted)
        self.waiting.append(line)
        self.selector.register(accepted, selectors.EVENT_READ, line)
        if sum(one.claims < 0 for one in self.waiting) > MAX_STRANGERS + self.expected:
            self._drop_stranger()

    def _drop_stranger(self) -> None:
        for line in self.waiting:
            if line.claims < 0:
                self._drop(line)
                return

    def _close_door(self) -> None:
        """All ranks that can have chosen their line: nobody else is heard."""
        if os.read(self.door, 1):
            return
        self.open = False
        self.selector.unregister(self.door)
        self.selector.unregister(self.listener)
        self.listener.close()
        for line in list(self.waiting):
            self._drop(line)

    def _hear(self, line: Line) -> None:
        """What a rank says, or that it is gone."""
        there = line.receive()
        if line.rank < 0 and not self._joins(line):
            if not there:
                self._drop(line)
            return
        for said in line.messages():
            if said["end"]:
                line.failed = True
                self._failed(line.rank if said["rank"] < 0 else said["rank"], int(said["end"]), str(said["message"]))
            else:
                self._drop(line)
                return
        if not there:
            self._drop(line)
            # Where only the process that watches a host was killed, the ranks there say so and go on.
            if not line.failed and (line.silent or not line.of_host):
                self._failed(line.rank, 1, "")

    def _joins(self, line: Line) -> bool:
        """Answers who shows to be a rank; whether that rank has chosen this line."""
        if line.claims < 0 and len(line.data) >= 20:
            rank = struct.unpack(">I", line.data[16:20])[0]
            rank, line.of_host = rank & ~OF_HOST, bool(rank & OF_HOST)
            if line.data[:16] == self.secret and rank < self.size:
                line.claims, line.data = rank, line.data[20:]
                with contextlib.suppress(OSError):  # it has chosen another one
                    line.socket.sendall(b"+")
            else:
                self._drop(line)
                return False
        if line.claims < 0 or line.data[:1] != b"+" or line.claims in self.lines:
            return False
        line.rank, line.data = line.claims, line.data[1:]
        self.waiting.remove(line)
        self.lines[line.rank] = line
        with contextlib.suppress(OSError):  # it is gone already, which is heard next
            line.socket.sendall(b"+")
        return True

    def _hear_above(self) -> None:
        """The exit code; or the process beside rank 0 is gone, and this one decides for its host alone."""
        assert self.above is not None
        if self.above.receive():
            if len(self.above.data) >= 4:
                self.code = struct.unpack(">I", self.above.data[:4])[0]
            return
        silent = self.above.silent
        self.selector.unregister(self.above.socket)
        self.above.socket.close()
        self.above, self.deadline = None, time.monotonic() + GRACE_S
        if silent:
            self._failed(0, 1, "")

    def _drop(self, line: Line) -> None:
        """Hears no more from a line."""
        self.selector.unregister(line.socket)
        if line.rank < 0:
            self.waiting.remove(line)
        else:
            del self.lines[line.rank]
        line.socket.close()

    def _failed(self, rank: int, code: int, why: str) -> None:
        if not self.said:
            self.deadline = time.monotonic() + (GRACE_S if why else 0.0)
        self.said[rank] = (code, why)
        if self.above is not None:
            send(self.above.socket, rank, code, why)

    def _end_all(self) -> None:
        rank = next(iter(self.said))
        code, why = self.said[rank]
        if why:
            alike = len(self.said) == self.size and len({text for _, text in self.said.values()}) == 1
            say(why if alike else named(rank, self.size, why))
        self._tell_all(code)
        if not why:
            self.launcher.say_after(named(rank, self.size, KILLED))

    def _tell_all(self, code: int) -> None:
        for line in self.lines.values():
            with contextlib.suppress(OSError):  # it is gone
                line.socket.sendall(struct.pack(">I", code))
            line.socket.close()


class Launcher:
    """The mpirun above this process, if there is one on this host.

    Where a rank is killed mpirun ends, and with it the way that standard error takes from here to the terminal or file
    that a person looks at. So that one is opened in time, and written to once mpirun has said what it has to say.
    """

    NAMES = ("mpirun", "mpiexec", "mpiexec.hydra", "orterun", "prterun", "prte", "poprun")

    def __init__(self) -> None:
        self.pid, self.output = 0, -1
        pid = os.getppid()
        while pid > 1:
            name, parent = _process(pid)
            if name in self.NAMES:
                self.pid = pid
            pid = parent
        if self.pid:
            with contextlib.suppress(OSError):  # of another user, or a socket
                self.output = os.open(f"/proc/{self.pid}/fd/2", os.O_WRONLY | os.O_APPEND | os.O_NOCTTY)

    def say_after(self, message: str) -> None:
        """Says it when the launcher has ended, or does not end; at once where there is none."""
        if self.output < 0:
            say(message)
            return
        os.close(2)  # it leads through the launcher, which waits until nobody can write to it
        patience = time.monotonic() + LAUNCHER_S
        while time.monotonic() < patience and _process(self.pid)[0] in self.NAMES:
            time.sleep(0.02)
        say(message, self.output)


def _process(pid: int) -> tuple[str, int]:
    """Name and parent of a process; nothing where it is gone, or only waited for."""
    try:
        with Path(f"/proc/{pid}/stat").open() as file:
            text = file.read()
    except OSError:
        return "", 0
    name, _, rest = text.partition("(")[2].rpartition(")")
    state, parent = rest.split()[:2]
    return ("" if state == "Z" else name), int(parent)


def named(rank: int, size: int, message: str) -> str:
    """A message that names the rank it comes from."""
    return message if message.startswith("rank ") else f"rank {rank}/{size}: {message}"


def say(message: str, output: int = 2, kind: str = "error") -> None:
    os.write(output, f"sparsesnn: {kind}: {message}\n".encode(errors="backslashreplace"))


def keep_alive(line: socket.socket) -> None:
    """A host that goes down is noticed in two minutes; nobody waits for one that takes no message."""
    line.settimeout(5.0)
    line.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in ((socket.TCP_KEEPIDLE, 60), (socket.TCP_KEEPINTVL, 10), (socket.TCP_KEEPCNT, 6)):
        line.setsockopt(socket.IPPROTO_TCP, option, value)


def send(line: socket.socket, rank: int, code: int, message: str) -> None:
    """Says how a rank ends (0: well); -1 stands for whoever the line belongs to. Nothing is said where nobody listens."""
    text = json.dumps({"rank": rank, "end": code, "message": message[: MAX_MESSAGE // 8]}).encode()
    with contextlib.suppress(OSError):
        line.sendall(struct.pack(">I", len(text)) + text)


def open_many_files() -> int:
    """Raises the number of files that this process may open as far as it can, for connections are files; returns it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        soft = hard
    return sys.maxsize if soft == resource.RLIM_INFINITY else soft


def main() -> None:
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    most = open_many_files()
    told = os.read(0, 24)
    listener, *others = [socket.socket(fileno=int(text)) for text in sys.argv[1:]]
    if len(told) == 24:  # else the rank that started this is gone
        size, expected = struct.unpack(">II", told[16:])
        if expected + OWN_FILES > most:
            few = f"the process that watches the ranks needs {expected:,} connections and {OWN_FILES} files more, but may open {most:,} files"
            say(
                f"{few}; raise the limit (ulimit -Hn): where a rank without a connection fails, only the launcher can end the others",
                kind="warning",
            )
        Watch(listener, told[:16], size, expected, door=0, above=others[0] if others else None).run()


if __name__ == "__main__":
    main()
