"""Reads files that were changed at random, as `test_mutations.py` asks: `python mutations.py KIND,… N [FIRST]`.

Prints the number of changes that were refused, and of those that made no difference to a reader; ends with an error for anything
but an error of sparsesnn. Memory and the time of each file are limited. The process that reads HDF5 files first continues with the
next file here, unless a file ends it.
"""

from __future__ import annotations

import copy
import hashlib
import json
import resource
import signal
import subprocess
import sys
import tempfile
import traceback
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import torch

import sparsesnn as ss
from sparsesnn.config import Config
from sparsesnn.datasets import cache, dvs_gesture, hdf5, heidelberg, nmnist, recording
from sparsesnn.errors import SparseSnnError
from sparsesnn.layers import LIF
from sparsesnn.nir import from_nir, to_nir, write
from sparsesnn.nir.files import read as read_nir
from sparsesnn.nir.graphs import flatten
from sparsesnn.partition import Plan, make_plan, parse_target
from sparsesnn.train import checkpoint
from sparsesnn.train.checkpoint import CheckpointStore

SECONDS, GIB = 10.0, 1 << 30


# ---- files and readers ---------------------------------------------------------------------------------------------


def table() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {
        "t_us": np.sort(rng.integers(0, 1 << 20, 300)),
        "unit": rng.integers(0, 40, 300).astype(np.uint16),
        "sample": np.arange(300) // 30,
        "label": np.array(["left", "right"])[np.arange(10) % 2],
        "group_who": np.arange(10) // 3,
    }


def write_npz(path: Path) -> None:
    np.savez_compressed(path, **table())  # type: ignore[arg-type]


def write_h5(path: Path, **more: Any) -> None:
    with h5py.File(path, "w", **more) as file:
        for name, values in table().items():
            texts = values.dtype.kind == "U"
            packed = {} if texts else {"chunks": (7,), "compression": "gzip", "shuffle": True}
            file.create_dataset(name, data=[str(v) for v in values] if texts else values, **packed)
        file["held"] = np.arange(300)
        file["soft"] = h5py.SoftLink("/held")


def write_shd(path: Path) -> None:
    rng = np.random.default_rng(1)
    with h5py.File(path, "w") as file:
        for key, dtype in (("spikes/times", np.float16), ("spikes/units", np.uint16)):
            data = file.create_dataset(key, (6,), h5py.vlen_dtype(dtype))
            for k in range(6):
                data[k] = rng.integers(0, 2, 9).astype(dtype)
        file["labels"], file["extra/speaker"] = np.arange(6) % 2, np.arange(6)
        file["extra/keys"] = np.array([b"zero", b"one"])


def write_nir(path: Path) -> None:
    net = ss.Network.chain(ss.Input(6), LIF(5, reset="zero", recurrent=True), ss.LI(3))
    write(path, to_nir(ss.Model(net), dt=1e-3))


def read_graph(path: Path) -> None:
    flatten(read_nir(path))
    from_nir(path, source="nir", dt=1e-3)


def event_set() -> ss.EventSet:
    events = [([1.0, 5.0, 9.0], [0, 3, 2]), ([2.0], [1])] * 5
    return ss.EventSet.from_events(events, [0, 1] * 5, n_steps=5, dt_us=2.0)


def network() -> ss.Network:
    return ss.parse_net("9-8r-7p0.5-3")


def write_run(path: Path) -> None:
    path.parent.mkdir(exist_ok=True)
    store = CheckpointStore(path.parent)
    tensors = {f"model/{k}": v for k, v in ss.Model(network()).state_dict().items()}
    data: dict[str, Any] = {"config": {}, "progress": {}, "network": network().to_dict(), "data": {}, "version": "0"}
    store.write(**data, step=1, tensors=tensors, best=None)


def read_run(path: Path) -> None:
    store = CheckpointStore(path.parent)
    saved = store.read()
    store.tensors(saved.tensors, ss.Network.from_dict(saved.network))


def write_body(path: Path) -> None:
    write_run(path.parent / "run" / "checkpoint.json")
    path.write_text(json.dumps(json.loads((path.parent / "run" / "checkpoint.json").read_text())["body"]))


def read_body(path: Path) -> None:
    """A body of a checkpoint with the digest that it should have."""
    write_run(path.parent / "run" / "checkpoint.json")
    try:
        body = json.loads(text(path))
    except (ValueError, RecursionError):
        return
    document = {"format": checkpoint.FORMAT, "format_version": 3, "sha256": checkpoint._digest(body), "body": body}
    (path.parent / "run" / "checkpoint.json").write_text(json.dumps(document))
    read_run(path.parent / "run" / "checkpoint.json")


