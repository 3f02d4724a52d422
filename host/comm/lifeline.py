"""A connection between all ranks outside MPI, through which each learns at once that another one has failed.

A rank that waits for an MPI message does not notice that another rank died, and launchers react in different ways. So
every rank keeps a TCP connection to a small process on its host (`watch.py`), and each of these processes keeps one to
the process of rank 0's host; nothing is sent while all is well. A rank that fails sends the reason; if a rank is killed,
the kernel closes its connection. The process of rank 0's host prints a message that names the rank and tells all ranks to
end, which they do without involving Python or MPI.

These processes listen on the loopback interface; with several hosts, that of rank 0's host listens on all its addresses
until the ranks have connected. Clients must know a secret, which the ranks receive through MPI; to reach another host,
they never send it to an address on their own host.

If a connection fails (a firewall between hosts), rank 0 reports it, and only the launcher remains: mpirun and
srun --kill-on-bad-exit end all ranks if one exits with an error. The same holds once the process is killed.
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

#: Seconds until one of the addresses must have answered. Normally that takes milliseconds. But on a loaded machine the
#: process that answers takes seconds to start, and a network resends a lost packet after 1, 3, 7 and 15 s. A firewall
#: that drops packets delays the start of a run by this time.
CONNECT_S = 20.0
#: seconds to wait for an address before also trying the next one
MOMENT_S = 0.5
#: seconds that a failed rank waits for the order to end
PATIENCE_S = 5.0
LOOP = "127.0.0.1"
LOST = "the process that watches the ranks of this host was killed; the run continues, but if a rank fails, only the launcher can end the others"


class Lifeline:
    """One rank's end of the connection. Ranks call `close` when the run is over, `fail` when it has failed.

    Args:
        world: all ranks; the constructor is collective.
        ends: called with the exit code if this process must end because a rank failed; by default it does not return.

    Attributes:
        line: the connection; None if there is none.
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
            own = _addresses()  # rank 0's host cannot be at these
            above = _connect([a for a in addresses if a not in own], port, secret, self.rank | watch.OF_HOST)
            self.started = _Started(secret, self.size, n_here, LOOP, above)
        ports = world.all_gather(np.array([self.started.port if self.started else 0], np.int64))
        self.line = _connect([LOOP], int(ports[leader][0]), secret, self.rank)
        reached = world.all_gather(np.array([self.line is not None, self.rank == 0 or above is not None], np.int64))
        if self.started is not None:  # no further rank will connect
            self.started.close_door()
        lost = [str(r) for r, host in enumerate(hosts) if not (reached[r][0] and reached[leaders[host]][1])]
        if lost and self.rank == 0:
            warnings.warn(
                f"rank{'s' * (len(lost) > 1)} {', '.join(lost[:8])}{' …' * (len(lost) > 8)} of {self.size} cannot reach "
                f"the host of rank 0 (TCP port {port}, addresses {', '.join(addresses[1:]) or addresses[0]}): if a rank "
                "fails, only the launcher can end the others; allow TCP between the hosts",
                stacklevel=2,
            )
        self.listener = threading.Thread(target=self._listen, name="sparsesnn-lifeline", daemon=True)
        if self.line is not None:
            self.listener.start()

    def close(self) -> None:
        """Reports that the run is over on this rank, so that its end does not count as a failure."""
        self.over = True
        self._say(0, "")

    def fail(self, code: int, message: str) -> None:
        """Reports that this rank has failed; ends all ranks, including this one, with the exit code."""
        self._say(code, message)
        if self.line is not None:
            self.listener.join(PATIENCE_S)
        if self.line is None or self.listener.is_alive():  # no process prints it
            watch.say(watch.named(self.rank, self.size, message))
        self.ends(code)

    def suspect(self, code: int, message: str) -> None:
        """Reports that MPI failed on this rank, probably because another rank is gone: that one's message takes precedence."""
        if self.line is not None:
            self.listener.join(PATIENCE_S / 2)
        self.fail(code, message)

    def _say(self, code: int, message: str) -> None:
        line = self.line
        if line is None:
            return
        watch.send(line, self.rank, code, message)
        if not code:
            with contextlib.suppress(OSError):  # the other end is gone
                line.shutdown(socket.SHUT_RDWR)

    def _listen(self) -> None:
        """Waits for the exit code; if the connection ends without one, the watch process is gone and the rank continues."""
        assert self.line is not None
        answer = _read(self.line, 4)
        if self.over:
            return
        if answer is not None:
            self.ends(struct.unpack(">I", answer)[0])
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
    """The process that watches this host, in its own session, so that it briefly outlives the ranks.

    Args:
        secret, size, expected: see `watch.Watch`.
        address: the address to listen on; "" for all addresses of this host.
        above: this host's connection to the process of rank 0's host, which the new process takes over; None on rank 0's
            host, and without a connection.

    Attributes:
        port, pid: its port and process id.
    """

    def __init__(
        self, secret: bytes, size: int, expected: int, address: str, above: socket.socket | None = None
    ) -> None:
        with contextlib.ExitStack() as stack:
            listener = stack.enter_context(socket.create_server((address, 0), backlog=expected))
            given = [listener] if above is None else [listener, stack.enter_context(above)]
            self.port = int(listener.getsockname()[1])
            # A new process inherits its parent's mask: no signal can end it before it ignores them.
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
        process.returncode = 0  # it ends after this process, so no one waits for it

    def close_door(self) -> None:
        """Reports that no further rank will connect."""
        self.input.close()


def _connect(addresses: list[str], port: int, secret: bytes, rank: int) -> socket.socket | None:
    """A connection to the first address that answers; tries the next one after a refusal or a short silence."""
    deadline = time.monotonic() + CONNECT_S
    chosen = None
    with selectors.DefaultSelector() as waiting:
        untried, next_at = list(addresses), 0.0
        while chosen is None and (untried or waiting.get_map()) and (now := time.monotonic()) < deadline:
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
                if answered and chosen is None:
                    chosen = line
                else:
                    line.close()
                    next_at = 0.0
        for key in list(waiting.get_map().values()):
            cast(socket.socket, key.fileobj).close()
    if chosen is None:
        return None
    chosen.settimeout(CONNECT_S)
    chosen.sendall(b"+")  # choose this one of several connections: the others may close
    _read(chosen, 1)
    chosen.settimeout(None)
    return chosen


def _greet(line: socket.socket, hello: bytes) -> bool | None:
    """Sends `hello` and returns None; without one, reads the answer and returns whether it is the right one."""
    try:
        if hello:
            line.sendall(hello)  # fails if the connection failed
            return None
        return line.recv(1) == b"+"
    except OSError:
        return False


def _read(line: socket.socket, n: int) -> bytes | None:
    """Exactly n bytes; None if the other end closed earlier or stays silent."""
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
    """IPv4 addresses of this host; loopback first."""
    addresses = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            try:  # SIOCGIFADDR
                answer = fcntl.ioctl(probe.fileno(), 0x8915, struct.pack("256s", name.encode()[:15]))
            except OSError:
                continue  # an interface without an address
            addresses.append(socket.inet_ntoa(answer[20:24]))
    return sorted(dict.fromkeys(addresses), key=lambda address: not address.startswith("127."))


def _host() -> str:
    """A text that is equal in processes that share a loopback interface, and only there: containers may have their own."""
    texts = _addresses()
    for path in ("/proc/sys/kernel/random/boot_id", "/proc/self/ns/net"):
        with contextlib.suppress(OSError):
            texts.append(str(Path(path).stat().st_ino) if path.endswith("net") else Path(path).read_text().strip())
    return " ".join([socket.gethostname(), *texts])
