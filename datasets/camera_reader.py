"""Events of one camera file, decoded by the package faery: the script of a process that may crash or hang.

`event_files` starts it. The decoders are native code, and a damaged file can lead them anywhere. So they run here, with limits on
memory and on the time between two blocks of events, which the system enforces: SIGALRM ends a process that does not handle it,
even inside native code. It imports nothing from sparsesnn, which would take seconds. Nothing is pickled.

Standard input: one line of JSON, `{"path", "type" (faery's word), "modules" (sys.path), "seconds"}`.
Standard output: `{"sensor": [width, height]}`, then per block `{"n": n}` and the bytes of t int64[n] (microseconds), x and y uint16[n],
p uint8[n]; at last `{"done": true}` or `{"error": text}`.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import sys
from collections.abc import Iterator
from typing import Any, BinaryIO

#: most events of a block
BLOCK = 1 << 16
#: bytes of an event in a block
EVENT_BYTES = 8 + 2 + 2 + 1
#: address space beyond that of the imported packages, in addition to the size of the file
MEMORY = 512 << 20
#: CPU seconds of a file, and bytes of it that take one more
CPU_SECONDS, CPU_BYTES = 120, 1_000_000


def limit(n_bytes: int) -> None:
    """Limits memory and CPU time to the needs of decoding such a file, and disables core files."""
    with open("/proc/self/statm") as file:  # noqa: PTH123  pathlib is not loaded
        here = int(file.read().split()[0]) * resource.getpagesize()
    for kind, most in (
        (resource.RLIMIT_AS, here + MEMORY + n_bytes),
        (resource.RLIMIT_CPU, CPU_SECONDS + n_bytes // CPU_BYTES),
        (resource.RLIMIT_CORE, 0),
    ):
        hard = resource.getrlimit(kind)[1]
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(kind, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))


def blocks(stream: Any, seconds: float) -> Iterator[tuple[int, bytes]]:
    """The events of a stream of faery, some at a time; the clock runs while the decoder works, and rests while a reader is slow."""
    import numpy as np

    packets = iter(stream)
    while True:
        signal.setitimer(signal.ITIMER_REAL, seconds)
        packet = next(packets, None)
        signal.setitimer(signal.ITIMER_REAL, 0)
        if packet is None:
            return
        for k in range(0, len(packet), BLOCK):
            some = packet[k : k + BLOCK]
            columns = ((some["t"], np.int64), (some["x"], np.uint16), (some["y"], np.uint16), (some["on"], np.uint8))
            yield len(some), b"".join(values.astype(dtype).tobytes() for values, dtype in columns)


def serve(request: Any, out: BinaryIO) -> None:
    """Writes the events of the file that the request names."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, request["seconds"])
    import faery

    limit(os.stat(request["path"]).st_size)  # noqa: PTH116
    stream = faery.events_stream_from_file(request["path"], file_type=request["type"])
    say(out, {"sensor": [int(side) for side in stream.dimensions()]})
    for n, data in blocks(stream, request["seconds"]):
        say(out, {"n": n})
        out.write(data)
        out.flush()
    say(out, {"done": True})


def say(out: BinaryIO, message: Any) -> None:
    """Writes a line of JSON."""
    out.write(json.dumps(message).encode() + b"\n")
    out.flush()


def main() -> None:
    """Answers one request. Output of a decoder goes to standard error, not among the events."""
    request = json.loads(sys.stdin.readline())
    sys.path[:] = request["modules"]
    with os.fdopen(os.dup(1), "wb") as out:
        os.dup2(2, 1)
        try:
            serve(request, out)
        except BrokenPipeError:
            os._exit(0)  # no one reads on
        except BaseException as error:  # a panic of native code is no Exception
            say(out, {"error": f"{error}" or type(error).__name__})


if __name__ == "__main__":
    main()
