"""The emulated GPU: it computes what kernels say, and finds each kind of error in kernels that have one."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from sparsesnn.engines.gpu import emulated
from sparsesnn.engines.gpu.device import Kernel
from sparsesnn.engines.gpu.emulated import EmulatedDevice
from sparsesnn.errors import DeviceError, DeviceMemoryError

SOURCE = Path(__file__).with_name("emulated_kernels.cu")
#: kernels, and the largest block that each is launched with
BLOCKS = {
    **dict.fromkeys(("scale", "common_calls", "count"), 64),
    **dict.fromkeys(("columns", "pointers", "reads", "writes", "writes_shared"), 32),
    **dict.fromkeys(("writes_halves", "reads_words", "reads_shared", "other_lane", "global_of_blocks"), 32),
    **dict.fromkeys(("write_then_read", "read_then_write", "write_twice", "global_of_block", "atomic_and_plain"), 64),
    "many_readers": 128,
    "diverge": 64,
    "diverge_in_ballot": 32,
    "shuffle_beyond": 32,
}


class Args(ctypes.Structure):
    """The struct of the kernels."""

    _fields_ = (
        *[(name, ctypes.c_uint64) for name in ("x", "y", "words", "counter", "halves")],
        *[(name, ctypes.c_int32) for name in ("n", "k")],
    )


class Bench:
    """A device with the kernels and their arrays: `x` has 128 elements, `y` 128 that are written, `counter` 4 zeros."""

    def __init__(self, seed: int = 0) -> None:
        self.device = EmulatedDevice(seed)
        self.kernels: Mapping[str, Kernel] = self.device.compile(str(SOURCE), {}, list(BLOCKS))
        sizes = {"x": 128 * 4, "y": 128 * 4, "words": 32 * 4, "counter": 16}
        self.at = {name: self.device.allocate(n, name) for name, n in sizes.items()}
        self.at["halves"] = self.at["words"]
        self.device.upload(self.at["y"], np.arange(128, dtype=np.float32))
        self.device.fill(self.at["counter"], 16)

    def arguments(self, **values: int) -> Args:
        return Args(**{**self.at, **values})

    def launch(self, name: str, grid: int = 1, shared: int = 1024, **values: int) -> None:
        arguments = self.arguments(**values)
        self.device.launch(self.kernels[name], grid, BLOCKS[name], shared, arguments, "hidden")

    def array(self, name: str, n: int, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        into = np.empty(n, dtype)
        self.device.download(self.at[name], into)
        return into


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench()
    yield made
    for name in ("x", "y", "words", "counter"):
        made.device.free(made.at[name])
    made.device.close()


def refused(bench: Bench, *facts: str, name: str, **values: Any) -> str:
    """The message of a kernel that fails, which holds the facts."""
    with pytest.raises(DeviceError) as caught:
        bench.launch(name, **values)
    error, message = caught.value, str(caught.value)
    assert (error.kernel, error.what) == (name, "hidden")
    for fact in (f"'{name}' for 'hidden'", "block ", "thread ", "emulated_kernels.cu:", *facts):
        assert fact in message
    return message


# ---- results -------------------------------------------------------------------------------------------------------


def test_threads_of_all_blocks_run(bench: Bench) -> None:
    bench.launch("scale", grid=2, n=101)
    np.testing.assert_array_equal(bench.array("x", 101, np.float32), 2 * np.arange(101))


@pytest.mark.parametrize("seed", range(3))
def test_ballots_and_shuffles(seed: int) -> None:
    bench = Bench(seed)
    bench.launch("common_calls", halves=bench.device.allocate(128, "halves"))
    np.testing.assert_array_equal(bench.array("x", 64, np.float32), np.repeat([496, 1520], 32))
    assert bench.array("words", 2, np.uint32).tolist() == [0xAAAAAAAA ^ 7] * 2
    bench.launch("common_calls", words=bench.device.allocate(8, "ballots"))
    above = (np.arange(32) + 1) % 32
    np.testing.assert_array_equal(bench.array("halves", 64, np.uint16), [*above, *(32 + above)])


def test_atomics_of_all_blocks_add_up_and_their_order_is_the_seeds() -> None:
    def order(seed: int) -> list[float]:
        bench = Bench(seed)
        bench.device.fill(bench.at["words"], 4)
        bench.launch("count", grid=2)
        assert bench.array("counter", 1, np.int32) == [128]
        assert bench.array("words", 1, np.uint32) == [3]
        return [float(x) for x in bench.array("x", 128, np.float32)]

    orders = [order(seed) for seed in (0, 0, 1, 2, 3)]
    assert orders[0] == orders[1]
    assert all(sorted(x) == [0.0] * 64 + [1.0] * 64 for x in orders)
    assert len({tuple(x) for x in orders}) == 2


def test_columns(bench: Bench) -> None:
    bench.launch("columns")
    np.testing.assert_array_equal(bench.array("x", 128, np.float32), np.arange(128) + 1)


def test_pointers_move(bench: Bench) -> None:
    bench.launch("pointers", k=5)
    np.testing.assert_array_equal(bench.array("x", 96, np.float32)[64:], 2 * (np.arange(32) + 5))


# ---- checks --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "k", "element", "array"),
    [
        ("reads", 97, 128, "'y' (512 bytes"),
        ("reads", -1, -1, "'y' (512 bytes"),
        ("reads", 1 << 30, None, "'y' (512 bytes"),
        ("writes", 97, 128, "'x' (512 bytes"),
        ("writes", -32, None, "'x' (512 bytes"),
        ("writes_shared", 29, 60 + 4, "shared memory (256 bytes"),
    ],
)
def test_bounds(bench: Bench, name: str, k: int, element: int | None, array: str) -> None:
    verb = "reads" if name == "reads" else "writes"
    element_fact = f"{verb} element {'' if element is None else element}"
    refused(bench, element_fact, array, "out of bounds", name=name, k=k, shared=256)


@pytest.mark.parametrize(("name", "k"), [("reads", 96), ("writes", 0), ("writes", 96), ("writes_shared", 28)])
def test_bounds_that_hold(bench: Bench, name: str, k: int) -> None:
    bench.launch(name, k=k, shared=256)


def test_a_pointer_stays_in_its_array(bench: Bench) -> None:
    refused(bench, "moves a pointer by 129", "'y'", name="pointers", k=129)


def test_a_number_that_is_no_address(bench: Bench) -> None:
    refused(bench, "not an address of the device", name="reads", y=4096)


@pytest.mark.parametrize("k", [1, 2, 3])
def test_columns_are_aligned(bench: Bench, k: int) -> None:
    refused(bench, "reads element ", "'y'", "misaligned", "multiple of 16", name="columns", k=k)


def test_undefined_memory(bench: Bench) -> None:
    refused(bench, "reads element ", "'x'", "nothing has written", name="reads", y=bench.at["x"])
    bench.launch("writes")
    bench.launch("reads", y=bench.at["x"])


def test_every_byte_of_an_element_is_written(bench: Bench) -> None:
    bench.launch("writes_halves", n=0, halves=bench.at["x"])
    refused(bench, "nothing has written", name="reads_words", words=bench.at["x"], x=bench.at["y"])
    bench.launch("writes_halves", n=1, halves=bench.at["x"])
    bench.launch("reads_words", words=bench.at["x"], x=bench.at["y"])


def test_copies_carry_undefined_bytes(bench: Bench) -> None:
    bench.launch("writes_halves", n=0, halves=bench.at["x"])
    bench.device.copy(bench.at["words"], bench.at["x"], 128)
    refused(bench, "'words'", "nothing has written", name="reads_words")
    bench.device.fill(bench.at["x"], 128)
    bench.device.copy(bench.at["words"], bench.at["x"], 128)
    bench.launch("reads_words")


def test_blocks_start_with_undefined_shared_memory(bench: Bench) -> None:
    bench.launch("reads_shared", n=1, grid=3)
    bench.device.fill(bench.at["counter"], 4)
    refused(bench, "shared memory", "nothing has written", name="reads_shared", n=0, grid=3)


@pytest.mark.parametrize("name", ["write_then_read", "read_then_write", "global_of_block", "atomic_and_plain"])
def test_warps_race(bench: Bench, name: str) -> None:
    refused(bench, "race: thread ", "without a barrier", name=name, n=0)
    bench.launch(name, n=1)


def test_warps_that_write_the_same_bytes_race(bench: Bench) -> None:
    refused(bench, "race", "wrote it", name="write_twice", n=0)
    bench.launch("write_twice", n=1)


@pytest.mark.parametrize("k", [0, 1, 33, 127])
def test_a_writer_races_with_any_of_many_readers(bench: Bench, k: int) -> None:
    refused(bench, "race", "read it", name="many_readers", n=0, k=k)
    bench.launch("many_readers", n=1, k=k)


@pytest.mark.parametrize("between", ["nothing", "ballot", "shuffle", "warp_barrier", "barrier"])
def test_lanes_race(bench: Bench, between: str) -> None:
    """Ballots and shuffles order no memory."""
    n = ["nothing", "ballot", "shuffle", "warp_barrier", "barrier"].index(between)
    if n < 3:
        refused(bench, "race: thread ", "warp_barrier in between", name="other_lane", n=n)
    else:
        bench.launch("other_lane", n=n)


@pytest.mark.parametrize("k", [0, 1, 2])
def test_blocks_race(bench: Bench, k: int) -> None:
    bench.device.fill(bench.at["x"], 512)
    refused(bench, "a race: ", " in the same launch", name="global_of_blocks", n=0, k=k, grid=4)
    bench.device.fill(bench.at["counter"], 16)
    bench.launch("global_of_blocks", n=1, k=k, grid=4)


@pytest.mark.parametrize(
    ("n", "k", "facts"),
    [
        (0, 33, ("warp", "has ended")),
        (0, 32, ("block", "has ended")),
        (1, 40, ("warp", "barrier (")),
        (1, 32, ("block", "barrier (")),
        (2, 5, ("warp", "ballot (")),
    ],
)
def test_barriers_diverge(bench: Bench, n: int, k: int, facts: tuple[str, str]) -> None:
    refused(bench, f"threads of one {facts[0]} diverge", facts[1], "waits at barrier", name="diverge", n=n, k=k)


def test_barriers_that_all_reach(bench: Bench) -> None:
    bench.launch("diverge", n=3, k=20)
    bench.launch("diverge", n=0, k=64)


def test_ballots_diverge(bench: Bench) -> None:
    refused(bench, "diverge", "waits at ballot", "has ended", name="diverge_in_ballot", k=31)
    bench.launch("diverge_in_ballot", k=32)
    bench.launch("diverge_in_ballot", k=0)


def test_shuffles_stay_in_the_warp(bench: Bench) -> None:
    refused(bench, "shuffles with lane", "32", name="shuffle_beyond", k=32)
    bench.launch("shuffle_beyond", k=31)


def test_freed_memory(bench: Bench) -> None:
    device, address = bench.device, bench.device.allocate(512, "short")
    device.fill(address, 512)
    bench.launch("reads", y=address)
    device.free(address)
    refused(bench, "'short'", "freed", name="reads", y=address)
    for call in (lambda: device.free(address), lambda: device.fill(address, 4)):
        with pytest.raises(DeviceError, match="'short' has been freed"):
            call()
    assert device.allocate(512, "next") != address
    bench.device.free(next(a for a, (_, what) in device._arrays.items() if what == "next"))


def test_leaks() -> None:
    device = EmulatedDevice()
    device.free(device.allocate(100, "freed"))
    device.allocate(24, "kept")
    with pytest.raises(DeviceError, match=r"1 arrays .* 'kept' \(24 bytes\)"):
        device.close()
    with pytest.raises(DeviceError, match="closed"):
        device.fill(0, 4)
    device.close()


def test_a_failed_launch_does_not_hurt_the_next(bench: Bench) -> None:
    for name in ("diverge", "write_twice", "diverge"):
        refused(bench, name=name, n=0, k=33)
        bench.launch("scale", n=64)


# ---- calls from Python ---------------------------------------------------------------------------------------------


def test_host_accesses_are_within_bounds(bench: Bench) -> None:
    device, x = bench.device, bench.at["x"]
    for call in (
        lambda: device.fill(x, 513),
        lambda: device.fill(x + 4, 509),
        lambda: device.upload(x, np.zeros(129, np.float32)),
        lambda: device.download(x + 508, np.zeros(2, np.float32)),
        lambda: device.copy(x, bench.at["counter"], 17),
        lambda: device.copy(bench.at["counter"], x, 17),
    ):
        with pytest.raises(DeviceError, match="out of bounds: .* '(x|counter)'"):
            call()
    with pytest.raises(DeviceError, match="overlap"):
        device.copy(x, x + 4, 8)
    with pytest.raises(DeviceError, match="within 'x'"):
        device.free(x + 4)


def test_launches_are_checked(bench: Bench) -> None:
    device, kernel = bench.device, bench.kernels["columns"]
    for grid, block, shared, fact in (
        (1, 33, 0, "33"),
        (1, 64, 0, "64"),
        (-1, 32, 0, "-1 blocks"),
        (1, 32, 1 << 20, "1,048,576"),
    ):
        with pytest.raises(DeviceError, match=fact) as caught:
            device.launch(kernel, grid, block, shared, bench.arguments(), "hidden")
        assert (caught.value.kernel, caught.value.what) == ("columns", "hidden")
    with pytest.raises(DeviceError, match="16 bytes, the kernel's has 48"):
        device.launch(kernel, 1, 32, 0, type("Two", (ctypes.Structure,), {"_fields_": Args._fields_[:2]})(), "hidden")


def test_memory_is_limited() -> None:
    device = EmulatedDevice(total_bytes=1000)
    address = device.allocate(600, "first")
    assert address % 256 == 0
    assert device.memory() == (400, 1000)
    with pytest.raises(DeviceMemoryError, match=r"second: needs 401 bytes .* 400 left of 1,000") as caught:
        device.allocate(401, "second")
    assert (caught.value.needed, caught.value.free, caught.value.what) == (401, 400, "second")
    device.free(address)
    device.free(device.allocate(1000, "all"))
    device.free(device.allocate(0, "nothing"))
    device.close()


def test_a_recording_runs_again_as_it_was_recorded(bench: Bench) -> None:
    device, data, late = bench.device, np.arange(128, dtype=np.float32), np.zeros(4, np.float32)
    arguments = bench.arguments(n=128)

    def work() -> None:
        device.upload(bench.at["y"], data)
        device.launch(bench.kernels["scale"], 2, 64, 0, arguments, "hidden")
        device.download_later(bench.at["x"], late)
        for call in (device.synchronize, lambda: device.allocate(4, "x"), lambda: device.download(bench.at["x"], late)):
            with pytest.raises(DeviceError, match="recorded"):
                call()

    replay = device.record(work)
    assert np.isnan(late).sum() == 0
    refused(bench, "nothing has written", name="reads", y=bench.at["x"])  # nothing has run
    arguments.n = 0
    for k in range(3):
        data[:] = np.arange(128) + k
        replay()
        assert np.isnan(late).all()  # not before `synchronize`
        device.synchronize()
        np.testing.assert_array_equal(late, 2 * (np.arange(4) + k))


def test_an_array_on_its_way_does_not_change(bench: Bench) -> None:
    data = np.zeros(8, np.float32)
    bench.device.upload(bench.at["x"], data)
    data[3] = 1
    with pytest.raises(DeviceError, match=r"shape \(8,\) and dtype float32 changed before"):
        bench.device.synchronize()


# ---- compiling -----------------------------------------------------------------------------------------------------


def write(path: Path, body: str) -> str:
    text = f'#include "codelets/gpu/device.h"\nnamespace sparsesnn {{\nstruct Args {{ Global<const float> y; Global<float> x; }};\nKERNEL(k, Args, 32) {{ {body} }}\n}}\n'
    path.write_text(text)
    return str(path)


@pytest.mark.parametrize("body", ["a.y[0] = 1.0f;", "Global<float> z = a.y;", "auto v = a.x[0]; float w = v;"])
def test_what_does_not_compile(tmp_path: Path, body: str) -> None:
    device = EmulatedDevice()
    with pytest.raises(DeviceError, match=r"wrong.cu: .* cannot compile") as caught:
        device.compile(write(tmp_path / "wrong.cu", body), {}, ["k"])
    assert "error" in str(caught.value)


def test_unknown_names(tmp_path: Path) -> None:
    device = EmulatedDevice()
    with pytest.raises(DeviceError, match="nowhere.cu: no such file"):
        device.compile("nowhere.cu", {}, ["k"])
    with pytest.raises(DeviceError, match="has no kernel 'other'"):
        device.compile(write(tmp_path / "a.cu", "a.x[0] = a.y[0];"), {}, ["other"])


COMPILE = """
import sys
from sparsesnn.engines.gpu.emulated import EmulatedDevice
EmulatedDevice().compile(sys.argv[1], {"VALUE": "1.0f"}, ["k"])
"""


def test_each_variant_is_compiled_once_by_any_number_of_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = write(tmp_path / "a.cu", "a.x[0] = VALUE;")
    log, compiler = tmp_path / "log", tmp_path / "cxx"
    compiler.write_text(f'#!/bin/sh\ncase "$*" in *--version*) ;; *) echo "$*" >> {log};; esac\nexec c++ "$@"\n')
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    monkeypatch.setenv("SPARSESNN_CACHE", str(tmp_path / "cache"))
    processes = [subprocess.Popen([sys.executable, "-c", COMPILE, source]) for _ in range(2)]
    assert [process.wait() for process in processes] == [0, 0]
    n_compiled = len(log.read_text().splitlines())
    assert 2 <= n_compiled <= 4
    assert len(list((tmp_path / "cache/emulated").iterdir())) == 2  # nothing is left over
    device = EmulatedDevice()
    device.compile(source, {"VALUE": "1.0f"}, ["k"])
    assert len(log.read_text().splitlines()) == n_compiled
    device.compile(source, {"VALUE": "2.0f"}, ["k"])
    assert len(log.read_text().splitlines()) == n_compiled + 1


def test_a_cache_that_cannot_be_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("SPARSESNN_CACHE", str(tmp_path / "file"))
    EmulatedDevice().compile(write(tmp_path / "a.cu", "a.x[0] = 1.0f;"), {}, ["k"])
    assert len(list(emulated._temporary().iterdir())) == 2


def test_a_missing_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CXX", str(tmp_path / "none"))
    with pytest.raises(DeviceError, match="no C\\+\\+ compiler .*not found: .*none.*CXX"):
        EmulatedDevice()


def test_an_installation_without_sources(tmp_path: Path) -> None:
    with pytest.raises(DeviceError, match="SPARSESNN_GPU=emulated: this installation has no emulated device"):
        EmulatedDevice(sources=tmp_path)
