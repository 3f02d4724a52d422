from __future__ import annotations

import json
import os
import re
import time
from pathlib import Path
from xml.etree import ElementTree

import pytest

from sparsesnn.cli import main
from sparsesnn.network import parse_net
from sparsesnn.partition.plan import Plan

POSTER = ["plan", "--net", "700-974-974-974-20s", "--target", "ipu-mk2"]


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main([*arguments]) == 0
    return capsys.readouterr().out


def refused(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 2) -> str:
    assert main([*arguments]) == code
    return capsys.readouterr().err


def test_a_table_says_where_what_and_how_fast(capsys: pytest.CaptureFixture[str]) -> None:
    out = run(capsys, *POSTER)
    assert "2,942 neurons, 2.60 M weights on ipu-mk2 (1 IPU of 1,472 tiles)" in out
    assert "hidden2     LIF" in out
    for phase in ("deliver", "step", "select", "compact", "exchange", "list gradient", "weight gradient", "optimizer"):
        assert f"\n{phase} " in out
    assert "bytes of 638,976" in out
    assert "predicted: " in out
    assert "not a measurement" in out
    assert max(map(len, out.splitlines())) <= 120


def test_json_holds_the_same_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    data = json.loads(run(capsys, *POSTER, "--json"))
    assert data["n_neurons"] == 2942
    assert data["n_weights"] == 700 * 974 + 2 * 974**2 + 974 * 20
    assert data["memory"]["bytes"] == sum(data["memory"]["items"].values())
    assert data["memory"]["bytes"] <= data["memory"]["limit"] == 638_976
    assert data["predicted"]["samples_per_s"] > 0
    assert [p["name"] for p in data["populations"]] == ["input", "hidden1", "hidden2", "hidden3", "output"]


def test_replicas_share_the_batch(capsys: pytest.CaptureFixture[str]) -> None:
    one, four = (json.loads(run(capsys, *POSTER, "--json", "--replicas", str(n)))["predicted"] for n in (1, 4))
    assert one["samples_per_s"] < four["samples_per_s"] < 4 * one["samples_per_s"]
    assert four["link_bytes_per_step"] > 0
    out = run(capsys, *POSTER, "--replicas", "4", "--regularizer")
    assert "batch 12 in each of 4 replicas" in out


@pytest.mark.parametrize("target", ["cpu:8", "mpi:16x2"])
def test_a_plan_for_cpus_counts_bytes_and_names_what_measures_speed(
    capsys: pytest.CaptureFixture[str], target: str
) -> None:
    words = ("plan", "--net", "700-512r-20", "--target", target)
    data = json.loads(run(capsys, *words, "--json"))
    assert data["predicted"] is None
    assert data["memory"]["bytes"] == sum(data["memory"]["items"].values()) > 0
    out = run(capsys, *words)
    assert f"{data['memory']['bytes']:,}" in out
    assert "dry-run" in out
    assert "predicted" not in out


