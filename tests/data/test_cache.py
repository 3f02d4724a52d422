from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given
from hypothesis import strategies as st

from sparsesnn.datasets import EventSet, cache
from sparsesnn.errors import CacheError, DataError

PARAMETERS = {"name": "toy", "split": "train", "dt_us": 1.0, "n_steps": 6}


def make(
    seed: int = 0, n_samples: int = 5, n_neurons: int = 11, n_steps: int = 6, duplicates: str = "binary"
) -> EventSet:
    rng = np.random.default_rng(seed)
    events = [(rng.uniform(-1, n_steps + 1, n), rng.integers(0, n_neurons, n)) for n in range(n_samples)]
    return EventSet.from_events(
        events,
        np.arange(n_samples) % 3,
        n_neurons=n_neurons,
        n_steps=n_steps,
        dt_us=1.0,
        duplicates=duplicates,
        n_classes=3,
        groups={"speakers": np.arange(n_samples) * 7},
        description={"name": "toy", "classes": ["a", "ü"], "dt_us": 0.1},
    )


def assert_same(one: EventSet, other: EventSet) -> None:
    assert (one.values is None) == (other.values is None)
    for name in ("ids", "n_spikes", "labels", "sample_starts", *(["values"] if one.values is not None else [])):
        a, b = getattr(one, name), getattr(other, name)
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(a, b)
    assert one.groups.keys() == other.groups.keys()
    for name in one.groups:
        np.testing.assert_array_equal(one.groups[name], other.groups[name])
    for name in ("n_neurons", "n_classes", "n_lost", "n_merged", "n_steps"):
        assert getattr(one, name) == getattr(other, name)
    assert dict(one.description) == dict(other.description)


def build_never() -> EventSet:
    raise AssertionError("the cache should have been read")


@pytest.fixture
def written(tmp_path) -> Path:
    """A cache file of `make()`."""
    cache.load_or_build(PARAMETERS, make, tmp_path)
    return cache.cache_path(tmp_path, PARAMETERS)


@given(
    seed=st.integers(0, 99),
    n_samples=st.integers(0, 5),
    n_neurons=st.sampled_from([1, 11, 300, 65_537]),
    duplicates=st.sampled_from(["binary", "count"]),
)
def test_round_trip_is_the_identity(tmp_path_factory, seed, n_samples, n_neurons, duplicates):
    path = tmp_path_factory.mktemp("cache") / "set.safetensors"
    event_set = make(seed, n_samples, n_neurons, duplicates=duplicates)
    cache.write(path, "key", event_set)
    assert_same(cache.read(path, "key"), event_set)
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]


def test_is_built_once_and_then_mapped(tmp_path):
    first = cache.load_or_build(PARAMETERS, make, tmp_path)
    second = cache.load_or_build(PARAMETERS, build_never, tmp_path)
    assert_same(first, make())
    assert_same(second, make())
    # views of the mapped file: nothing was copied, nothing can be written
    assert not second.ids.flags.owndata
    assert not second.ids.flags.writeable
    second.batch([4, 0]).validate()


def test_any_change_of_the_parameters_is_another_file(tmp_path, monkeypatch):
    changes = [{}, {"dt_us": 2.0}, {"n_steps": 7}, {"split": "test"}, {"name": "other"}, {"source": {"size": 3}}]
    paths = {cache.cache_path(tmp_path, {**PARAMETERS, **change}) for change in changes}
    assert len(paths) == len(changes)
    reordered = dict(reversed(PARAMETERS.items()))
    assert cache.cache_path(tmp_path, reordered) == cache.cache_path(tmp_path, PARAMETERS)
    monkeypatch.setattr(cache, "FORMAT_VERSION", cache.FORMAT_VERSION + 1)
    assert cache.cache_path(tmp_path, PARAMETERS) not in paths


