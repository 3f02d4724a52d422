"""Recordings of event cameras: files that the makers' and other libraries write are read exactly; hostile ones end in one sentence."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sparsesnn.datasets import event_files
from sparsesnn.datasets.event_files import LATE_US, Events, opened, read_events
from sparsesnn.errors import DataError, MissingDependencyError

Columns = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]


def events(
    n: int = 2003, *, seed: int = 0, size: tuple[int, int] = (346, 260), begin: int = 0, seconds: float = 3
) -> Columns:
    """t, x, y, p of n events, in order of time."""
    rng = np.random.default_rng(seed)
    t = begin + np.sort(rng.integers(0, int(seconds * 1e6), n))
    return t, rng.integers(0, size[0], n), rng.integers(0, size[1], n), rng.integers(0, 2, n)


def write(path: Path, columns: Columns, size: tuple[int, int] = (346, 260), **options: Any) -> Path:
    """A file by faery's encoder."""
    faery = pytest.importorskip("faery", reason="the extra cameras is not installed")
    table = np.zeros(columns[0].size, faery.EVENTS_DTYPE)
    for name, values in zip(("t", "x", "y", "on"), columns, strict=True):
        table[name] = values
    faery.events_stream_from_array(table, size).to_file(path, **options)
    return path


def assert_same(found: Events, columns: Columns) -> None:
    for ours, theirs in zip(found[:4], columns, strict=True):
        assert ours.tolist() == theirs.tolist()


# ---- files by other libraries -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("begin", [0, 1_700_000_000_000_000], ids=["zero", "unix"])
def test_aedat4_by_its_maker(tmp_path: Path, begin: int) -> None:
    pytest.importorskip("faery", reason="the extra cameras is not installed")
    dv = pytest.importorskip("dv_processing")
    columns, store = events(begin=begin), dv.EventStore()
    for t, x, y, p in zip(*(values.tolist() for values in columns), strict=True):
        store.push_back(t, x, y, bool(p))
    path = tmp_path / "made.aedat4"
    writer = dv.io.MonoCameraWriter(str(path), dv.io.MonoCameraWriter.EventOnlyConfig("camera", (346, 260)))
    writer.writeEvents(store)
    del writer  # closes the file
    found = read_events(path)
    assert_same(found, columns)
    assert found.sensor == (346, 260)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("a.aedat4", {"compression": ("lz4", 1)}),
        ("a.aedat4", {"compression": ("zstd", 3)}),
        ("a.raw", {"version": "evt3"}),
        ("A.RAW", {"version": "evt2", "file_type": "evt"}),
        ("a.dat", {"version": "dat2"}),
    ],
)
def test_formats(tmp_path: Path, name: str, options: dict[str, Any]) -> None:
    columns = events(200_003, begin=77, seconds=40)  # EVT3's clock of 24 bits wraps twice
    found = read_events(write(tmp_path / name, columns, **options))
    assert_same(found, columns)
    assert found.sensor == (346, 260)
    assert not found.wraps.moved, "the decoder knows its format's clock"


def test_one_event(tmp_path: Path) -> None:
    columns = tuple(np.array([k]) for k in (5, 3, 2, 1))
    for name in ("a.aedat4", "a.raw", "a.dat"):
        assert_same(read_events(write(tmp_path / name, columns)), columns)


