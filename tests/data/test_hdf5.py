"""HDF5 files that reach into other files, claim more than they hold, or cannot be read although they are not damaged."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sparsesnn.datasets import hdf5
from sparsesnn.datasets.recording import read
from sparsesnn.errors import DataError

h5py = pytest.importorskip("h5py")

ARRAYS = {"t_us": np.arange(6), "unit": np.arange(6), "sample": np.zeros(6, int), "label": np.array([0])}


@pytest.fixture(autouse=True)
def with_a_pipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Opening the pipe would wait for ever."""
    os.mkfifo(tmp_path / "pipe")
    monkeypatch.chdir(tmp_path)


def written(change: Callable[[Any], object], without: str = "t_us", **more: Any) -> Path:
    with h5py.File("a.h5", "w", **more) as file:
        for name, values in ARRAYS.items():
            if name != without:
                file[name] = values
        change(file)
    return Path("a.h5").absolute()


def virtual(source: str, name: str, n: int = 6) -> Any:
    layout = h5py.VirtualLayout((n,), "i8")
    layout[:6] = h5py.VirtualSource(source, name, (6,))
    return layout


def put(name: Any, value: Any) -> Callable[[Any], None]:
    def change(file: Any) -> None:
        file[name] = value

    return change


def make(name: str, *arguments: Any, **more: Any) -> Callable[[Any], object]:
    return lambda file: file.create_dataset(name, *arguments, **more)


def all_of(*changes: Callable[[Any], object]) -> Callable[[Any], None]:
    def change(file: Any) -> None:
        for one in changes:
            one(file)

    return change


def made_of(source: str, name: str, n: int = 6) -> Callable[[Any], object]:
    return lambda file: file.create_virtual_dataset("t_us", virtual(source, name, n))


ZEROS = ("/dev/zero", 0, 48)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (put("t_us", h5py.ExternalLink("pipe", "/x")), "t_us is a link to another file, 'pipe'"),
        (
            all_of(put("e", h5py.ExternalLink("pipe", "/")), put("t_us", h5py.SoftLink("/e/x"))),
            "e is a link to another file, 'pipe'",
        ),
        (make("t_us", (6,), "i8", external=[ZEROS]), "t_us lies in another file, '/dev/zero'"),
        (make("t_us", (6,), "i8", external=[("pipe", 0, 48)]), "t_us lies in another file, 'pipe'"),
        (made_of("pipe", "x"), "t_us consists of arrays of other files, such as 'pipe'"),
        (
            all_of(make("held", (6,), "i8", external=[ZEROS]), made_of(".", "held")),
            "held lies in another file, '/dev/zero'",
        ),
        (
            all_of(put("held", h5py.ExternalLink("pipe", "/x")), made_of(".", "held")),
            "held is a link to another file, 'pipe'",
        ),
        (made_of(".", "t_us"), "t_us consists of 1 arrays, 16 levels deep"),
        (made_of(".", "unit", 10**10), r"t_us claims 10,000,000,000 entries, 80,000,000,000 bytes, .*allowed: \d"),
        (all_of(put("a", h5py.SoftLink("/t_us")), put("t_us", h5py.SoftLink("/a"))), "through more than 16 others"),
        (put("t_us", h5py.SoftLink("/nothing")), "has no times"),
        (make("t_us", (10**9,), "i8", chunks=(1 << 20,)), "t_us claims 1,000,000,000 entries"),
        (make("t_us", (6,), "i8", chunks=(1 << 28,), maxshape=(None,)), "t_us has chunks of 2,147,483,648 bytes"),
        (make("t_us", (4 * 10**6,), "i1", chunks=(1,)), r"t_us claims 4,000,000 chunks in a file of .*allowed: 1,\d+"),
        (make("t_us", (6,), h5py.ref_dtype), "t_us holds Python objects"),
        (make("t_us", (6,), h5py.regionref_dtype), "t_us holds Python objects"),
        (make("t_us", (6,), [("a", "i4"), ("b", h5py.string_dtype())]), "t_us holds Python objects"),
        (put("t_us", np.dtype("i8")), "has no times"),
        (put("t_us", h5py.Empty("i8")), "t_us is empty"),
        (all_of(put("t_us", np.arange(6)), *(put(f"group_{k}", np.zeros(1)) for k in range(260))), "allowed: 256"),
        (
            all_of(
                make("spikes/times", (5,), h5py.vlen_dtype("f4")),
                put("spikes/units", h5py.ExternalLink("pipe", "/u")),
                put("labels", np.zeros(5, int)),
            ),
            "units is a link to another file, 'pipe'",
        ),
        (
            all_of(
                make("spikes/times", (10**6,), h5py.vlen_dtype("f4"), chunks=(10**5,)),
                make("spikes/units", (10**6,), h5py.vlen_dtype("u2"), chunks=(10**5,)),
                make("labels", (10**6,), "u1"),
            ),
            r"spikes/times claims 1,000,000 entries, .*allowed: 5,\d+ texts or lists",
        ),
    ],
)
def test_what_is_not_read_is_named(change: Callable[[Any], object], message: str) -> None:
    path = written(change)
    with pytest.raises(DataError, match=rf"a\.h5: .*{message}"):
        read(path)