def test_source_identity_tells_versions_of_a_file_apart(tmp_path):
    path = tmp_path / "source.bin"
    path.write_bytes(bytes(200_000))
    os.utime(path, ns=(5, 5))
    first = cache.source_identity(path)
    assert cache.source_identity(path) == first
    for change in (lambda: os.utime(path, ns=(6, 6)), lambda: path.write_bytes(bytes(200_001))):
        change()
        assert cache.source_identity(path) != first
    for place in (0, 199_999):  # same size, same time: head and tail
        content = bytearray(200_000)
        content[place] = 1
        path.write_bytes(content)
        os.utime(path, ns=(5, 5))
        assert cache.source_identity(path) != first
    with pytest.raises(DataError, match=r"absent: cannot be read .*check the path"):
        cache.source_identity(tmp_path / "absent")


def test_every_truncation_is_detected(written):
    content = written.read_bytes()
    for length in [0, 1, 7, 8, 9, 100, *range(200, len(content), 17), len(content) - 1]:
        written.write_bytes(content[:length])
        with pytest.raises(CacheError, match="delete it, and it will be made again"):
            cache.read(written, None, check_content=False)
    written.write_bytes(content + b"\0")
    with pytest.raises(CacheError, match="bytes of arrays but describes"):
        cache.read(written, None, check_content=False)


def test_every_flipped_bit_is_detected(written):
    content = written.read_bytes()
    whole = make()
    for place in range(len(content)):
        damaged = bytearray(content)
        damaged[place] ^= 1 << (place % 8)
        written.write_bytes(damaged)
        try:
            event_set = cache.read(written, cache.cache_key(PARAMETERS))
        except CacheError:
            continue
        # a change of the header's padding, blanks, is the only one that leaves the result as it was
        assert_same(event_set, whole)
        assert content[place : place + 1] == b" "


def rewrite(path: Path, **changes: object) -> None:
    """The file again, with arrays or metadata exchanged and a checksum that agrees."""
    with safetensors.safe_open(path, "np") as file:
        metadata = dict(file.metadata())
        arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  not a mapping
    for name, value in changes.items():
        (arrays if isinstance(value, np.ndarray) else metadata)[name] = value
    metadata["checksum"] = cache._checksum(metadata, arrays)
    path.write_bytes(safetensors.numpy.save(arrays, metadata))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"key": "other"}, "was made with other parameters"),
        ({"format": "999"}, "has format '999'; this version reads"),
        ({"n_neurons": "4"}, "ids run from .* allowed: 0 to 3"),
        ({"n_neurons": "many"}, "holds no event set .ValueError"),
        ({"n_classes": "1"}, "labels run from 0 to 2"),
        ({"description": "{"}, "holds no event set .JSONDecodeError"),
        ({"labels": np.zeros(4, np.int64)}, r"labels is int64\[4\]; for 5 samples"),
        ({"n_spikes": np.zeros((5, 6), np.uint8)}, "the lists hold 0 spikes"),
        ({"ids": np.zeros(3, np.float64)}, "describes the array 'ids' as .*F64"),
    ],
)
def test_files_that_were_made_otherwise_are_detected(written, changes, message):
    rewrite(written, **changes)
    with pytest.raises(CacheError, match=message):
        cache.read(written, cache.cache_key(PARAMETERS))


VERSION = {"format": str(cache.FORMAT_VERSION)}


def with_header(header: object) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text