def test_a_missing_package_names_its_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "a.raw", events())
    monkeypatch.setattr(event_files.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(
        MissingDependencyError, match=r"a\.raw needs the package 'faery'.*pip install 'sparsesnn\[cameras\]'"
    ):
        read_events(path)


# ---- hostile files ---------------------------------------------------------------------------------------------------


def children() -> set[str]:
    """The processes of this one, zombies included."""
    return set(Path(f"/proc/self/task/{os.getpid()}/children").read_text().split())


@pytest.fixture
def nothing_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Neither processes nor files remain."""
    spare, before = tmp_path / "spare", children()
    spare.mkdir()
    monkeypatch.setenv("TMPDIR", str(spare))
    files = len(list(Path("/proc/self/fd").iterdir()))
    yield
    assert children() == before
    assert list(spare.iterdir()) == []
    assert len(list(Path("/proc/self/fd").iterdir())) == files


@pytest.mark.parametrize("name", ["a.aedat4", "a.raw", "a.dat", "a.txt"])
def test_damaged_files_end_in_one_sentence(tmp_path: Path, nothing_left: None, name: str) -> None:
    path, noise = tmp_path / name, random.Random(0).randbytes
    if name == "a.txt":
        path.write_text("t_us x y p\n" + "\n".join(" ".join(map(str, row)) for row in zip(*events(900), strict=True)))
    else:
        write(path, events())
    whole = path.read_bytes()
    head = 800 if name == "a.aedat4" else 90
    cases = {
        "empty": b"",
        "zeros": bytes(4000),
        "noise": noise(4000),
        "noise after the header": whole[:head] + noise(50_000),
        "only a beginning": whole[:20],
        "one letter": b"%",
    }
    if name == "a.aedat4":
        cases |= {"half": whole[: len(whole) // 2], "all but the end": whole[:-30]}
    for case, content in cases.items():
        path.write_bytes(content)
        with pytest.raises(DataError, match=rf"^\S*{name}: ") as caught:
            read_events(path)
        assert "\n" not in str(caught.value), case
        assert len(str(caught.value)) < 500, case


@pytest.mark.parametrize("name", ["a.raw", "a.dat"])
def test_a_file_cut_short_has_the_events_before(tmp_path: Path, name: str) -> None:
    """These formats have neither a length nor an end."""
    columns = events()
    path = write(tmp_path / name, columns)
    path.write_bytes(path.read_bytes()[:-701])
    found = read_events(path)
    assert 1000 < found.t_us.size < 2003
    assert_same(found, tuple(values[: found.t_us.size] for values in columns))  # type: ignore[arg-type]


def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str) -> Path:
    """A decoder instead of faery, whose stream is the generator `packets`; and a file for it."""
    folder = tmp_path / "toy"
    folder.mkdir()
    (folder / "faery.py").write_text(
        textwrap.dedent(
            """
            import ctypes, os, signal, sys, time
            import numpy as np
            TYPE = np.dtype([("t", "<u8"), ("x", "<u2"), ("y", "<u2"), ("on", "?")])
            def some(n, **values):
                table = np.zeros(n, TYPE)
                for name, value in values.items():
                    table[name] = value
                return table
            class Stream:
                def dimensions(self):
                    return 20, 10
                def __iter__(self):
                    return packets()
            def events_stream_from_file(path, file_type):
                return Stream()
            """
        )
        + "def packets():\n"
        + textwrap.indent(textwrap.dedent(body), "    ")
    )
    monkeypatch.syspath_prepend(folder)
    path = tmp_path / "a.raw"
    path.write_bytes(b"% evt 3.0\n")
    return path


@pytest.mark.slow
@pytest.mark.parametrize(
    ("body", "facts"),
    [
        ("yield some(9)\nos.kill(os.getpid(), signal.SIGSEGV)", "its reader ended with signal 11"),
        ("yield some(9)\nctypes.string_at(0)", "its reader ended with signal 11"),
        ("yield some(9)\nos._exit(3)", "its reader ended with status 3"),
        ("yield some(9)\nos.kill(os.getpid(), signal.SIGKILL)", "its reader ended with signal 9"),
        ("yield some(9)\ntime.sleep(99)", r"no progress in 1\.5 seconds"),
        ("yield some(9)\nctypes.PyDLL(None).sleep(99)", r"no progress in 1\.5 seconds"),
        ("yield some(9)\nwhile True: pass", r"no progress in 1\.5 seconds"),
        ("while True: yield some(1 << 20)", "more than 4,194,3.. events"),
        ("yield some(9)\nkept = b'x' * (1 << 31)", "MemoryError"),
        ("yield some(9)\nraise BaseException('a panic\\n of native code')", "a panic of native code"),
        ("yield some(9)\nprint('noise' * 99)\nsys.stdout.flush()\nraise ValueError('odd')", "odd"),
        ("yield some(9, x=20)", r"x = 20; allowed: 0 to 19"),
        ("yield some(9, y=10)", r"y = 10; allowed: 0 to 9"),
        ("yield some(9, t=1 << 60)", r"at 1\.15292e\+18 us; allowed: up to 2\^53"),
        ("yield some(9, t=[*range(8), 1 << 63])", r"allowed: up to 2\^53"),
        ("yield some(2, t=[5_000_000, 4_000_000])", r"time goes back by 1 s at event 1; allowed: 10 ms"),
        ("yield some(3, t=[5_000_000, 4_993_000, 4_986_000])", r"time goes back by 0\.014 s at event 2"),
        ("return\nyield", "holds no events"),
        ("yield some(0)", "holds no events"),
    ],
)
def test_decoders_that_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nothing_left: None, body: str, facts: str
) -> None:
    monkeypatch.setattr(event_files, "SECONDS", 1.5)
    path = toy(tmp_path, monkeypatch, body)
    with pytest.raises(DataError, match=rf"a\.raw: .*{facts}") as caught:
        read_events(path)
    assert "\n" not in str(caught.value)


def test_a_decoder_that_prints_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nothing_left: None) -> None:
    path = toy(tmp_path, monkeypatch, "os.write(1, b'a warning')\nprint('another')\nyield some(3, t=[1, 2, 3], x=7)")
    assert_same(read_events(path), (np.array([1, 2, 3]), np.full(3, 7), np.zeros(3, int), np.zeros(3, int)))


def test_a_reader_that_stops_early_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nothing_left: None
) -> None:
    path = toy(tmp_path, monkeypatch, "while True: yield some(100)")
    with opened(path) as file:
        assert next(file.blocks()).t_us.size == 100

    def interrupted() -> None:
        with opened(path) as file:
            next(file.blocks())
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()


@pytest.mark.slow
def test_a_slow_caller_is_no_hang(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock of the decoder rests while it waits to be read."""
    monkeypatch.setattr(event_files, "SECONDS", 1.0)
    path = toy(tmp_path, monkeypatch, "for k in range(40): yield some(20_000, t=k)")  # more than pipes hold
    with opened(path) as file:
        blocks = file.blocks()
        next(blocks)
        subprocess.run(["sleep", "2.5"], check=True)
        assert sum(block.t_us.size for block in blocks) == 39 * 20_000


@pytest.mark.slow
def test_a_killed_caller_takes_its_reader_along(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = toy(tmp_path, monkeypatch, "while True: yield some(1000)")
    script = (
        "import sys\nfrom pathlib import Path\nfrom sparsesnn.datasets.event_files import opened\n"
        f"sys.path.insert(0, {str(tmp_path / 'toy')!r})\n"
        f"with opened(Path({str(path)!r})) as file:\n    next(file.blocks())\n"
        "    print(Path('/proc/self/task', str(__import__('os').getpid()), 'children').read_text(), flush=True)\n    input()\n"
    )
    caller = subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert caller.stdout is not None
    reader = caller.stdout.readline().split()[0]
    caller.kill()
    caller.communicate()
    for _ in range(100):
        state = Path("/proc", reader, "stat")
        if not state.exists() or state.read_text().rpartition(")")[2].split()[0] == "Z":
            return
        subprocess.run(["sleep", "0.1"], check=True)
    raise AssertionError("the reader of a killed process still runs")


@pytest.mark.parametrize("make", ["folder", "pipe", "missing", "ending"])
def test_no_file(tmp_path: Path, make: str) -> None:
    path = tmp_path / ("a.xyz" if make == "ending" else "a.raw")
    if make == "folder":
        path.mkdir()
    elif make == "pipe":
        os.mkfifo(path)
    elif make == "ending":
        path.touch()
    facts = {"folder": "is a folder", "pipe": "is a pipe", "missing": "No such file", "ending": r"ends in '\.xyz'"}
    with pytest.raises(DataError, match=facts[make]):
        read_events(path)


# ---- clocks ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bits", [24, 31, 32])
@pytest.mark.parametrize("block", [1, 7, 2003])
def test_clocks_that_wrap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bits: int, block: int) -> None:
    n = 2003 if bits == 24 else 31
    period = 1 << bits
    t = np.sort(np.random.default_rng(1).integers(0, 100 * 10**6, n)) + period - 50_000_000
    body = f"t = np.array({(t % period).tolist()})\nfor k in range(0, {n}, {block}): yield some(t[k : k + {block}].size, t=t[k : k + {block}])"
    found = read_events(toy(tmp_path, monkeypatch, body))
    moved = (found.t_us - t) / period
    assert np.unique(moved).size == 1, "by whole periods, the same for all"
    assert dict(found.wraps.moved) == {float(period): 1}


def test_events_that_are_a_little_late_are_sorted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    late = int(LATE_US)
    body = f"yield some(4, t=[0, {late + 5}, 5, {late + 3}], x=[0, 1, 2, 3])"
    found = read_events(toy(tmp_path, monkeypatch, body))
    assert (found.t_us.tolist(), found.x.tolist()) == ([0, 5, late + 3, late + 5], [0, 2, 3, 1])
