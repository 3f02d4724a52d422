"""Whole runs over ranks, simulated as threads: the bits of one rank, checkpoints for any number of them, faults."""

from __future__ import annotations

import errno
import json
import math
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sparsesnn import engines
from sparsesnn.errors import CheckpointError, ConfigError, DataError, NotFiniteError
from sparsesnn.host.comm import Communicator, simulate
from sparsesnn.network import parse_net
from sparsesnn.synapses import sparse
from sparsesnn.train import Config, Report, Result, load_run, prepare, train
from sparsesnn.train.checkpoint import CheckpointStore
from sparsesnn.train.metrics import Tally, read_metrics
from sparsesnn.whole_file import write_atomically

GRIDS = {"2 replicas": (2, 1), "2 shards": (1, 2), "3 shards": (1, 3), "2 x 2": (2, 2)}


def make_config(**sections: dict[str, Any]) -> Config:
    small: dict[str, Mapping[str, Any]] = {
        "data": {
            "name": "synthetic", "n_neurons": 17, "n_classes": 3, "n_steps": 11, "n_samples": 90, "activity": 0.2,
            "valid": "random:0.15",
        },
        "net": {"text": "auto-70r-40-auto", "capacity": 12, "bias": True, "learn_beta": True},
        "init": {"activity": 0.1, "tolerance": 0.5, "mean_shift": 0.1},
        "augment": {"event_drop": 0.1},
        "loss": {"lower": 0.02, "upper": 0.1},
        "optim": {"lr": 0.02, "clip_norm": 0.5},
        "train": {"epochs": 3, "batch": 27, "tensorboard": False, "plots": False, "threads": 1},
    }  # fmt: skip
    return Config.resolve(small, sections)


def train_on(config: Config, grid: tuple[int, int], out: Path, **options: Any) -> list[Result]:
    config = config.with_values({"parallel": {"replicas": grid[0], "shards": grid[1]}})
    return simulate(grid[0] * grid[1], lambda world: train(config, out=out, world=world, **options))


def numbers(folder: Path) -> list[dict[str, Any]]:
    timed = ("seconds", "waited_s", "wait_share", "valid_seconds", "samples_per_s", "communication_s", "bytes_sent")
    return [{k: v for k, v in record.items() if k not in timed} for record in read_metrics(folder)]


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> tuple[Result, Path]:
    out = tmp_path_factory.mktemp("alone")
    return train(make_config(), out=out), out


@pytest.mark.parametrize("grid", GRIDS.values(), ids=GRIDS)
def test_a_run_is_that_of_one_rank(grid, alone, tmp_path):
    whole, folder = alone
    results = train_on(make_config(), grid, tmp_path)
    assert {result.weights_sha256 for result in results} == {whole.weights_sha256}
    assert numbers(tmp_path) == numbers(folder)
    for name in (
        "test_accuracy",
        "test_loss",
        "valid_accuracy",
        "activity",
        "dropped",
        "n_parameters",
        "best_epoch",
        "neurobench",
    ):
        assert getattr(results[0], name) == getattr(whole, name)
    assert json.loads((tmp_path / "result.json").read_text())["weights_sha256"] == whole.weights_sha256
    ranks = results[0].ranks
    assert (ranks["replicas"], ranks["shards"]) == grid
    assert len(ranks["bytes_sent"]) == grid[0] * grid[1]
    assert all(n > 0 for n in ranks["bytes_sent"])
    assert len(read_metrics(tmp_path)[0]["communication_s"]) == grid[0] * grid[1]
    # the checkpoint is read by one rank
    assert load_run(tmp_path, weights="last").engine.weights_sha256() == whole.weights_sha256


@pytest.mark.parametrize("grid", GRIDS.values(), ids=GRIDS)
def test_maps(grid, tmp_path):
    """Norms, checkpoints, and initialization by activity; a population of maps is whole on one rank."""
    net = {"text": "2x9x4:3C5p-MP2-2C6-70-auto"}
    config = make_config(data={"n_neurons": 72}, net=net, train={"epochs": 2, "checkpoint_batches": 1})
    whole = train(config, out=tmp_path / "a")
    with pytest.raises(KeyboardInterrupt):
        train_on(config, grid, tmp_path / "b", report=StopAt(5))
    results = train_on(config, grid, tmp_path / "b", resume=True)
    assert {result.weights_sha256 for result in results} == {whole.weights_sha256}
    assert numbers(tmp_path / "b") == numbers(tmp_path / "a")
    assert load_run(tmp_path / "b", weights="last").engine.weights_sha256() == whole.weights_sha256