def entry(dtype: object, shape: object, offsets: object) -> dict[str, object]:
    return {
        "__metadata__": VERSION,
        "ids": {"dtype": dtype, "shape": shape, "data_offsets": offsets},
    }


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            (2**63).to_bytes(8, "little") + bytes(50),
            "claims a header of 9223372036854775808 bytes but has only 58 in all",
        ),
        (with_header(b"\x80\x04]."), "header that is not JSON"),  # a pickle
        (with_header(b"[" * 100_000), "header that is not JSON"),
        (with_header([]), "header without metadata"),
        (with_header({}), "header without metadata"),
        (with_header({"__metadata__": {"format": 1}}), "header without metadata"),
        (with_header(entry("U8", [2**62, 2**62], [0, 0])), "claims"),
        (with_header(entry("U8", [1], [0, 2**70])), "claims"),
        (with_header(entry("U8", [-1, -1], [0, 1])) + b"1", "claims"),
        (with_header(entry("U8", "x", [0, 1])) + b"1", "describes the array 'ids'"),
        (with_header(entry("U8", [1], [0, 1, 2])) + b"1", "describes the array 'ids'"),
        (with_header(entry(["U8"], [1], [0, 1])) + b"1", "describes the array 'ids'"),
        (with_header({"__metadata__": VERSION, "ids": 3}), "describes the array 'ids' as 3"),
        (with_header({"__metadata__": VERSION}), "content that does not match|holds no event set"),
        (with_header({"__metadata__": {"format": "1"}}), "has format '1'; this version reads 4"),
    ],
)
def test_hostile_headers_are_errors(tmp_path, content, message):
    path = tmp_path / "set.safetensors"
    path.write_bytes(content)
    with pytest.raises(CacheError, match=message):
        cache.read(path, None)
    with pytest.raises(CacheError):
        cache.verify(path)


def test_a_damaged_file_is_made_anew_with_a_warning(written):
    content = written.read_bytes()
    for damaged in (content[:-3], content[:-1] + bytes([content[-1] ^ 1]), b""):
        written.write_bytes(damaged)
        with pytest.raises(CacheError, match="delete it"):
            cache.verify(written)
        with pytest.warns(UserWarning, match=r"delete it.*; doing so now$") as said:
            assert_same(cache.load_or_build(PARAMETERS, make, written.parent), make())
        assert len(said) == 1
        cache.verify(written)
        assert_same(cache.load_or_build(PARAMETERS, build_never, written.parent), make())


def test_verify_of_an_absent_file(tmp_path):
    with pytest.raises(CacheError, match="cannot be read"):
        cache.verify(tmp_path / "absent")