def test_replicas_share_the_ranks(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("plan", "--net", "700-512r-20", "--target", "mpi:16x2", "--replicas", "2", "--json")
    data = json.loads(run(capsys, *words))
    assert (data["replicas"], data["target"]["name"], data["n_samples"]) == (2, "mpi:8x2", 24)


def test_potentials_kept_in_part_need_less(capsys: pytest.CaptureFixture[str]) -> None:
    all_kept, in_part = (json.loads(run(capsys, *POSTER, "--json", "--keep-every", n)) for n in ("1", "10"))
    histories = [x["memory"]["mean_items"]["history"] for x in (all_kept, in_part)]
    assert histories[1] == pytest.approx(0.19 * histories[0], rel=0.05)
    assert in_part["predicted"]["samples_per_s"] < all_kept["predicted"]["samples_per_s"]
    assert "potentials of 10 at a time" in run(capsys, *POSTER, "--keep-every", "10")


def test_a_plan_has_the_delays_of_training(capsys: pytest.CaptureFixture[str]) -> None:
    assert "hidden1 0" in run(capsys, *POSTER)
    assert "hidden1 1" in run(capsys, *POSTER, "--delay", "1")
    assert "hidden1 0" in run(capsys, "plan", "--net", "700-64-64-20", "--target", "cpu")


def test_activity_and_capacity_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    data = json.loads(
        run(capsys, *POSTER, "--json", "--activity", "input=0.015,hidden1=0.3", "--capacity", "input=48,hidden2=99")
    )
    by_name = {p["name"]: p for p in data["populations"]}
    assert (by_name["input"]["activity"], by_name["input"]["capacity"]) == (0.015, 48)
    assert (by_name["hidden1"]["activity"], by_name["hidden1"]["capacity"]) == (0.3, 49)
    assert by_name["hidden2"]["capacity"] == 99
    assert any("hidden1: 292 spikes a step are expected, but its lists have 49 slots" in n for n in data["notes"])


@pytest.mark.parametrize(
    ("net", "target", "words"),
    [
        ("700-974-974-20s", "ipu-mk2:2", {"IPU 0, KiB", "IPU 1, KiB", "hidden1", "tile"}),
        ("700-256r-20", "mpi:3x2", {"ranks, KiB", "rank"}),
    ],
)
def test_a_drawing_shows_every_device(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    net: str,
    target: str,
    words: set[str],
) -> None:
    matplotlib = pytest.importorskip("matplotlib", reason="matplotlib is optional")
    monkeypatch.setitem(matplotlib.rcParams, "svg.fonttype", "none")
    path = tmp_path / "plan.svg"
    run(capsys, "plan", "--net", net, "--target", target, "--plot", str(path))
    found = {e.text or "" for e in ElementTree.parse(path).getroot().iter("{http://www.w3.org/2000/svg}text")}
    assert words | {"weights"} <= found
    assert any(w.startswith("predicted: ") and w.endswith("(not measured)") for w in found) == target.startswith("ipu")


def test_the_saved_plan_is_the_plan(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    run(
        capsys,
        "plan",
        "--net",
        "70-33r-20",
        "--target",
        "ipu-mk2:1x16",
        "--batch",
        "5",
        "--steps",
        "7",
        "--save",
        str(path),
    )
    plan = Plan.from_json(path.read_text())
    assert (plan.n_samples, plan.n_steps, plan.target.name) == (5, 7, "ipu-mk2:1x16")
    assert [p.name for p in tmp_path.iterdir()] == ["plan.json"]


def test_a_network_from_a_file(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "net.json"
    path.write_text(parse_net("70-33r-20").to_json())
    assert "53 neurons" in run(capsys, "plan", "--network", str(path), "--target", "cpu:4")


def test_too_much_for_the_target(capsys: pytest.CaptureFixture[str]) -> None:
    err = refused(capsys, "plan", "--net", "700-974-974-974-20s", "--target", "ipu-mk2:1x64", code=1)
    assert "needs" in err
    assert "bytes on tile" in err
    assert "target 'ipu-mk2:1x64' has 638,976" in err
    assert "use ipu-mk2:4x64 with delay 1" in err


def test_too_much_for_a_rank(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["plan", "--net", "700-4096-4096-20", "--memory", "0.25", "--target"]
    err = refused(capsys, *arguments, "mpi:1x4", code=1)
    assert "needs" in err
    assert "bytes on rank 0 but target 'mpi:1x4' has 268,435,456" in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "the network is missing; give --net TEXT"),
        (["--net", "7-5-3", "--network", "x"], "the network is missing"),
        (["--network", "/nowhere/net.json"], "--network: /nowhere/net.json cannot be read"),
        (["--net", "7-5-3", "--target", "tpu"], "target 'tpu': allowed: ipu-mk2"),
        (["--net", "7-5-3", "--activity", "much"], "--activity: is 'much'; give a number"),
        (
            ["--net", "7-5-3", "--activity", "middle=0.1"],
            "activity: unknown population 'middle'; did you mean 'hidden'? allowed: input",
        ),
        (["--net", "7-5-3", "--activity", "1.5"], "activity of input is 1.5; allowed: 0 to 1"),
        (["--net", "7-5-3", "--capacity", "4"], "--capacity: is 4; name the population"),
        (["--net", "7-5-3", "--capacity", "hidden=6"], "capacity of hidden is 6; allowed: 1 to 5"),
        (["--net", "7-5-3", "--capacity", "x=6"], "capacity: unknown population 'x'; allowed: input"),
        (["--net", "7-5-3", "--max-activity", "some"], "--max-activity: is 'some'; give a share such as 0.05, or auto"),
        (["--net", "7-5-3", "--link", "12"], "--link: is '12'; give GB/s and µs"),
        (["--net", "7-5-3", "--target", "mpi:2x1", "--link", "1,2"], "--link: no speed is predicted for 'mpi:2x1'"),
        (
            ["--net", "7-5-3", "--target", "mpi:16x2", "--replicas", "3"],
            "16 ranks of 'mpi:16x2' cannot share evenly; give one of 1, 2, 4, 8, 16",
        ),
        (
            ["--net", "7-5-3", "--target", "mpi:16x2", "--replicas", "8", "--batch", "5"],
            "--replicas: is 8, for a batch of 5",
        ),
        (["--net", "7-5-3", "--link", "0,2"], "--link: is '0,2'"),
        (["--net", "7-5-3", "--max-activity", "0"], "max_activity is 0.0; allowed: above 0"),
        (["--net", "7-5-3", "--batch", "0"], "batch is 0; allowed: whole numbers from 1 to 1,000,000"),
        (["--net", "7-5-3", "--memory", "1"], "--memory: target 'ipu-mk2' has its memory in its tiles"),
        (["--net", "7-5-3", "--target", "cpu", "--memory", "-1"], "--memory: is -1.0"),
        (["--net", "7-5-3", "--delay", "-1"], "delay is -1; allowed: "),
        (["--net", "7-5-3", "--replicas", "0"], "--replicas: is 0 on 'ipu-mk2'; give a whole number, at least 1"),
        (["--net", "7-5-3", "--target", "cpu:2", "--replicas", "2"], "replicas is 2 on 'cpu:2'"),
        (["--net", "7-5-3", "--plot", "/nowhere/a.svg"], "--plot: /nowhere/a.svg cannot be written"),
    ],
)
def test_wrong_options_are_refused(capsys: pytest.CaptureFixture[str], arguments: list[str], message: str) -> None:
    assert message in refused(capsys, "plan", *arguments)


@pytest.mark.slow
def test_190_000_neurons_on_16_ipus_in_seconds(capsys: pytest.CaptureFixture[str]) -> None:
    """The largest network of Finkbeiner et al. 2024: 184 M weights. Process time: the machine may be busy."""
    net = "-".join(["700", *["976"] * 192, "20s"])
    start = time.process_time()
    data = json.loads(
        run(capsys, "plan", "--net", net, "--delay", "1", "--target", "ipu-mk2:16", "--batch", "24", "--json")
    )
    assert time.process_time() - start < 10
    assert data["n_neurons"] > 187_000
    assert data["n_weights"] > 180e6
    assert data["memory"]["bytes"] <= 638_976
    assert any("hidden100 on, cannot receive a spike within T=100" in note for note in data["notes"])


def test_measured_activity(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "result.json").write_text(json.dumps({"activity": {"hidden": 0.125}}))
    arguments = [
        "plan",
        "--net",
        "70-64-20",
        "--target",
        "ipu-mk2:1x64",
        "--json",
        "--max-activity",
        "auto",
        "--activity",
    ]
    for source in (tmp_path, tmp_path / "result.json"):
        data = json.loads(run(capsys, *arguments, str(source)))
        assert [p["activity"] for p in data["populations"]] == [0.02, 0.125, 0.02]
        assert data["populations"][1]["capacity"] == 28  # 8·1.64 listed, and four times their root
    (tmp_path / "result.json").write_text(
        json.dumps({"activity": {"hidden": 0.125}, "machine": {"lists": {"hidden": 40}}})
    )
    data = json.loads(run(capsys, *arguments, str(tmp_path)))
    assert data["populations"][1]["capacity"] == 40  # as in that run
    (tmp_path / "result.json").write_text('{"activity": {"hidden": "much"}}')
    assert 'has no "activity" by population' in refused(capsys, *arguments, str(tmp_path))
    (tmp_path / "result.json").write_text("{")
    assert "result.json cannot be read" in refused(capsys, *arguments, str(tmp_path))


def test_more_ipus_that_gain_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    deep = ("plan", "--net", "30-24-24-24-24-5", "--delay", "1", "--batch", "4", "--steps", "9", "--target")
    assert "4 IPUs bring almost no gain" in run(capsys, *deep, "ipu-mk2:4x64")
    assert any(
        "on 2; use the IPUs for replicas" in note
        for note in json.loads(run(capsys, *deep, "ipu-mk2:4x64", "--json"))["notes"]
    )
    assert "next to nothing" not in run(capsys, *deep, "ipu-mk2:1x64")


def test_a_tile_that_is_nearly_full(capsys: pytest.CaptureFixture[str]) -> None:
    out = run(capsys, *POSTER, "--max-activity", "1")
    assert "the fullest tile is 9" in out
    assert "lower the capacity" in out


# ---- sweeps ----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_sweeps_print_tables_and_json(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is optional")
    table = run(capsys, "plan", "--sweep", "sensitivity")
    assert "| barrier (200 cycles) |" in table
    path = tmp_path / "scaling.png"
    rows = json.loads(run(capsys, "plan", "--sweep", "weak-scaling", "--ipus", "1,2", "--json", "--plot", str(path)))
    assert path.read_bytes().startswith(b"\x89PNG")
    one, two = (r for r in rows if r["series"] == "deeper, 3 layers an IPU, batch 48")
    assert (one["x"], two["x"]) == (1, 2)
    assert two["n_neurons"] == 2 * one["n_neurons"] - 20
    assert one["link_share"] == 0 < two["link_share"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--sweep", "activity", "--net", "7-5-3"], "--sweep: has its own networks"),
        (["--sweep", "activity", "--target", "cpu"], "--sweep: target is 'cpu'; give ipu-mk2 or ipu-bow"),
        (["--sweep", "weak-scaling", "--ipus", "1,1"], "--ipus: is '1,1'; give different whole numbers"),
        (["--sweep", "weak-scaling", "--ipus", "a"], "--ipus: is 'a'"),
        (["--sweep", "sensitivity", "--plot", "a.png"], "--plot: sensitivity is only a table"),
        (["--net", "7-5-3", "--plot", "a.gif"], "a.gif ends in '.gif'; end its name in .png, .svg or .pdf"),
    ],
)
def test_wrong_sweeps_are_refused(capsys: pytest.CaptureFixture[str], arguments: list[str], message: str) -> None:
    assert message in refused(capsys, "plan", *arguments)