@pytest.mark.parametrize("optim", [{"name": "sgd"}, {"name": "adam"}])
def test_other_optimizers_and_decodings(optim, tmp_path):
    config = make_config(optim=optim, loss={"decoding": "mean"}, net={"text": "auto-140-auto"}, train={"epochs": 1})
    whole = train(config, out=tmp_path / "a")
    assert train_on(config, (2, 2), tmp_path / "b")[0].weights_sha256 == whole.weights_sha256


@pytest.mark.slow
def test_sparse_synapses_and_a_checkpoint_of_them(tmp_path, monkeypatch):
    monkeypatch.setattr(sparse, "DENSEST", 1 / 32)
    config = make_config(net={"text": "auto-140rp0.02-90p0.02-auto"}, train={"checkpoint_batches": 1})
    whole = train(config, out=tmp_path / "a")
    with pytest.raises(KeyboardInterrupt):
        train_on(config, (1, 3), tmp_path / "b", report=StopAt(5))
    assert train_on(config, (2, 2), tmp_path / "b", resume=True)[0].weights_sha256 == whole.weights_sha256
    assert load_run(tmp_path / "b", weights="last").engine.weights_sha256() == whole.weights_sha256


def test_axonal_delays_and_a_checkpoint_of_them(tmp_path):
    net = {"axonal_delays": 3, "recurrent_axonal_delays": 4, "learn_axonal_delays": True}
    config = make_config(net=net, train={"checkpoint_batches": 1})
    whole = train(config, out=tmp_path / "a")
    with pytest.raises(KeyboardInterrupt):
        train_on(config, (1, 3), tmp_path / "b", report=StopAt(5))
    assert train_on(config, (2, 2), tmp_path / "b", resume=True)[0].weights_sha256 == whole.weights_sha256
    last = load_run(tmp_path / "b", weights="last").engine
    assert last.weights_sha256() == whole.weights_sha256
    delays = {name: x for name, x in last.model.state_dict().items() if name.endswith(":delays")}
    assert sorted(len(x) for x in delays.values()) == [17, 70, 70]


@pytest.mark.parametrize("net", ["auto-70r-40-auto", "auto-70rp0.3-auto"])
def test_spikes_with_values(net, tmp_path, monkeypatch):
    monkeypatch.setattr(sparse, "DENSEST", 1 / 2)
    rng = np.random.default_rng(5)
    sample = np.repeat(np.arange(60), 200)
    times, units = rng.uniform(0, 11, sample.size), rng.integers(0, 6, sample.size) + sample % 3 * 5
    events = {"t_ms": times, "unit": units, "sample": sample, "label": np.arange(60) % 3}
    np.savez(tmp_path / "train.npz", **events)
    window = {
        "n_steps": 11,
        "dt_ms": 1.0,
        "duplicates": "count",
        "n_neurons": 17,
        "valid": "random:0.1",
        "test": "random:0.2",
    }
    data = {"name": "events", "dir": str(tmp_path / "train.npz"), **window}
    sections = make_config(
        net={"text": net}, train={"epochs": 1, "batch": 17}, augment={"channel_jitter": 0.5}
    ).to_dict()
    config = Config.resolve({**sections, "data": data})
    assert prepare.load_parts(config.data).train.event_set.values.max() > 3
    whole = train(config, out=tmp_path / "a")
    assert whole.neurobench["synaptic_operations"]["Effective_MACs"] > 0
    for grid in ((2, 2), (1, 3)):
        found = train_on(config, grid, tmp_path / str(grid))[0]
        assert (found.weights_sha256, found.neurobench) == (whole.weights_sha256, whole.neurobench)


