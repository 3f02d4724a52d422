"""The bytes that a step needs, counted by hand on a small network; the machine's bandwidths are plausible."""

from __future__ import annotations

from pathlib import Path

import pytest

from sparsesnn import _core
from sparsesnn.bench import roofline
from sparsesnn.bench.roofline import LEVELS, PHASES, Machine, Stream
from sparsesnn.bench.workload import Workload

# whether a network so small can be just as active as wanted does not matter here
pytestmark = pytest.mark.filterwarnings("ignore:init_activity")

MACHINE = Machine({"L1": 1 << 10, "L2": 1 << 15, "L3": 1 << 20}, dict.fromkeys(LEVELS, 1e9), dict.fromkeys(LEVELS, 2e9))


def streams_of(net: str, weight_dtype: str = "float32") -> tuple[list[Stream], int, int, int]:
    """Streams of a small step; input spikes, hidden spikes, hidden listed."""
    workload = Workload(
        net, 7, 3, input_activity=0.2, hidden_activity=0.2, grad_threshold=0.5, weight_dtype=weight_dtype
    )
    spikes = workload.spikes()
    model = workload.model("cpu", spikes)
    output = model(spikes)
    hidden = output.spikes["hidden"]
    found = list(roofline.streams(model, spikes, output, MACHINE))
    return found, int(spikes.n_spikes.sum()), int(hidden.n_spikes.sum()), hidden.ids.numel()


def total(found: list[Stream], phase: str) -> float:
    return sum(s.n_bytes for s in found if s.phase == phase)


def test_bytes_of_a_feed_forward_step() -> None:
    found, n_input, n_spikes, n_listed = streams_of("30-20-10")
    assert n_spikes < n_listed, "near-spikes are part of what is counted"
    assert total(found, "deliver") == 4 * (20 * n_input + 10 * n_spikes)
    assert total(found, "step") == 8 * 7 * 3 * (20 + 10)
    events = 4 * (20 * n_input + 10 * n_listed)  # the input's values need no gradient, the hidden ones do
    weights = 8 * (30 * 20 + 20 * 10) + 4 * 20 * 10
    assert total(found, "deliver_grad") == events + weights
    # a hidden spike has both gradients, a hidden near-spike and an input spike one of them
    assert sum(s.n_additions for s in found) == 20 * n_input + 10 * (n_listed + n_spikes)
    assert total(found, "optimiser") == 28 * (30 * 20 + 20 * 10)


def test_bytes_of_a_recurrent_step_and_of_short_weights() -> None:
    found, n_input, n_spikes, n_listed = streams_of("30-20r-10")
    assert total(found, "deliver") == 4 * (20 * (n_input + n_spikes) + 10 * n_spikes)
    assert total(found, "step_grad") == 16 * 7 * 3 * (20 + 10) + 4 * 20 * n_listed
    half, n_input, n_spikes, _ = streams_of("30-20r-10", "bfloat16")
    assert total(half, "deliver") == 2 * (20 * (n_input + n_spikes) + 10 * n_spikes)


def test_additions_take_time_where_they_take_longer_than_what_is_read() -> None:
    for rate, want in ((1e9, 4.0), (2e9, 3.0)):  # of L1
        machine = Machine(MACHINE.caches, {**MACHINE.read, "L1": rate}, MACHINE.update)
        stream = Stream("deliver_grad", "L2", False, 3e6, n_additions=1_000_000)
        assert roofline.floor_ms([stream], machine)["deliver_grad"] == want


def test_levels_and_floor() -> None:
    assert [MACHINE.level_of(n) for n in (1 << 10, (1 << 10) + 1, 1 << 20, 1 << 21)] == ["L1", "L2", "L3", "memory"]
    floor = roofline.floor_ms([Stream("step", "L1", True, 4e6), Stream("deliver", "L2", False, 3e6)], MACHINE)
    assert floor == {**dict.fromkeys(PHASES, 0.0), "step": 2.0, "deliver": 3.0}


def test_cache_sizes_are_those_that_the_system_describes(tmp_path: Path) -> None:
    described = {
        "index0": ("Data", "1", "48K"),
        "index1": ("Instruction", "1", "32K"),
        "index2": ("Unified", "2", "2048K"),
    }
    for name, values in described.items():
        (tmp_path / name).mkdir()
        for what, value in zip(("type", "level", "size"), values, strict=True):
            (tmp_path / name / what).write_text(value + "\n")
    assert roofline.cache_sizes(tmp_path) == {"L1": 48 << 10, "L2": 2 << 20, "L3": 16 << 20}
    (tmp_path / "index0" / "size").write_text("much")
    assert roofline.cache_sizes(tmp_path)["L1"] == 32 << 10, "a usual size instead of one that cannot be read"


def test_the_probe_times_deliver_and_changes_nothing() -> None:
    workload = Workload("30-20r-10", 7, 3, input_activity=0.2, hidden_activity=0.2)
    spikes = workload.spikes()
    model = workload.model("cpu", spikes)
    want = model(spikes)
    _core.phase_seconds(reset=True)
    _core.probe_deliver(True)
    try:
        got = model(spikes)
    finally:
        _core.probe_deliver(False)
    clocks = _core.phase_seconds(reset=True)
    assert clocks["deliver"] > 0
    assert want.potentials is not None
    assert got.potentials is not None
    assert got.potentials.equal(want.potentials)
    model(spikes)
    assert _core.phase_seconds(reset=True)["deliver"] == 0


def test_bandwidths_are_measured() -> None:
    assert _core.measure_bandwidth(4096, False, 0.001) > 1e6  # of a machine that does other things meanwhile
    assert _core.measure_bandwidth(1, True, 0.001) > 1e6
    with pytest.raises(TypeError):
        _core.measure_bandwidth(-1, False, 0.001)


def test_several_measurements_of_one_machine_count_by_their_medians() -> None:
    rates = (3e9, 1e9, 2e9)
    found = roofline.typical(
        [Machine(MACHINE.caches, dict.fromkeys(LEVELS, r), dict.fromkeys(LEVELS, 2 * r)) for r in rates]
    )
    assert found == Machine(MACHINE.caches, dict.fromkeys(LEVELS, 2e9), dict.fromkeys(LEVELS, 4e9))
