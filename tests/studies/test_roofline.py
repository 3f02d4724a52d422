"""The bytes that a step needs, counted by hand on a small network; the machine's bandwidths are plausible."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sparsesnn.bench.workload import Workload
from sparsesnn.cli import main
from sparsesnn.errors import ConfigError
from studies import roofline
from studies.__main__ import parser
from studies.roofline import LEVELS, PHASES, Machine, Stream, bench_roofline

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
    assert n_spikes < n_listed, "near-spikes are counted too"
    assert total(found, "deliver") == 4 * (20 * n_input + 10 * n_spikes)
    assert total(found, "step") == 8 * 7 * 3 * (20 + 10)
    events = 4 * (20 * n_input + 10 * n_listed)  # the input's values need no gradient, the hidden ones do
    weights = 8 * (30 * 20 + 20 * 10) + 4 * 20 * 10
    assert total(found, "deliver_grad") == events + weights
    # a hidden spike has both gradients, a hidden near-spike and an input spike one of them
    assert sum(s.n_additions for s in found) == 20 * n_input + 10 * (n_listed + n_spikes)
    assert total(found, "optimizer") == 28 * (30 * 20 + 20 * 10)


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


def test_bandwidths_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    for n_bytes, update, n_threads in ((4096, False, 1), (1, True, 1), (4096, True, 3)):
        assert (
            roofline.measure_bandwidth(n_bytes, update, 0.001, n_threads) > 1e6
        )  # of a machine that does other things too
    roofline._measure.cache_clear()
    monkeypatch.setenv("CC", "no-such-compiler")
    with pytest.raises(ConfigError, match="no-such-compiler cannot be run"):
        roofline.measure_bandwidth(4096, False, 0.001, 1)
    roofline._measure.cache_clear()


def test_command(capsys: pytest.CaptureFixture[str]) -> None:
    small = [
        "roofline",
        "--net",
        "30-20-4",
        "--steps",
        "10",
        "--batch",
        "4",
        "--input-activity",
        "0.2",
        "--repeats",
        "2",
    ]
    assert main([*small, "--json"], parser()) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["phases_ms"].keys() == {*PHASES, "pack", "other"}
    assert found["floor_ms"].keys() == {*PHASES, "total"}
    assert found["floor_ms"]["total"] == pytest.approx(sum(found["floor_ms"][phase] for phase in PHASES))
    assert found["share"]["total"] == pytest.approx(found["floor_ms"]["total"] / found["step_ms"])
    assert main(small, parser()) == 0
    assert "read-modify-write" in capsys.readouterr().out
    with pytest.raises(ConfigError, match="repeats is 0"):
        bench_roofline(Workload("30-20-4"), repeats=0)


def test_several_measurements_of_one_machine_count_by_their_medians() -> None:
    rates = (3e9, 1e9, 2e9)
    found = roofline.typical(
        [Machine(MACHINE.caches, dict.fromkeys(LEVELS, r), dict.fromkeys(LEVELS, 2 * r)) for r in rates]
    )
    assert found == Machine(MACHINE.caches, dict.fromkeys(LEVELS, 2e9), dict.fromkeys(LEVELS, 4e9))