def test_mixed_samples_and_a_spiking_readout(tmp_path):
    config = make_config(
        augment={"mix": 0.5, "blend": 0.5, "time_mask": 0.3},
        loss={"label_smoothing": 0.1},
        net={"text": "auto-70c-autos"},
        train={"epochs": 1, "batch": 64},
    )
    whole = train(config, out=tmp_path / "a")
    assert train_on(config, (3, 1), tmp_path / "b")[0].weights_sha256 == whole.weights_sha256


def test_an_average_and_dropout_over_ranks_and_a_checkpoint_of_it(tmp_path):
    config = make_config(
        optim={"ema": 0.9, "lr_factors": {"recurrent": 0.5}},
        loss={"decoding": "softmax_sum"},
        dropout={"neurons": 0.1, "spikes": 0.2},
        init={"recurrent": "orthogonal"},
    )
    whole = train(config, out=tmp_path / "a")
    with pytest.raises(KeyboardInterrupt):
        train_on(config, (1, 2), tmp_path / "b", report=StopAt(5))
    result = train_on(config, (2, 2), tmp_path / "b", resume=True)[0]
    assert result.weights_sha256 == whole.weights_sha256
    runs = [load_run(tmp_path / name, weights="last").engine.weights_sha256() for name in "ab"]
    assert runs[0] == runs[1] != whole.weights_sha256
    assert (result.test_loss, result.valid_loss) == (whole.test_loss, whole.valid_loss)
    assert result.per_class == whole.per_class
    assert sum(row["n_samples"] for row in whole.per_class) == whole.n_test


@pytest.mark.parametrize("grid", [(1, 2), (2, 1)])
def test_integer_weights_over_ranks(grid, tmp_path):
    config = make_config(train={"weight_dtype": "int8", "epochs": 2})
    whole = train(config, out=tmp_path / "a")
    assert {result.weights_sha256 for result in train_on(config, grid, tmp_path / "b")} == {whole.weights_sha256}


class StopAt(Report):
    """Stops a run by an error after a number of batches, as a crash would."""

    def __init__(self, n_batches: int) -> None:
        super().__init__(quiet=True)
        self.left = n_batches

    def batch(self, tally: Tally) -> None:
        self.left -= 1
        if self.left == 0:
            raise KeyboardInterrupt


@pytest.mark.parametrize(("before", "after"), [((1, 3), (1, 1)), ((1, 1), (2, 2)), ((1, 2), (1, 3)), ((2, 2), (1, 2))])
def test_a_checkpoint_is_for_any_number_of_ranks(before, after, alone, tmp_path):
    whole, _ = alone
    config = make_config(train={"checkpoint_batches": 1})
    with pytest.raises(KeyboardInterrupt):
        train_on(config, before, tmp_path, report=StopAt(5))
    saved = CheckpointStore(tmp_path).read()
    assert len(saved.tensors) == before[1]
    assert all((tmp_path / file.file).stat().st_size == file.n_bytes for file in saved.tensors)
    results = train_on(config, after, tmp_path, resume=True)
    assert {result.weights_sha256 for result in results} == {whole.weights_sha256}
    assert len(list(tmp_path.glob("ckpt-*"))) == after[1]  # the older ones are gone


def test_a_run_goes_on_with_fewer_ranks_and_with_more_again(alone, tmp_path):
    whole, _ = alone
    config = make_config(train={"checkpoint_batches": 2})
    for grid, n_batches in (((1, 2), 5), ((1, 1), 4)):
        with pytest.raises(KeyboardInterrupt):
            train_on(config, grid, tmp_path, report=StopAt(n_batches), resume=True)
    results = train_on(config, (2, 1), tmp_path, resume=True)
    assert {result.weights_sha256 for result in results} == {whole.weights_sha256}


def test_a_full_disk_ends_all(tmp_path, monkeypatch):
    def fill(path, data):
        if "-2of3" in path.name and "000000000" not in path.name:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write_atomically(path, data)

    monkeypatch.setattr("sparsesnn.train.checkpoint.write_atomically", fill)
    with pytest.raises(
        CheckpointError, match=r"rank 1/3: .*-2of3.safetensors: cannot be written: No space left .* intact"
    ):
        train_on(make_config(train={"checkpoint_batches": 1}), (1, 3), tmp_path)
    assert CheckpointStore(tmp_path).read().progress["step"] == 0


