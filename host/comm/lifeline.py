"""A line between all ranks beside MPI, by which each learns at once that another one has failed.

A rank that waits for a message of MPI hears nothing of one that died, and what the launcher does about it depends on the
launcher. So every rank keeps a TCP connection to a small process on its host (`watch.py`), and each of these one to the process
beside rank 0, over which nothing goes while all is well. A rank that fails says why; of one that is killed the kernel closes the
connection. The process beside rank 0 prints a message that names the rank, and all ranks are told to end, which they do
without asking Python or MPI.

These processes listen on the host's own loop; the one beside rank 0, where there are other hosts, on all its addresses, until the
ranks have come. Whoever connects must know a secret, which MPI brings to the ranks, and which they send to no address that is
one of their own host where another host is meant.

Where no connection comes about (a firewall between hosts) rank 0 says so, and the launcher remains: mpirun and
srun --kill-on-bad-exit end all ranks when one ends badly. The same holds from the moment when somebody kills the process.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
import selectors
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np

from sparsesnn.host.comm import watch
from sparsesnn.host.comm.base import Communicator

#: Seconds until one of the addresses must have answered. It does within milliseconds, and then nobody waits. But on a loaded
#: machine the process that answers takes seconds to start, and a network sends a lost packet again after 1, 3, 7 and 15 s.
#: A firewall that drops packets costs a run so long, once, when it starts.
CONNECT_S = 20.0
#: seconds after which another address is tried beside one that has not answered
MOMENT_S = 0.5
#: seconds that a failed rank waits to be told to end
PATIENCE_S = 5.0
LOOP = "127.0.0.1"
LOST = "the process that watches the ranks of this host was killed; the run goes on, but if a rank fails, only the launcher can end the others"


class Lifeline:
    """One rank's end of it. `close` when the run is over, `fail` when it has failed; both by all ranks that can.

    Args:
        world: all ranks; the constructor is collective.
        ends: called with the exit code where this process must end because a rank failed; by default it does not return.

    Attributes:
        line: the connection; None where there is none.
        started: the process that watches this host, on the rank that started it; None on others.
    """

    def __init__(self, world: Communicator, ends: Callable[[int], Any] = os._exit) -> None:
        self.rank, self.size, self.ends = world.rank, world.size, ends
        self.over = False
        secret = _secret(world)
        hosts = world.all_texts(_host())
        leaders = dict(reversed([(host, r) for r, host in enumerate(hosts)]))  # the first rank of each host
        leader, n_here = leaders[hosts[self.rank]], hosts.count(hosts[self.rank])
        self.leads = self.rank == leader
        self.started: _Started | None = None
        above = None
        if self.rank == 0:
            several = len(leaders) > 1
            self.started = _Started(secret, self.size, n_here + len(leaders) - 1, "" if several else LOOP)
        place = json.dumps([_addresses(), self.started.port]) if self.started else ""
        addresses, port = json.loads(world.all_texts(place)[0])
        if self.leads and self.rank:
            own = _addresses()  # at these anybody may listen but rank 0's host
            above = _connect([a for a in addresses if a not in own], port, secret, self.rank | watch.OF_HOST)
            self.started = _Started(secret, self.size, n_here, LOOP, above)
        ports = world.all_gather(np.array([self.started.port if self.started else 0], np.int64))
        self.line = _connect([LOOP], int(ports[leader][0]), secret, self.rank)
        reached = world.all_gather(np.array([self.line is not None, self.rank == 0 or above is not None], np.int64))
        if self.started is not None:  # all are connected that can
            self.started.close_door()
        lost = [str(r) for r, host in enumerate(hosts) if not (reached[r][0] and reached[leaders[host]][1])]
        if lost and self.rank == 0:
            warnings.warn(
                f"rank{'s' * (len(lost) > 1)} {', '.join(lost[:8])}{' …' * (len(lost) > 8)} of {self.size} cannot reach "
                f"the host of rank 0 (TCP port {port}, addresses {', '.join(addresses[1:]) or addresses[0]}): where a rank "
                "fails, only the launcher can end the others; let TCP pass between the hosts",
                stacklevel=2,
            )
        self.listener = threading.Thread(target=self._listen, name="sparsesnn-lifeline", daemon=True)
        if self.line is not None:
            self.listener.start()

    def close(self) -> None:
        """The run is over on this rank: from now on nobody misses it."""
        self.over = True
        self._say(0, "")

    def fail(self, code: int, message: str) -> None:
        """This rank has failed; ends all ranks, this one too, with the exit code."""
        self._say(code, message)
        if self.line is not None:
            self.listener.join(PATIENCE_S)
        if self.line is None or self.listener.is_alive():  # nobody is there to say it
            watch.say(watch.named(self.rank, self.size, message))
        self.ends(code)

    def suspect(self, code: int, message: str) -> None:
        """MPI failed on this rank, most likely because another one is gone: the word of that one goes before."""
        if self.line is not None:
            self.listener.join(PATIENCE_S / 2)
        self.fail(code, message)

    def _say(self, code: int, message: str) -> None:
        line = self.line
        if line is None:
            return
        watch.send(line, self.rank, code, message)
        if not code:
            with contextlib.suppress(OSError):  # there is nobody any more
                line.shutdown(socket.SHUT_RDWR)

    def _listen(self) -> None:
        """Waits for the exit code; without one the process that watches is gone, and the rank goes on."""
        assert self.line is not None
        told = _read(self.line, 4)
        if self.over:
            return
        if told is not None:
            self.ends(struct.unpack(">I", told)[0])
            return
        self.line.close()
        self.line = None
        if self.leads:
            watch.say(watch.named(self.rank, self.size, LOST), kind="warning")


def _secret(world: Communicator) -> bytes:
    """The same random bytes on all ranks."""
    own = np.frombuffer(b"" if world.rank else secrets.token_bytes(16), np.uint8)
    secret: bytes = world.all_gather(own)[0].tobytes()
    return secret


class _Started:
    """The process that watches this host, in a session of its own, so that it outlives the ranks by a moment.

    Args:
        secret, size, expected: what it is told; see `watch.Watch`.
        address: where it listens; "" for all addresses of this host.
        above: this host's connection to the process beside rank 0, which is given away; None there, and where there is none.

    Attributes:
        port, pid: where it listens, and its number.
    """

    def __init__(
        self, secret: bytes, size: int, expected: int, address: str, above: socket.socket | None = None
    ) -> None:
        with contextlib.ExitStack() as stack:
            listener = stack.enter_context(socket.create_server((address, 0), backlog=expected))
            given = [listener] if above is None else [listener, stack.enter_context(above)]
            self.port = int(listener.getsockname()[1])
            # A new process has its parent's mask: no signal ends this one before it can ignore them.
            mask = signal.pthread_sigmask(signal.SIG_BLOCK, watch.SIGNALS)
            try:
                # neither -m nor this package: both would import PyTorch
                process = subprocess.Popen(
                    [sys.executable, "-S", "-E", watch.__file__, *(str(one.fileno()) for one in given)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.DEVNULL,
                    pass_fds=[one.fileno() for one in given],
                    start_new_session=True,
                )
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        assert process.stdin is not None
        self.input = process.stdin
        self.input.write(secret + struct.pack(">II", size, expected))
        self.input.flush()
        self.pid = process.pid
        process.returncode = 0  # it ends by itself, after this process: nobody waits for it

    def close_door(self) -> None:
        """Nobody else will connect."""
        self.input.close()


def _connect(addresses: list[str], port: int, secret: bytes, rank: int) -> socket.socket | None:
    """The line over the first address that answers; the next one is tried when one refuses, or says nothing for a moment."""
    deadline = time.monotonic() + CONNECT_S
    found = None
    with selectors.DefaultSelector() as waiting:
        untried, next_at = list(addresses), 0.0
        while found is None and (untried or waiting.get_map()) and (now := time.monotonic()) < deadline:
            if untried and now >= next_at:
                line = socket.socket()
                line.setblocking(False)
                line.connect_ex((untried.pop(0), port))
                waiting.register(line, selectors.EVENT_WRITE)
                next_at = now + MOMENT_S
            for key, _ in waiting.select((min(deadline, next_at) if untried else deadline) - now):
                line = cast(socket.socket, key.fileobj)
                answered = _greet(line, secret + struct.pack(">I", rank) if key.events & selectors.EVENT_WRITE else b"")
                if answered is None:
                    waiting.modify(line, selectors.EVENT_READ)
                    continue
                waiting.unregister(line)
                if answered and found is None:
                    found = line
                else:
                    line.close()
                    next_at = 0.0
        for key in list(waiting.get_map().values()):
            cast(socket.socket, key.fileobj).close()
    if found is None:
        return None
    found.settimeout(CONNECT_S)
    found.sendall(b"+")  # of several lines this is the one: the others may close
    _read(found, 1)
    found.settimeout(None)
    return found


def _greet(line: socket.socket, hello: bytes) -> bool | None:
    """Says who we are, if there is something to say, else hears the answer: whether it is the right one, None before."""
    try:
        if hello:
            line.sendall(hello)  # fails where the connection did
            return None
        return line.recv(1) == b"+"
    except OSError:
        return False


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


def _addresses() -> list[str]:
    """IPv4 addresses under which this host may be reached; its own loop first."""
    found = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            try:  # SIOCGIFADDR
                answer = fcntl.ioctl(probe.fileno(), 0x8915, struct.pack("256s", name.encode()[:15]))
            except OSError:
                continue  # an interface without an address
            found.append(socket.inet_ntoa(answer[20:24]))
    return sorted(dict.fromkeys(found), key=lambda address: not address.startswith("127."))


def _host() -> str:
    """The same text on processes that share a loop (127.0.0.1), another one on others: containers of a host may have their own."""
    texts = _addresses()
    for path in ("/proc/sys/kernel/random/boot_id", "/proc/self/ns/net"):
        with contextlib.suppress(OSError):
            texts.append(str(Path(path).stat().st_ino) if path.endswith("net") else Path(path).read_text().strip())
    return " ".join([socket.gethostname(), *texts])