def test_a_folder_that_cannot_be_written_is_a_warning(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.warns(UserWarning, match="this run continues without it; set SPARSESNN_CACHE"):
        event_set = cache.load_or_build(PARAMETERS, make, tmp_path / "file" / "cache")
    assert_same(event_set, make())


def test_without_a_home_there_is_no_cache(monkeypatch):
    def no_home(self):
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("SPARSESNN_CACHE", raising=False)
    monkeypatch.setattr(Path, "expanduser", no_home)
    with pytest.warns(UserWarning, match="no folder for the event cache"):
        assert_same(cache.load_or_build(PARAMETERS, make), make())


def test_the_folder_comes_from_the_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("SPARSESNN_CACHE", str(tmp_path / "there"))
    cache.load_or_build(PARAMETERS, make)
    assert cache.cache_path(tmp_path / "there", PARAMETERS).is_file()


@pytest.mark.parametrize("old", [True, False])
@pytest.mark.filterwarnings("ignore:.*doing so now:UserWarning")
def test_a_full_disk_or_an_interrupt_leaves_the_old_state(tmp_path, monkeypatch, old):
    path = cache.cache_path(tmp_path, PARAMETERS)
    if old:
        path.write_bytes(b"old")

    def full(descriptor):
        raise OSError(errno.ENOSPC, "No space left on device")

    def interrupted(descriptor):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", full)
    with pytest.warns(UserWarning, match=r"cannot be written \(No space left on device\)"):
        assert_same(cache.load_or_build(PARAMETERS, make, tmp_path), make())
    monkeypatch.setattr(os, "fsync", interrupted)
    with pytest.raises(KeyboardInterrupt):
        cache.load_or_build(PARAMETERS, make, tmp_path)
    assert [(entry.name, entry.read_bytes()) for entry in tmp_path.iterdir()] == ([(path.name, b"old")] if old else [])


def test_what_killed_processes_left_is_removed_after_a_day(tmp_path):
    stale, recent = tmp_path / ".a.safetensors.1.x.tmp", tmp_path / ".a.safetensors.2.x.tmp"
    stale.write_bytes(b"half")
    recent.write_bytes(b"half")
    os.utime(stale, (time.time() - 2 * 24 * 3600,) * 2)
    cache.load_or_build(PARAMETERS, make, tmp_path)
    assert not stale.exists()
    assert recent.exists()


@pytest.mark.filterwarnings("ignore:.*another process is making:UserWarning")
def test_many_threads_that_build_and_read_at_once_agree(tmp_path):
    errors: list[BaseException] = []

    def work() -> None:
        try:
            for _ in range(10):
                assert_same(cache.load_or_build(PARAMETERS, make, tmp_path), make())
                cache.write(cache.cache_path(tmp_path, PARAMETERS), cache.cache_key(PARAMETERS), make())
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert len(list(tmp_path.iterdir())) == 1


WRITE_FOR_EVER = """
import sys
from pathlib import Path
import numpy as np
from sparsesnn.datasets import EventSet, cache
n = 40_000
event_set = EventSet.from_events([(np.arange(n) % 50, np.arange(n) // 50)], [0], n_neurons=n, n_steps=50, dt_us=1.0)
path = Path(sys.argv[1])
print("ready", flush=True)
while True:
    cache.write(path, "key", event_set)
"""


@pytest.mark.slow
def test_two_processes_that_write_until_they_are_killed_leave_a_whole_file(tmp_path):
    path = tmp_path / "set.safetensors"
    command = [sys.executable, "-c", WRITE_FOR_EVER, str(path)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    writers = [
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment, cwd=tmp_path) for _ in range(2)
    ]
    n_read = 0
    try:
        for writer in writers:
            assert writer.stdout is not None
            assert writer.stdout.readline() == "ready\n"
        stop = time.monotonic() + 1.0
        while time.monotonic() < stop or n_read < 10:
            assert time.monotonic() < stop + 600
            if path.exists():
                assert cache.read(path, "key").ids.size == 40_000
                n_read += 1
    finally:
        for writer in writers:
            writer.kill()
            writer.communicate()
    cache.verify(path)


# ---- several builders, killed builders, a full disk ---------------------------------------------------------------

BUILD = """
import os, sys, time
from pathlib import Path
import numpy as np
from sparsesnn.datasets import EventSet, cache
folder, log, finish = (Path(path) for path in sys.argv[1:])

def build():
    with log.open("a") as file:
        file.write(f"{os.getpid()}\\n")
    while not finish.exists():
        time.sleep(0.01)
    return EventSet.from_events([(np.arange(300) % 7, np.arange(300))], [0], n_neurons=300, n_steps=7, dt_us=1.0)

print("ready", flush=True)
sys.stdin.readline()
event_set = cache.load_or_build({"name": "toy", "split": "train"}, build, folder)
print(event_set.ids.size, event_set.path is not None, flush=True)
"""


def builder(folder: Path, name: str, finish: str) -> subprocess.Popen[str]:
    """A process that builds the same set on request, and finishes when the file `finish` exists.

    `folder`/builds lists the processes that built it, `folder`/`name` holds the standard error of this one.
    """
    command = [sys.executable, "-c", BUILD, *(str(folder / part) for part in ("cache", "builds", finish))]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with (folder / name).open("w") as errors:
        process = subprocess.Popen(command, text=True, env=environment, cwd=folder, stderr=errors, **pipes)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def go(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


def wait_for(condition: Callable[[], bool]) -> None:
    stop = time.monotonic() + 300
    while not condition():
        assert time.monotonic() < stop, "it does not happen"
        time.sleep(0.01)


@pytest.mark.slow
def test_of_two_builders_one_works_and_the_other_waits(tmp_path):
    names = ("first", "second")
    builders = [builder(tmp_path, name, "finish") for name in names]
    for process in builders:
        go(process)
    wait_for(lambda: any("waiting for it" in (tmp_path / name).read_text() for name in names))
    (tmp_path / "finish").touch()
    said = [process.communicate(timeout=600)[0] for process in builders]
    assert said == ["300 True\n"] * 2
    assert len((tmp_path / "builds").read_text().split()) == 1
    assert sorted("waiting for it" in (tmp_path / name).read_text() for name in names) == [False, True]
    (file,) = (tmp_path / "cache").iterdir()  # neither lock nor temporary file is left
    cache.verify(file)


@pytest.mark.slow
def test_who_waits_for_a_builder_that_is_killed_builds(tmp_path):
    first = builder(tmp_path, "first", "never")
    go(first)
    wait_for((tmp_path / "builds").exists)
    (tmp_path / "cache" / ".toy-train-0123456789abcdef.safetensors.1.aa.tmp").write_bytes(b"of another set")
    (lock,) = (tmp_path / "cache").glob("*.lock")
    half = tmp_path / "cache" / lock.name.replace(".lock", ".1.aa.tmp")
    half.write_bytes(b"half")  # as if it had begun to write
    second = builder(tmp_path, "second", "builds")
    go(second)
    wait_for(lambda: "waiting for it" in (tmp_path / "second").read_text())
    with pytest.raises(subprocess.TimeoutExpired):
        second.wait(0.3)
    first.kill()
    first.communicate()
    out, _ = second.communicate(timeout=600)
    assert out == "300 True\n"
    assert len((tmp_path / "builds").read_text().split()) == 2
    left = sorted(path.name for path in (tmp_path / "cache").iterdir())
    assert len(left) == 2
    assert left[0] == ".toy-train-0123456789abcdef.safetensors.1.aa.tmp"  # perhaps still being written
    cache.verify(tmp_path / "cache" / left[1])


@pytest.mark.slow
def test_a_builder_killed_at_any_moment_leaves_a_whole_set_or_none(tmp_path):
    """Many sets in one process, killed while it builds, writes and renames them; then another one finishes the work."""
    program = """
import sys
from pathlib import Path
import numpy as np
from sparsesnn.datasets import EventSet, cache
n = 20_000
make = lambda: EventSet.from_events([(np.arange(n) % 9, np.arange(n))], [0], n_neurons=n, n_steps=9, dt_us=1.0)
print("ready", flush=True)
for k in range(int(sys.argv[2])):
    cache.load_or_build({"name": "toy", "split": "train", "k": k}, make, Path(sys.argv[1]))
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}

    def start(n_sets: int) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", program, str(tmp_path / "cache"), str(n_sets)]
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment, cwd=tmp_path)

    processes = [start(100_000) for _ in range(3)]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    wait_for(lambda: len(list((tmp_path / "cache").glob("*.safetensors"))) > 5)
    for process in processes:
        process.kill()
        process.communicate()
    whole = list((tmp_path / "cache").glob("*.safetensors"))
    for path in whole:
        cache.verify(path)
    last = start(len(whole) + 1)
    assert last.communicate(timeout=600)[0] == "ready\n"
    assert last.returncode == 0
    assert list((tmp_path / "cache").glob(".*.tmp")) == []


FULL = """
import resource, signal, sys
from pathlib import Path
import numpy as np
from sparsesnn.datasets import EventSet, cache
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))  # a write beyond it fails, as on a full disk
build = lambda: EventSet.from_events([(np.arange(9000) % 9, np.arange(9000))], [0], n_neurons=9000, n_steps=9, dt_us=1.0)
event_set = cache.load_or_build({"name": "toy", "split": "train"}, build, Path(sys.argv[1]))
print(event_set.ids.size, event_set.path)
"""


@pytest.mark.slow
def test_a_disk_that_fills_up_while_writing_leaves_nothing(tmp_path):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    command = [sys.executable, "-c", FULL, str(tmp_path / "cache")]
    ended = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=tmp_path, check=True)
    assert ended.stdout == "9000 None\n"
    assert "the event cache cannot be written (File too large)" in ended.stderr
    assert list((tmp_path / "cache").iterdir()) == []


def test_errors_of_the_conversion_are_passed_on_and_nothing_is_left(tmp_path):
    def fails() -> EventSet:
        raise DataError("file.bin: is damaged")

    with pytest.raises(DataError, match=r"file\.bin: is damaged"):
        cache.load_or_build(PARAMETERS, fails, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_folders_without_locks_are_used_without(tmp_path, monkeypatch):
    def no_locks(descriptor, operation):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("fcntl.flock", no_locks)
    assert_same(cache.load_or_build(PARAMETERS, make, tmp_path), make())
    assert_same(cache.load_or_build(PARAMETERS, build_never, tmp_path), make())


# ---- cached files --------------------------------------------------------------------------------------------------


def test_entries_describe_what_is_there_and_clear_removes_only_that(tmp_path):
    event_set = cache.load_or_build(PARAMETERS, make, tmp_path)
    cache.load_or_build({**PARAMETERS, "split": "test"}, make, tmp_path)
    cache.load_or_build({**PARAMETERS, "name": "other"}, make, tmp_path)
    assert event_set.path is not None
    damaged = tmp_path / "toy-valid-0123456789abcdef.safetensors"
    damaged.write_bytes(b"half a file")
    foreign = [tmp_path / name for name in ("model.safetensors", "toy-train-0123456789abcdef.txt", ".hidden")]
    for path in foreign:
        path.write_bytes(b"not ours")
    for name in (".toy-train-0123456789abcdef.safetensors.1.aa.tmp", ".toy-train-0123456789abcdef.safetensors.lock"):
        (tmp_path / name).write_bytes(b"")

    found = {(entry.name, entry.split): entry for entry in cache.entries(tmp_path)}
    assert found.keys() == {("toy", "train"), ("toy", "test"), ("toy", "valid"), ("other", "train")}
    entry = found["toy", "train"]
    assert entry.path == event_set.path
    assert (entry.n_samples, entry.n_steps, entry.n_spikes) == (5, 6, event_set.ids.size)
    assert entry.numbers == {"n_neurons": 11, "n_classes": 3, "n_lost": event_set.n_lost, "n_merged": 0}
    assert entry.n_bytes == event_set.path.stat().st_size
    assert entry.description == event_set.description
    assert "claims a header" in str(found["toy", "valid"].fault)
    assert [entry.name for entry in cache.entries(tmp_path, "other")] == ["other"]

    assert len(cache.clear(tmp_path, "toy")) == 3
    assert {path.name for path in tmp_path.iterdir()} == {found["other", "train"].path.name, *(p.name for p in foreign)}
    assert event_set.batch([4]).validate().n_samples == 1  # mapped files stay readable
    assert len(cache.clear(tmp_path)) == 1
    assert cache.entries(tmp_path) == cache.entries(tmp_path / "absent") == []


def test_tree_identity_tells_versions_of_a_folder_apart(tmp_path):
    names = ["a/1.bin", "b/2.bin"]
    for name in names:
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_bytes(b"12345")
        os.utime(tmp_path / name, ns=(5, 5))
    first = cache.tree_identity(tmp_path, names)
    assert (first["n_files"], first["size"]) == (2, 10)
    assert cache.tree_identity(tmp_path, names) == first
    assert cache.tree_identity(tmp_path, names[:1]) != first
    assert cache.without_times(first) == {key: first[key] for key in first if key != "mtime_ns"}
    os.utime(tmp_path / names[0], ns=(6, 6))
    later = cache.tree_identity(tmp_path, names)
    assert later != first
    assert cache.without_times(later) == cache.without_times(first)
    (tmp_path / names[0]).write_bytes(b"1234")
    (tmp_path / names[1]).write_bytes(b"123456")
    assert cache.without_times(cache.tree_identity(tmp_path, names)) != cache.without_times(first)
    with pytest.raises(DataError, match=r"absent: cannot be read .*check its permissions"):
        cache.tree_identity(tmp_path, ["absent"])
