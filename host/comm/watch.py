"""The process beside rank 0 that hears how ranks end, and says so; `lifeline.py` starts it and talks to it.

A process of its own, which imports nothing but the standard library and waits for nothing else: launchers kill the ranks
of a run within milliseconds of the first one that dies, so there is no time to wait for a rank that is computing. It is
told its secret, and how many ranks there are, on standard input, and ends with the ranks.

It ignores the signals that ask a run to end. Slurm sends them to every process of a step, this one too, and the ranks answer
with a checkpoint: while they write it they need somebody who tells a slow rank from a dead one.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import socket
import struct
import sys
import time
from dataclasses import dataclass
from pathlib import Path

#: seconds to wait for what other ranks have to say, once one has failed: often all fail alike
GRACE_S = 0.3
#: seconds in which the first rank must have come
FIRST_S = 60.0
#: seconds in which a launcher ends once a rank was killed
LAUNCHER_S = 2.0
#: bytes of a message, at most
MAX_MESSAGE = 65_536
#: signals by which a scheduler, a launcher or a person asks all processes of a run to end, or tells them something
SIGNALS = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
KILLED = "exited without an error message (killed, or its host went down)"


@dataclass
class Line:
    """A connection that a rank may make over several addresses at once; `rank` is -1 until it has chosen this one.

    Args:
        claims: the rank that it showed to be, and was told that it was heard; -1 before.
    """

    socket: socket.socket
    claims: int = -1
    rank: int = -1
    data: bytes = b""


class Watch:
    """Waits until all ranks have ended.

    Args:
        listener: where ranks connect.
        secret: what they must say first, 16 bytes, before their rank as 4 bytes. They are answered "+", say "+" on the
            one connection that they keep, and are told "+" that it counts.
        size: number of ranks.
    """

    def __init__(self, listener: socket.socket, secret: bytes, size: int) -> None:
        self.listener, self.secret, self.size = listener, secret, size
        self.launcher = Launcher()
        self.selector = selectors.DefaultSelector()
        self.selector.register(listener, selectors.EVENT_READ)
        self.lines: dict[int, Line] = {}
        self.failed: list[Line] = []
        self.said: dict[int, tuple[int, str]] = {}  # how ranks failed: exit code and why
        self.deadline = time.monotonic() + FIRST_S

    def run(self) -> None:
        came = False
        while True:
            waits = bool(self.said) or not came
            events = self.selector.select(max(0.0, self.deadline - time.monotonic()) if waits else None)
            for key, _ in events:
                if key.fileobj is self.listener:
                    accepted, _ = self.listener.accept()
                    accepted.settimeout(5.0)
                    self.selector.register(accepted, selectors.EVENT_READ, Line(accepted))
                else:
                    self._hear(key.data)
            came = came or bool(self.lines)
            if self.said and (time.monotonic() >= self.deadline or len(self.said) == self.size):
                self._end_all()
                return
            if (came and not self.lines and not self.said) or (not came and time.monotonic() >= self.deadline):
                return

    def _hear(self, line: Line) -> None:
        """What a rank says, or that it is gone."""
        try:
            part = line.socket.recv(MAX_MESSAGE)
        except OSError:
            part = b""
        line.data += part
        if line.rank < 0 and not self._joins(line):
            if not part:
                self._drop(line)
            return
        length = struct.unpack(">I", line.data[:4])[0] if len(line.data) >= 4 else 1 << 32
        if len(line.data) >= 4 + length:
            said = json.loads(line.data[4 : 4 + length])
            self._drop(line, waits=bool(said["end"]))
            if said["end"]:
                self._failed(line.rank, int(said["end"]), str(said["message"]))
        elif not part:
            self._drop(line)
            self._failed(line.rank, 1, "")

    def _joins(self, line: Line) -> bool:
        """Answers who shows to be a rank; whether that rank has chosen this line."""
        if line.claims < 0 and len(line.data) >= 20:
            rank = struct.unpack(">I", line.data[16:20])[0]
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
        self.lines[line.rank] = line
        with contextlib.suppress(OSError):  # it is gone already, which is heard next
            line.socket.sendall(b"+")
        return True

    def _drop(self, line: Line, *, waits: bool = False) -> None:
        """Hears no more from a line; a rank that has failed waits to be told to end."""
        self.selector.unregister(line.socket)
        if self.lines.get(line.rank) is line:
            del self.lines[line.rank]
        if waits:
            self.failed.append(line)
        else:
            line.socket.close()

    def _failed(self, rank: int, code: int, why: str) -> None:
        if not self.said:
            self.deadline = time.monotonic() + (GRACE_S if why else 0.0)
        self.said[rank] = (code, why)

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
        for line in [*self.lines.values(), *self.failed]:
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
    os.write(output, f"sparsesnn: {kind}: {message}\n".encode())


def main() -> None:
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    told = sys.stdin.buffer.read(20)
    with socket.socket(fileno=int(sys.argv[1])) as listener:
        Watch(listener, told[:16], struct.unpack(">I", told[16:])[0]).run()


if __name__ == "__main__":
    main()