@pytest.mark.parametrize(
    "change",
    [
        all_of(put("held", np.arange(6)), put("t_us", h5py.SoftLink("/held"))),
        all_of(
            put("there/held", np.arange(6)),
            put("here", h5py.SoftLink("there")),
            put("t_us", h5py.SoftLink("here/held")),
        ),
        all_of(put("held", np.arange(6)), made_of(".", "held")),
        all_of(put("held", np.arange(6)), made_of("a.h5", "held")),
        make("t_us", data=np.arange(6), scaleoffset=True, chunks=(3,)),
        make(
            "t_us", data=np.arange(6), compression="lzf", shuffle=True, fletcher32=True, chunks=(4,), maxshape=(None,)
        ),
        all_of(put("t_us", np.arange(6)), put("other", h5py.ExternalLink("pipe", "/x")), put(b"\xff", 1)),
    ],
)
@pytest.mark.parametrize("more", [{}, {"libver": "latest"}, {"userblock_size": 512}])
def test_what_stays_within_the_file_is_read(change: Callable[[Any], object], more: dict[str, Any]) -> None:
    assert read(written(change, **more)).t_us.tolist() == [0, 1, 2, 3, 4, 5]


def test_texts_that_share_their_bytes_are_refused() -> None:
    path = written(make("label", (3000,), h5py.string_dtype()), without="label")
    with h5py.File(path, "r+") as file:
        file["label"][0] = "b" * 100_000
        file["label"][1:] = "x"
        place = file["label"].id.get_offset()
    content = bytearray(path.read_bytes())
    content[place : place + 16 * 3000] = bytes(content[place : place + 16]) * 3000
    path.write_bytes(content)
    with pytest.raises(
        DataError, match=r"label holds \d+,000 bytes or more .* the file has 2\d\d,\d+: several entries"
    ):
        read(path)


def test_a_long_text_among_many_is_refused() -> None:
    path = written(make("label", (300,), h5py.string_dtype()), without="label")
    with h5py.File(path, "r+") as file:
        file["label"][:] = "x"
        file["label"][7] = "b" * 100_000
    with pytest.raises(DataError, match=r"label has 300 texts of up to 100,000 characters .*allowed: 1,000"):
        read(path)


def packed_with(code: int, mask: int) -> Callable[[Any], None]:
    """An array with a filter that HDF5 does not have; the mask says which filters its chunk was written without."""

    def change(file: Any) -> None:
        layout = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        layout.set_chunk((6,))
        layout.set_filter(code, h5py.h5z.FLAG_OPTIONAL, (3,))
        made = h5py.h5d.create(file.id, b"t_us", h5py.h5t.NATIVE_INT64, h5py.h5s.create_simple((6,)), layout)
        made.write_direct_chunk((0,), np.arange(6).tobytes(), mask)

    return change


def test_a_missing_filter_is_no_damage() -> None:
    path = written(packed_with(490, 0))
    with pytest.raises(
        DataError, match=r"t_us is compressed with the filter .*\(490\).* pip install hdf5plugin"
    ) as raised:
        read(path)
    assert "damaged" not in str(raised.value)
    assert read(written(packed_with(490, 1))).t_us.tolist() == [0, 1, 2, 3, 4, 5]


def test_a_locked_file_is_no_damage(monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(put("t_us", np.arange(6)))
    monkeypatch.delenv("HDF5_USE_FILE_LOCKING", raising=False)
    script = "import h5py, sys\nwith h5py.File(sys.argv[1], 'r+'):\n print(flush=True)\n sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", script, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == b"\n"
        with pytest.raises(DataError, match=r"a\.h5: is locked: another process has it open for writing") as raised:
            read(path)
        writer.communicate()
    assert "damaged" not in str(raised.value)
    assert len(read(path)) == 1


@pytest.mark.parametrize(
    ("text", "number", "fact"),
    [
        ("Unable to open file (Permission denied)", 13, "check its permissions"),
        ("unable to lock file, errno = 37", 37, "HDF5_USE_FILE_LOCKING=FALSE"),
        ("file is already open for write (may use <h5clear file> to clear flags)", None, "h5clear -s"),
        ("Can't read data (Input/output error)", 5, "(Input/output error); check the disk"),
        ("required filter 'blosc' is not registered", None, "pip install hdf5plugin"),
        ("truncated file", None, "is damaged or not an HDF5 file (truncated file); get a fresh copy"),
    ],
)
def test_reasons(text: str, number: int | None, fact: str) -> None:
    found = hdf5.why(text, number)
    assert fact in found
    assert ("damaged" in found) == (text == "truncated file")


@pytest.mark.parametrize(("make_it", "kind"), [(os.mkfifo, "a pipe"), (os.mkdir, "a folder")])
def test_what_is_no_file(tmp_path: Path, make_it: Callable[[Path], None], kind: str) -> None:
    make_it(tmp_path / "b.h5")
    with pytest.raises(DataError, match=rf"b\.h5: is {kind}; give a file"), hdf5.opened(tmp_path / "b.h5"):
        pass
    with pytest.raises(DataError, match=rf"b\.h5: is {kind}; give a file"):
        hdf5.read_tree(tmp_path / "b.h5", "node", 1)


@pytest.mark.parametrize(
    ("script", "signal"),
    [
        ("hdf5_items._limit(1000); x = bytearray(1 << 31)", ""),  # ends with a MemoryError: status 1
        ("import signal; hdf5_items.MAX_SECONDS = 0.1; hdf5_items._limit(1)\nwhile True: pass", "signal 27"),
    ],
)
def test_a_reading_process_has_limits(monkeypatch: pytest.MonkeyPatch, script: str, signal: str) -> None:
    path = written(put("t_us", np.arange(6)))
    probe = Path("probe.py").absolute()
    probe.write_text(
        f"import importlib.util as u\ns = u.spec_from_file_location('hdf5_items', {str(hdf5.PROBE)!r})\n"
        f"hdf5_items = u.module_from_spec(s); s.loader.exec_module(hdf5_items)\n{script}"
    )
    monkeypatch.setattr(hdf5, "PROBE", probe)
    with pytest.raises(DataError, match=rf"a\.h5: is damaged: the HDF5 library ended with {signal or 'status 1'}"):
        read(path)
