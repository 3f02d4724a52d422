from __future__ import annotations

import errno
import json
import logging
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given
from hypothesis import strategies as st

from sparsesnn.datasets import EventSet, cache
from sparsesnn.errors import CacheError, DataError

PARAMETERS = {"name": "toy", "split": "train", "dt_us": 1.0, "n_steps": 6}


def make(seed: int = 0, n_samples: int = 5, n_units: int = 11, n_steps: int = 6) -> EventSet:
    rng = np.random.default_rng(seed)
    events = [(rng.uniform(-1, n_steps + 1, n), rng.integers(0, n_units, n)) for n in range(n_samples)]
    return EventSet.from_events(
        events,
        np.arange(n_samples) % 3,
        n_units=n_units,
        n_steps=n_steps,
        dt_us=1.0,
        n_classes=3,
        groups={"speakers": np.arange(n_samples) * 7},
        description={"name": "toy", "classes": ["a", "ü"], "dt_us": 0.1},
    )


def assert_same(one: EventSet, other: EventSet) -> None:
    for name in ("ids", "n_spikes", "labels", "sample_starts"):
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


@given(seed=st.integers(0, 99), n_samples=st.integers(0, 5), n_units=st.sampled_from([1, 11, 300, 65_537]))
def test_round_trip_is_the_identity(tmp_path_factory, seed, n_samples, n_units):
    path = tmp_path_factory.mktemp("cache") / "set.safetensors"
    event_set = make(seed, n_samples, n_units)
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
        with pytest.raises(CacheError, match="delete it, it will be made anew"):
            cache.read(written, None, check_content=False)
    written.write_bytes(content + b"\0")
    with pytest.raises(CacheError, match="bytes of arrays and describes"):
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
        # only the padding of the header, blanks, may change without a change of what is read
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
        ({"format": "999"}, "has the format '999', this version reads"),
        ({"n_neurons": "4"}, "ids run from .* allowed: 0 to 3"),
        ({"n_neurons": "many"}, "holds no event set .ValueError"),
        ({"n_classes": "1"}, "labels run from 0 to 2"),
        ({"description": "{"}, "holds no event set .JSONDecodeError"),
        ({"labels": np.zeros(4, np.int64)}, r"labels is int64\[4\]; 5 samples"),
        ({"n_spikes": np.zeros((5, 6), np.uint8)}, "the lists hold 0 spikes"),
        ({"ids": np.zeros(3, np.float32)}, "describes the array 'ids' as .*F32"),
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
        ((2**63).to_bytes(8, "little") + bytes(50), "claims a header of 9223372036854775808 bytes and has 58 in all"),
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
        (with_header({"__metadata__": VERSION}), "does not have the content|holds no event set"),
        (with_header({"__metadata__": {"format": "1"}}), "has the format '1', this version reads 2"),
    ],
)
def test_hostile_headers_are_errors(tmp_path, content, message):
    path = tmp_path / "set.safetensors"
    path.write_bytes(content)
    with pytest.raises(CacheError, match=message):
        cache.read(path, None)
    with pytest.raises(CacheError):
        cache.verify(path)


def test_a_damaged_file_is_made_anew_with_a_warning(written, caplog):
    content = written.read_bytes()
    for damaged in (content[:-3], content[:-1] + bytes([content[-1] ^ 1]), b""):
        written.write_bytes(damaged)
        with pytest.raises(CacheError, match="delete it"):
            cache.verify(written)
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            assert_same(cache.load_or_build(PARAMETERS, make, written.parent), make())
        assert "the cache is made anew" in caplog.text
        cache.verify(written)
        assert_same(cache.load_or_build(PARAMETERS, build_never, written.parent), make())


def test_verify_of_an_absent_file(tmp_path):
    with pytest.raises(CacheError, match="cannot be read"):
        cache.verify(tmp_path / "absent")


def test_a_folder_that_cannot_be_written_is_a_warning(tmp_path, caplog):
    (tmp_path / "file").write_text("in the way")
    with caplog.at_level(logging.WARNING):
        event_set = cache.load_or_build(PARAMETERS, make, tmp_path / "file" / "cache")
    assert_same(event_set, make())
    assert "this run goes on without; set SPARSESNN_CACHE" in caplog.text


def test_without_a_home_there_is_no_cache(monkeypatch, caplog):
    def no_home(self):
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("SPARSESNN_CACHE", raising=False)
    monkeypatch.setattr(Path, "expanduser", no_home)
    with caplog.at_level(logging.WARNING):
        assert_same(cache.load_or_build(PARAMETERS, make), make())
    assert "no folder for the event cache" in caplog.text


def test_the_folder_comes_from_the_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("SPARSESNN_CACHE", str(tmp_path / "there"))
    cache.load_or_build(PARAMETERS, make)
    assert cache.cache_path(tmp_path / "there", PARAMETERS).is_file()


@pytest.mark.parametrize("old", [True, False])
def test_a_full_disk_or_an_interrupt_leaves_the_old_state(tmp_path, monkeypatch, caplog, old):
    path = cache.cache_path(tmp_path, PARAMETERS)
    if old:
        path.write_bytes(b"old")

    def full(descriptor):
        raise OSError(errno.ENOSPC, "No space left on device")

    def interrupted(descriptor):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", full)
    with caplog.at_level(logging.WARNING):
        assert_same(cache.load_or_build(PARAMETERS, make, tmp_path), make())
    assert "No space left on device" in caplog.text
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
event_set = EventSet.from_events([(np.arange(n) % 50, np.arange(n) // 50)], [0], n_units=n, n_steps=50, dt_us=1.0)
path = Path(sys.argv[1])
print("ready", flush=True)
while True:
    cache.write(path, "key", event_set)
"""


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
        while time.monotonic() < stop or not n_read:
            if path.exists():
                assert cache.read(path, "key").ids.size == 40_000
                n_read += 1
    finally:
        for writer in writers:
            writer.kill()
            writer.communicate()
    cache.verify(path)
    assert n_read > 3
