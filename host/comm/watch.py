"""A process on every host of a run that detects and reports how the ranks there end; `lifeline.py` starts it and connects to it.

The process of rank 0's host decides. Those of other hosts keep one connection to it, forward how their ranks end, and receive
the exit code. So no process holds more connections than its host has ranks plus the number of hosts.

It is a separate process, which imports only the standard library and waits for nothing else: launchers kill the ranks of a run
within milliseconds after the first one dies, so there is no time to wait for a rank that is computing. On standard input it
receives its secret, the number of ranks of the run, and the number of connections to expect. When that input ends, no further
rank will connect: it closes its port. It ends with the ranks.

It ignores the signals that ask a run to end. Slurm sends them to every process of a step, including this one, and the ranks
respond with a checkpoint: meanwhile this process must still tell a slow rank from a dead one.
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

#: seconds to wait for other ranks' messages once one has failed: often all fail alike
GRACE_S = 0.3
#: seconds within which a launcher ends once a rank was killed
LAUNCHER_S = 2.0
#: most connections without the secret, in addition to the expected ranks; beyond that the oldest is closed
MAX_STRANGERS = 64
#: files open besides connections: standard streams, listener, selector, the connection to rank 0's host, the launcher's
OWN_FILES = 8
#: most bytes of a message
MAX_MESSAGE = 65_536
#: added to the number of a rank by a process that represents all ranks of its host
OF_HOST = 1 << 31
#: signals that a scheduler, a launcher or a user may send to all processes of a run
SIGNALS = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
KILLED = "exited without an error message (killed, or its host went down)"


@dataclass(eq=False)
class Line:
    """A connection; a rank may open several, to different addresses; `rank` is -1 until the rank has chosen this one.

    Args:
        claims: the rank that identified itself and received an answer; -1 before.
        of_host: whether the other end is the watch process of another host; then `rank` is its first rank.
        failed: whether it reported a failure.
        silent: whether the other end stopped answering, such as when its host goes down; then no kernel closes the connection.
    """

    socket: socket.socket
    claims: int = -1
    rank: int = -1
    of_host: bool = False
    failed: bool = False
    silent: bool = False
    data: bytes = b""

    def receive(self) -> bool:
        """Reads available data; whether the other end is still connected."""
        try:
            part = self.socket.recv(MAX_MESSAGE)
        except OSError as error:
            part = b""
            self.silent = not isinstance(error, ConnectionError)
        self.data += part
        return bool(part)

    def messages(self) -> Iterator[Any]:
        """The complete messages received."""
        while len(self.data) >= 4 and len(self.data) >= (end := 4 + struct.unpack(">I", self.data[:4])[0]):
            text, self.data = self.data[4:end], self.data[end:]
            yield json.loads(text)


class Watch:
    """Waits until all ranks of a host have ended; on rank 0's host, until all other hosts have ended, too.

    Args:
        listener: the socket to which ranks connect.
        secret: 16 bytes that ranks must send first, before their rank as 4 bytes, plus `OF_HOST` if they represent a host.
            The answer is "+"; they send "+" on the one connection that they keep, and a second "+" confirms it.
        size: number of ranks of the run.
        expected: number of connections that ranks keep.
        door: a file descriptor that ends once no further rank will connect.
        above: the connection to the process of rank 0's host; None there.
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
        listener.setblocking(False)  # a client may be gone before it is accepted
        self.selector.register(listener, selectors.EVENT_READ, self._accept)
        self.selector.register(door, selectors.EVENT_READ, self._close_door)
        if above is not None:
            keep_alive(above)
            self.selector.register(above, selectors.EVENT_READ, self._receive_above)
        self.open = True
        self.waiting: list[Line] = []  # in order of arrival; not in `lines` yet
        self.lines: dict[int, Line] = {}
        self.failures: dict[int, tuple[int, str]] = {}  # by rank: exit code and reason
        self.deadline = 0.0
        self.code: int | None = None  # from the process of rank 0's host

    def run(self) -> None:
        while self.open or self.lines or self.failures:
            decides = bool(self.failures) and self.above is None
            for key, _ in self.selector.select(max(0.0, self.deadline - time.monotonic()) if decides else None):
                if not isinstance(key.data, Line):
                    key.data()
                elif key.data.socket.fileno() >= 0:  # not just dropped
                    self._receive(key.data)
            if self.code is not None:
                self._tell_all(self.code)
                return
            over = time.monotonic() >= self.deadline or len(self.failures) == self.size
            if self.failures and self.above is None and over:
                self._end_all()
                return
        if self.above is not None:
            send(self.above.socket, -1, 0, "")

    def _accept(self) -> None:
        try:
            accepted, _ = self.listener.accept()
        except OSError as error:  # otherwise the client is gone
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
        """Accepts no more connections: all ranks that can have chosen theirs."""
        if os.read(self.door, 1):
            return
        self.open = False
        self.selector.unregister(self.door)
        self.selector.unregister(self.listener)
        self.listener.close()
        for line in list(self.waiting):
            self._drop(line)

    def _receive(self, line: Line) -> None:
        """Handles a rank's messages, or its end."""
        connected = line.receive()
        if line.rank < 0 and not self._joins(line):
            if not connected:
                self._drop(line)
            return
        for message in line.messages():
            if message["end"]:
                line.failed = True
                self._failed(
                    line.rank if message["rank"] < 0 else message["rank"], int(message["end"]), str(message["message"])
                )
            else:
                self._drop(line)
                return
        if not connected:
            self._drop(line)
            # If only a host's watch process was killed, the ranks there report it and continue.
            if not line.failed and (line.silent or not line.of_host):
                self._failed(line.rank, 1, "")

    def _joins(self, line: Line) -> bool:
        """Answers a client that identifies itself as a rank; whether that rank has chosen this connection."""
        if line.claims < 0 and len(line.data) >= 20:
            rank = struct.unpack(">I", line.data[16:20])[0]
            rank, line.of_host = rank & ~OF_HOST, bool(rank & OF_HOST)
            if line.data[:16] == self.secret and rank < self.size:
                line.claims, line.data = rank, line.data[20:]
                with contextlib.suppress(OSError):  # the rank has chosen another connection
                    line.socket.sendall(b"+")
            else:
                self._drop(line)
                return False
        if line.claims < 0 or line.data[:1] != b"+" or line.claims in self.lines:
            return False
        line.rank, line.data = line.claims, line.data[1:]
        self.waiting.remove(line)
        self.lines[line.rank] = line
        with contextlib.suppress(OSError):  # it is gone already, which the next read shows
            line.socket.sendall(b"+")
        return True

    def _receive_above(self) -> None:
        """Reads the exit code; if the process of rank 0's host is gone, this one decides for its own host."""
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
        """Stops reading a connection."""
        self.selector.unregister(line.socket)
        if line.rank < 0:
            self.waiting.remove(line)
        else:
            del self.lines[line.rank]
        line.socket.close()

    def _failed(self, rank: int, code: int, why: str) -> None:
        if not self.failures:
            self.deadline = time.monotonic() + (GRACE_S if why else 0.0)
        self.failures[rank] = (code, why)
        if self.above is not None:
            send(self.above.socket, rank, code, why)

    def _end_all(self) -> None:
        rank = next(iter(self.failures))
        code, why = self.failures[rank]
        if why:
            alike = len(self.failures) == self.size and len({text for _, text in self.failures.values()}) == 1
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

    If a rank is killed, mpirun ends, and with it the path of standard error from here to the user's terminal or file. So
    that file is opened in time, and written to once mpirun has printed its messages.
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
            with contextlib.suppress(OSError):  # another user's, or a socket
                self.output = os.open(f"/proc/{self.pid}/fd/2", os.O_WRONLY | os.O_APPEND | os.O_NOCTTY)

    def say_after(self, message: str) -> None:
        """Prints the message once the launcher has ended, or fails to end; at once if there is none."""
        if self.output < 0:
            say(message)
            return
        os.close(2)  # it leads through the launcher, which waits until all writers have closed it
        patience = time.monotonic() + LAUNCHER_S
        while time.monotonic() < patience and _process(self.pid)[0] in self.NAMES:
            time.sleep(0.02)
        say(message, self.output)