@pytest.mark.parametrize(
    ("arguments", "bound"),
    [
        ("--net 10-1000000000", "n is 1000000000; .* 1 to 268,435,456"),
        ("--net 10-1000000000 --target cpu", "n is 1000000000; .* 1 to 268,435,456"),
        (f"--net 10-{2**63}", "is no size|1 to 268,435,456"),
        ("--net 10-100000000 --target cpu", "100,000,000 neurons, .* allowed: 262,144"),
        ("--net 100000x100000x100000:3C8-10 --target cpu", "n is 1000000000000000; .* 1 to 268,435,456"),
        ("--net 1x5000x5000:3C8-10 --target cpu", "199,840,032 neurons, .* allowed: 262,144"),
        ("--net 10-10 --target mpi:1000000x1000000", "devices is 1000000; allowed: .* 1 to 4,096"),
        ("--net 10-10 --target ipu-mk2:1x9999999", "tiles is 9999999; allowed: .* 1 to 65,536"),
        ("--net 10-10 --target cpu:9999999", "tiles is 9999999; allowed: .* 1 to 65,536"),
        ("--net 10-10 --replicas 1000000000000", "replicas is 1000000000000 .* 1 to 4,096"),
        ("--net 10-10 --batch 1000000000000 --target cpu", "batch is 1000000000000; allowed: .* 1 to 1,000,000"),
        (f"--net 10-10 --steps {10**21}", f"steps is {10**21}; allowed: .* 1 to 1,000,000"),
        (f"--sweep weak-scaling --ipus {10**20}", f"--ipus: is '{10**20}'; .* 1 to 1,024"),
    ],
)
def test_numbers_have_bounds(arguments: str, bound: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", *arguments.split()]) == 2
    assert re.search(bound, capsys.readouterr().err)


def test_networks_in_files_have_bounds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    net, place = parse_net("10-8-4").to_dict(), tmp_path / "net.json"

    def refusal(text: str) -> str:
        place.write_text(text)
        assert main(["plan", "--network", str(place), "--target", "cpu"]) == 2
        return capsys.readouterr().err

    for n in (2**63, 10**30, -1):
        net["populations"]["output"]["n"] = n
        assert f"n is {n}; give a whole number of neurons, from 1 to 268,435,456" in refusal(json.dumps(net))
    assert "is not JSON" in refusal(json.dumps(net).replace("-1", "9" * 5000))
    assert "is not JSON" in refusal("[" * 100_000)
    many = {"populations": {f"p{k}": {"model": "Input", "n": 1} for k in range(5000)}, "connections": []}
    assert "has 5,000 populations; allowed: 4,096" in refusal(json.dumps(many))
    place.unlink()
    os.mkfifo(place)  # opening it would wait for ever
    assert main(["plan", "--network", str(place)]) == 2
    assert "net.json: is a pipe; give a file" in capsys.readouterr().err
    assert main(["train", "digits", "--config", str(place)]) == 2
    assert "net.json: is a pipe; give a file" in capsys.readouterr().err