def read_tensors(path: Path) -> None:
    """Tensors whose size and digest a checkpoint knows."""
    store, data = CheckpointStore(path.parent), path.read_bytes()
    file = checkpoint.TensorFile(path.name, len(data), hashlib.sha256(data).hexdigest())
    store.tensors([file], network())


def read_array(path: Path) -> None:
    """An array in an archive whose checksums are right."""
    other = path.with_suffix(".npz")
    np.savez(other, **{k: v for k, v in table().items() if k != "label"})  # type: ignore[arg-type]
    with zipfile.ZipFile(other, "a", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("label.npy", path.read_bytes())
    recording.read(other)


def write_integers(path: Path) -> None:
    ss.integers.save(ss.Model(ss.parse_net("9-8-3"), weight_dtype="int8"), path)


def write_clip(path: Path) -> None:
    np.save(path, np.random.default_rng(2).integers(0, 2, (50, 4)).astype(np.uint16))


def write_bin(path: Path) -> None:
    path.write_bytes(np.random.default_rng(3).integers(0, 34, 200, np.uint8).tobytes())


def write_plan(path: Path) -> None:
    path.write_text(make_plan(ss.parse_net("9-8-3"), 8, 5, parse_target("ipu-mk2:1x16")).to_json())


def text(path: Path) -> str:
    return path.read_bytes().decode("utf-8", "replace")


#: file name, writer, reader
FORMATS: dict[str, tuple[str, Callable[[Path], object], Callable[[Path], object]]] = {
    "npz": ("a.npz", write_npz, recording.read),
    "h5": ("a.h5", write_h5, recording.read),
    "h5-latest": ("a.h5", lambda path: write_h5(path, libver="latest"), recording.read),
    "shd": ("a.h5", write_shd, recording.read),
    "shd-blocks": ("a.h5", write_shd, lambda path: read_shd_blocks(path)),
    "nir": ("a.nir", write_nir, read_graph),
    "cache": (
        "a.safetensors",
        lambda path: cache.write(path, "k", event_set()),
        lambda path: cache.read(path, None, check_content=False).batch([0, 9]),
    ),
    "checkpoint": ("checkpoint.json", write_run, read_run),
    "body": ("a.json", write_body, read_body),
    "tensors": ("ckpt-000000001.safetensors", write_run, read_tensors),
    "npz-array": ("label.npy", lambda path: np.save(path, table()["label"]), read_array),
    "integers": ("a.safetensors", write_integers, ss.integers.load),
    "clip": ("a.npy", write_clip, dvs_gesture.read_clip),
    "bin": ("a.bin", write_bin, lambda path: nmnist.read_events([path])),
    "network": ("a.json", lambda path: path.write_text(network().to_json()), lambda p: ss.Network.from_json(text(p))),
    "plan": ("a.json", write_plan, lambda path: Plan.from_json(text(path))),
    "toml": (
        "a.toml",
        lambda path: path.write_text(Config.resolve({}).to_toml()),
        lambda path: Config.from_toml(text(path)).net.network(64, 10),
    ),
}


def read_shd_blocks(path: Path) -> None:
    hdf5.probe(path, lambda _: heidelberg._KEYS)
    heidelberg._check(path)
    for _ in heidelberg.read_events(path):
        pass


# ---- changes -------------------------------------------------------------------------------------------------------

NUMBERS = (0, 1, 0x7F, 0xFF, 0x7FFF_FFFF, 0xFFFF_FFFF, 1 << 40, (1 << 63) - 1, (1 << 64) - 1)
WORDS = (b"9" * 30, b"-1", b"NaN", b"1e999", b"null", b"[[[[", b'"x"', b"{}", b"0.5", b"true", b"\xff\xfe", b"inf")


def changed(content: bytes, name: str, k: int) -> bytes:
    """The k-th change of a file, the same in every run."""
    rng = np.random.default_rng([k, *name.encode()])
    made = bytearray(content)
    for _ in range(int(rng.integers(1, 4))):
        at, kind = int(rng.integers(0, len(made) or 1)), int(rng.integers(0, 8))
        if kind == 0:
            del made[at:]
        elif kind == 1:
            made[at : at + 1] = rng.bytes(1)
        elif kind == 2 and made:
            made[at % len(made)] ^= 1 << int(rng.integers(0, 8))
        elif kind == 3:
            width = int(rng.choice([1, 2, 4, 8]))
            value = NUMBERS[int(rng.integers(len(NUMBERS)))] & ((1 << 8 * width) - 1)
            made[at : at + width] = value.to_bytes(width, "little")
        elif kind == 4:
            other = int(rng.integers(0, len(made) or 1))
            made[at : at + 16] = made[other : other + 16]
        elif kind == 5:
            del made[at : at + int(rng.integers(1, 40))]
        elif kind == 6:
            made[at:at] = rng.bytes(int(rng.integers(1, 40)))
        else:
            word = WORDS[int(rng.integers(len(WORDS)))]
            digits = [i for i, c in enumerate(made[: 1 << 16]) if chr(c).isdigit()]
            at = int(rng.choice(digits)) if digits else at
            made[at : at + 1] = word
    return bytes(made)


VALUES: tuple[Any, ...] = (
    *(
        None,
        True,
        -1,
        0,
        1,
        3,
        1 << 31,
        1 << 63,
        10**400,
        0.5,
        1e308,
        float("nan"),
        float("inf"),
        "",
        "x",
        "inf",
        [],
        {},
    ),
    *([1, 2], [[]], {"a": 1}, {"kind": "Conv2d"}, {"kind": "Sparse", "mask": [[0], [1]]}),
)


def restructured(content: bytes, name: str, k: int) -> bytes:
    """The k-th change of the values of a JSON text, which stays one."""
    rng = np.random.default_rng([k, *name.encode()])
    data = json.loads(content)
    for _ in range(int(rng.integers(1, 4))):
        here: Any = {"": data}
        key: Any = ""
        while isinstance(here[key], (dict, list)) and here[key] and rng.random() < 0.9:
            here = here[key]
            key = list(here)[int(rng.integers(len(here)))] if isinstance(here, dict) else int(rng.integers(len(here)))
        kind, value = int(rng.integers(5)), copy.deepcopy(VALUES[int(rng.integers(len(VALUES)))])
        if key == "":
            continue
        if kind == 0 and isinstance(here, dict):
            here[f"{key}x"] = here.pop(key)
        elif kind == 1 and isinstance(here, dict):
            here[str(rng.choice(["n", "model", "synapses", "axonal", "extra", "delay"]))] = value
        else:
            here[key] = value
    return json.dumps(data).encode()


# ---- limits --------------------------------------------------------------------------------------------------------


#: the script that reads an HDF5 file first, for one file after the other
SERVER = """
import importlib.util, sys
spec = importlib.util.spec_from_file_location("hdf5_items", sys.argv[1])
items = importlib.util.module_from_spec(spec)
spec.loader.exec_module(items)
items.MAX_SECONDS_ALL = 1e6  # of all files
while True:
    items.main()
    sys.stdout.flush()
"""
_server: list[subprocess.Popen[str]] = []


def ask(path: Path, request: dict[str, Any], choose: Callable[[Any], Any] | None = None) -> None:
    """As `hdf5._ask`, of a process that reads many files, until one ends it."""
    if not _server:
        command = [sys.executable, "-I", "-c", SERVER, str(hdf5.PROBE)]
        _server.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
    process, code = _server[0], 0
    assert process.stdin is not None
    assert process.stdout is not None

    def said(line: Any) -> Any:
        process.stdin.write(json.dumps(line) + "\n")
        process.stdin.flush()
        return json.loads(process.stdout.readline() or "{}")

    answer = said({"path": str(path), "modules": sys.path, **request})
    if choose is not None and "names" in answer:
        answer = said(list(choose(answer)))
    if not answer:
        process.stdin.close()
        process.stdout.close()
        code = _server.pop().wait()
    hdf5._judge(path, answer, code)


def try_changes(name: str, n: int, first: int) -> None:
    file, make, read = FORMATS[name]
    refused = 0
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / file
        make(path)
        content = path.read_bytes()
        read(path)
        _limit_memory()
        for k in range(first, first + n):
            change = restructured if file.endswith(".json") and k % 2 else changed
            path.write_bytes(change(content, name, k))
            signal.setitimer(signal.ITIMER_PROF, SECONDS)  # SIGPROF ends the process
            print(f"\r{name} {k}", end="", file=sys.stderr, flush=True)
            try:
                read(path)
            except SparseSnnError:
                refused += 1
            except BaseException:
                traceback.print_exc()
                raise SystemExit(f"{name} {k}: no error of sparsesnn") from None
    signal.setitimer(signal.ITIMER_PROF, 0)
    print(json.dumps({"kind": name, "refused": refused, "read": n - refused}), flush=True)


def _limit_memory() -> None:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + 3 * GIB // 2
    resource.setrlimit(resource.RLIMIT_AS, (most, resource.RLIM_INFINITY))


def main(names: str, n: int, first: int = 0) -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    hdf5._ask = ask
    for name in names.split(","):
        try_changes(name, n, first)
    for process in _server:
        process.kill()
        process.wait()


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