def test_a_rank_whose_weights_are_not_finite_ends_all(tmp_path):
    def on_rank(world):
        engine = engines.make_engine(
            "cpu", parse_net("11-70-40-3"), engines.Training(3, "max"), engines.engine_grid("cpu", world, 1, 0)
        )
        state = engine.state()
        engine.check_state(state)
        if world.rank == 2:  # a threshold of the lists may be infinite; a weight may not
            state["model/layers.hidden2.hidden1->hidden2"][0, 0] = -math.inf
        with pytest.raises(NotFiniteError) as caught:
            engine.check_state(state)
        return str(caught.value)

    said = simulate(3, on_rank)
    assert said == ["the model/layers.hidden2.hidden1->hidden2 is -inf"] * 3


def test_a_finished_run_stands(alone, tmp_path):
    whole, folder = alone
    shutil.copytree(folder, tmp_path / "copy")
    results = train_on(make_config(), (1, 2), tmp_path / "copy", resume=True)
    assert [result.weights_sha256 for result in results] == [whole.weights_sha256] * 2


def test_a_damaged_shard_names_the_rank(tmp_path):
    config = make_config(train={"epochs": 1})
    train_on(config, (1, 2), tmp_path)
    longer = make_config(train={"epochs": 2}, optim={"schedule": "constant"})
    with pytest.raises(CheckpointError, match="another configuration"):
        train_on(longer, (1, 2), tmp_path, resume=True)
    (tmp_path / "result.json").unlink()
    second = CheckpointStore(tmp_path).read().tensors[1]
    path = tmp_path / second.file
    path.write_bytes(path.read_bytes()[:-1] + b"!")
    with pytest.raises(CheckpointError, match=r"^rank 1/2: .*is damaged \(its SHA-256"):
        train_on(config, (1, 2), tmp_path, resume=True)


def test_ranks_must_be_alike(tmp_path):
    def with_rate(world: Communicator) -> Result:
        return train(make_config(optim={"lr": 0.1 + 0.1 * (world.rank == 1)}), out=tmp_path, world=world)

    with pytest.raises(
        ConfigError, match="rank 1/2: the configuration differs .* optim.lr is 0.2, there 0.1; start all"
    ):
        simulate(2, with_rate)


def test_ranks_must_have_the_same_data(tmp_path, monkeypatch):
    original, changed = prepare.load_parts, iter([make_config(data={"activity": 0.3}).data])
    monkeypatch.setattr(prepare, "load_parts", lambda data: original(next(changed, data)))  # one of the ranks'
    with pytest.raises(
        ConfigError, match=r"rank \d/2: the data differs from that of rank 0: .*; give all ranks the same"
    ):
        simulate(2, lambda world: train(make_config(), out=tmp_path, world=world))


def test_a_rank_that_cannot_read_ends_all(tmp_path, monkeypatch):
    original, errors = prepare.load_parts, iter([DataError("no such file")])

    def load(data):
        for error in errors:
            raise error
        return original(data)

    monkeypatch.setattr(prepare, "load_parts", load)
    with pytest.raises(DataError, match="no such file"):
        simulate(3, lambda world: train(make_config(), out=tmp_path, world=world))


def test_grids_and_backends_that_cannot_be(tmp_path):
    with pytest.raises(ConfigError, match="2 replicas × any number of shards do not make 1 rank; .* or start 2 ranks"):
        train(make_config(parallel={"replicas": 2}), out=tmp_path)
    with pytest.raises(
        ConfigError, match="train.backend: is 'dense' on 2 ranks of mpirun; allowed: 'cpu' on ranks of mpirun"
    ):
        train_on(make_config(train={"backend": "dense"}), (2, 1), tmp_path)
    with pytest.raises(ConfigError, match="parallel.shards: is -1; allowed: whole numbers, 0 to"):
        make_config(parallel={"shards": -1})
    assert not list(tmp_path.iterdir())
