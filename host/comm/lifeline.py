"""A line between all ranks beside MPI, by which each learns at once that another one has failed.

A rank that waits for a message of MPI hears nothing of one that died, and what the launcher does about it depends on the
launcher. So every rank keeps a TCP connection to rank 0, which nobody writes to while all is well. A rank that fails says
why; of one that is killed the kernel closes the connection. Rank 0 prints the message, which names the rank, tells the
others to end, and ends; should rank 0 itself be gone, every other rank sees that and ends by itself.

Where no connection comes about (a firewall between hosts) the launcher remains: mpirun and srun --kill-on-bad-exit end all
ranks when one ends badly.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from sparsesnn.host.comm.base import Communicator

#: seconds that rank 0 waits for what other ranks have to say, once one has failed: often all fail alike
GRACE_S = 0.3
#: seconds to connect to one of rank 0's addresses
CONNECT_S = 2.0
#: what a rank that ends says, in JSON: {"end": code, "message": text}; longer texts are cut
MAX_MESSAGE = 65_536


class Lifeline:
    """One rank's end. `close` when the run is over, `fail` when it has failed; both by all ranks that can.

    Args:
        world: all ranks; its constructor is collective.
        ends: called with the exit code where another rank's failure ends this process; the default does not return, and
            asks nothing of Python or MPI, which may be in the middle of a wait.
    """

    def __init__(self, world: Communicator, ends: Callable[[int], Any] = os._exit) -> None:
        self.rank, self.size, self.ends = world.rank, world.size, ends
        self.lock = threading.Lock()
        self.said: dict[int, tuple[int, str]] = {}  # rank 0: how ranks failed, by rank
        self.finished: set[int] = set()
        self.over = False
        self.lines: dict[int, socket.socket] = {}
        self.failed = threading.Event()
        secret = np.frombuffer(secrets.token_bytes(16), np.uint8).copy()
        world.broadcast(secret)
        self.secret = secret.tobytes()
        if self.rank == 0:
            listener = socket.create_server(("", 0), backlog=self.size)
            world.all_texts(json.dumps([_addresses(), listener.getsockname()[1]]))
            self._accept(listener, world)
        else:
            addresses, port = json.loads(world.all_texts("")[0])
            line = self._connect(addresses, port)
            world.barrier()  # rank 0 takes no more
            if line is not None:
                self.lines[0] = line
                threading.Thread(target=self._listen, args=(0, line), name="sparsesnn-lifeline", daemon=True).start()

    # ---- how it ends -------------------------------------------------------------------------------------------

    def close(self) -> None:
        """The run is over on this rank: from now on nobody misses it."""
        with self.lock:
            self.over = True
        for rank, line in self.lines.items():
            self._say(rank, {"end": 0, "message": ""})
            _shut(line)

    def fail(self, code: int, message: str) -> None:
        """This rank has failed; ends all ranks, this one too, with the exit code."""
        if self.rank:
            self._say(0, {"end": code, "message": message})
            if 0 in self.lines:
                time.sleep(10 * GRACE_S)  # rank 0 prints, and ends this rank before that
            self._print(_named(self.rank, self.size, message))
        else:
            self._heard(0, code, message)
            self.failed.wait(20 * GRACE_S)
        self.ends(code)

    # ---- rank 0 ------------------------------------------------------------------------------------------------

    def _accept(self, listener: socket.socket, world: Communicator) -> None:
        """Takes the connections of the other ranks, until all have tried."""

        def take() -> None:
            while True:
                try:
                    line, _ = listener.accept()
                except OSError:
                    return
                line.settimeout(CONNECT_S)
                hello = _read(line, 20)
                rank = struct.unpack(">I", hello[16:])[0] if hello is not None else 0
                if hello is None or hello[:16] != self.secret or not 0 < rank < self.size:
                    line.close()
                    continue
                line.settimeout(None)
                line.sendall(b"+")
                self.lines[rank] = line
                threading.Thread(target=self._listen, args=(rank, line), name="sparsesnn-lifeline", daemon=True).start()

        thread = threading.Thread(target=take, name="sparsesnn-lifeline", daemon=True)
        thread.start()
        world.barrier()
        listener.shutdown(socket.SHUT_RDWR)  # wakes the thread
        listener.close()
        thread.join()

    def _heard(self, rank: int, code: int, message: str) -> None:
        """A rank has failed; after a moment, in which others may say the same, all are ended."""
        with self.lock:
            first = not self.said
            self.said[rank] = (code, message)
            if not first or self.over:
                return
            if not message:  # killed: said at once, for the launcher may be about to kill this rank too
                self._print(_named(rank, self.size, ""))
        threading.Thread(target=self._end_all, name="sparsesnn-lifeline-end", daemon=True).start()

    def _end_all(self) -> None:
        time.sleep(GRACE_S)
        with self.lock:
            said = dict(self.said)
        # those that ended without a word may have been ended by a launcher, because of one that has something to say
        spoken = {r: s for r, s in said.items() if s[1]} or said
        rank = min(spoken)
        code, message = spoken[rank]
        alike = len(said) == self.size and len({text for _, text in said.values()}) == 1
        if message:
            self._print(message if alike else _named(rank, self.size, message))
        for r in self.lines:
            self._say(r, {"end": code, "message": ""})
        self.failed.set()
        self.ends(code)

    # ---- both --------------------------------------------------------------------------------------------------

    def _connect(self, addresses: list[str], port: int) -> socket.socket | None:
        for address in addresses:
            try:
                line = socket.create_connection((address, port), CONNECT_S)
                line.sendall(self.secret + struct.pack(">I", self.rank))
                if _read(line, 1) == b"+":
                    line.settimeout(None)
                    return line
                line.close()
            except OSError:
                continue
        return None

    def _listen(self, rank: int, line: socket.socket) -> None:
        """Waits for the one thing that comes over a line: how the other end ended."""
        said = _receive(line)
        if self.over:
            return
        if self.rank:
            if said is None:  # rank 0 is gone
                time.sleep(GRACE_S * (self.rank > 1))  # one of us is enough to say so
                self._print(_named(0, self.size, ""))
            if said is None or said["end"]:
                self.ends(int(said["end"]) if said is not None else 1)
        elif said is None:
            self._heard(rank, 1, "")
        elif said["end"]:
            self._heard(rank, int(said["end"]), str(said["message"]))

    def _say(self, rank: int, what: dict[str, Any]) -> None:
        line = self.lines.get(rank)
        if line is None:
            return
        text = json.dumps({**what, "message": what["message"][:MAX_MESSAGE]}).encode()
        try:
            line.sendall(struct.pack(">I", len(text)) + text)
        except OSError:
            return  # it has ended already

    def _print(self, message: str) -> None:
        sys.stderr.write(f"sparsesnn: error: {message}\n")
        sys.stderr.flush()


def _named(rank: int, size: int, message: str) -> str:
    if message.startswith("rank "):
        return message
    return f"rank {rank}/{size}: {message or 'ended without a word: it was killed, or its machine is gone'}"


def _shut(line: socket.socket) -> None:
    try:
        line.shutdown(socket.SHUT_RDWR)
    except OSError:
        return  # the other end was faster


def _read(line: socket.socket, n: int) -> bytes | None:
    """Exactly n bytes; None where the other end closed before, or does not speak."""
    data = b""
    while len(data) < n:
        try:
            part = line.recv(n - len(data))
        except OSError:
            return None
        if not part:
            return None
        data += part
    return data


def _receive(line: socket.socket) -> dict[str, Any] | None:
    head = _read(line, 4)
    n = struct.unpack(">I", head)[0] if head is not None else 0
    body = _read(line, n) if 0 < n <= 8 * MAX_MESSAGE else None
    return None if body is None else dict(json.loads(body))


def _addresses() -> list[str]:
    """IPv4 addresses under which this host may be reached; its own loop first, for ranks of the same host."""
    import fcntl

    found = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            try:  # SIOCGIFADDR
                answer = fcntl.ioctl(probe.fileno(), 0x8915, struct.pack("256s", name.encode()[:15]))
            except OSError:
                continue  # an interface without an address
            found.append(socket.inet_ntoa(answer[20:24]))
    return sorted(dict.fromkeys(found), key=lambda address: not address.startswith("127."))