def _process(pid: int) -> tuple[str, int]:
    """Name and parent of a process; empty if it is gone or a zombie."""
    try:
        with Path(f"/proc/{pid}/stat").open() as file:
            text = file.read()
    except OSError:
        return "", 0
    name, _, rest = text.partition("(")[2].rpartition(")")
    state, parent = rest.split()[:2]
    return ("" if state == "Z" else name), int(parent)


def named(rank: int, size: int, message: str) -> str:
    """A message that names its rank."""
    return message if message.startswith("rank ") else f"rank {rank}/{size}: {message}"


def say(message: str, output: int = 2, kind: str = "error") -> None:
    os.write(output, f"sparsesnn: {kind}: {message}\n".encode(errors="backslashreplace"))


def keep_alive(line: socket.socket) -> None:
    """Makes the kernel notice within two minutes that a host went down, and limits a send to five seconds."""
    line.settimeout(5.0)
    line.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in ((socket.TCP_KEEPIDLE, 60), (socket.TCP_KEEPINTVL, 10), (socket.TCP_KEEPCNT, 6)):
        line.setsockopt(socket.IPPROTO_TCP, option, value)


def send(line: socket.socket, rank: int, code: int, message: str) -> None:
    """Reports how a rank ends (0: without error); rank -1 stands for the owner of the connection. Ignores a closed connection."""
    text = json.dumps({"rank": rank, "end": code, "message": message[: MAX_MESSAGE // 8]}).encode()
    with contextlib.suppress(OSError):
        line.sendall(struct.pack(">I", len(text)) + text)


def open_many_files() -> int:
    """Raises the limit on open files as far as possible, because connections are files; returns it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        soft = hard
    return sys.maxsize if soft == resource.RLIM_INFINITY else soft


def main() -> None:
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    most = open_many_files()
    header = os.read(0, 24)
    listener, *others = [socket.socket(fileno=int(text)) for text in sys.argv[1:]]
    if len(header) == 24:  # else the rank that started this is gone
        size, expected = struct.unpack(">II", header[16:])
        if expected + OWN_FILES > most:
            few = f"the process that watches the ranks needs {expected:,} connections and {OWN_FILES} files more, but may open {most:,} files"
            say(
                f"{few}; raise the limit (ulimit -Hn): if a rank without a connection fails, only the launcher can end the others",
                kind="warning",
            )
        Watch(listener, header[:16], size, expected, door=0, above=others[0] if others else None).run()


if __name__ == "__main__":
    main()
