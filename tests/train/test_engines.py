"""Engines: one interface, one step, the same answers; an engine refuses unsupported options by name."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from sparsesnn import engines
from sparsesnn.engines import Batch, Engine, Objective, Training, Updates, make_engine
from sparsesnn.engines.objective import gather, sum_whole
from sparsesnn.errors import ConfigError, DescriptionError, NotFiniteError, SpikeListError
from sparsesnn.host.comm import Communicator, Grid, Local, make_grid, simulate
from sparsesnn.layers import LI, LIF, Input
from sparsesnn.network import Connection, Network, parse_net
from sparsesnn.spikes import SpikeBatch

TRAINING = Training(3, "mean", batch=19, seed=4, updates=Updates(lr=0.01, clip_norm=0.5))


def some_batch(n_in: int = 11, n_samples: int = 19, n_steps: int = 7) -> Batch:
    g = torch.Generator().manual_seed(5)
    spikes = SpikeBatch.from_dense((torch.rand(n_steps, n_samples, n_in, generator=g) < 0.3).float())
    return Batch(spikes, torch.randint(0, 3, (n_samples,), generator=g))


def part_of(batch: Batch, first: int, last: int) -> Batch:
    """The samples of one replica."""
    dense = batch.spikes.to_dense()[:, first:last]
    return Batch(SpikeBatch.from_dense(dense), batch.labels[first:last], first, len(batch.labels))


# ---- one interface -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("objective", [Objective(), Objective(0.1, lower=0.2, upper=0.01, strength_upper=50.0)])
def test_all_engines_take_the_same_steps(objective: Objective) -> None:
    """Three steps of training and one of inference: loss, norm, counts and weights, within rounding of `cpu`."""
    network, batch = parse_net("11-13r-3"), some_batch()
    found = {}
    for name in ("cpu", "dense", "ipu-model"):
        engine = make_engine(name, network, replace(TRAINING, objective=objective))
        engine.start()
        steps = [*(engine.step(batch, lr) for lr in (0.01, 0.02, 0.01)), engine.infer(batch)]
        found[name] = steps, engine.weights()
    assert [s.n_samples for s in found["cpu"][0]] == [19] * 4
    assert found["cpu"][0][3].gradient_norm == 0
    for name, (steps, weights) in found.items():
        for mine, ours in zip(steps, found["cpu"][0], strict=True):
            assert mine.loss == pytest.approx(ours.loss, rel=1e-4), name
            assert mine.gradient_norm == pytest.approx(ours.gradient_norm, rel=1e-3), name
            assert mine.activity["hidden"] == pytest.approx(ours.activity["hidden"], rel=1e-3), name
            assert (mine.n_correct, mine.dropped) == (ours.n_correct, ours.dropped), name
        assert set(weights) == set(found["cpu"][1])
        for key, tensor in weights.items():
            torch.testing.assert_close(tensor, found["cpu"][1][key], rtol=1e-3, atol=1e-5, msg=f"{name} {key}")


@pytest.mark.parametrize("name", ["cpu", "dense", "ipu-model"])
def test_state_is_all_that_the_next_step_depends_on(name: str) -> None:
    network, batch = parse_net("11-13r-3", bias=True), some_batch()
    first = make_engine(name, network, TRAINING)
    first.step(batch, 0.01)
    second = make_engine(name, network, replace(TRAINING, seed=9))
    assert second.weights_sha256() != first.weights_sha256()
    second.load(first.state(), "here")
    assert second.weights_sha256() == first.weights_sha256()
    # a note says how the first step of an engine went
    assert first.step(batch, 0.02) == replace(second.step(batch, 0.02), note="")
    assert second.weights_sha256() == first.weights_sha256()
    assert first.n_parameters == 11 * 13 + 13 * 13 + 13 * 3 + 13
    before = first.weights()
    first.step(batch, 0.02)
    assert second.weights_sha256() != first.weights_sha256()
    first.load_weights(before, "here")  # with newer moments
    assert second.weights_sha256() == first.weights_sha256()
    assert set(first.output(batch.spikes).activity()) == {"hidden"}


@pytest.mark.parametrize("grid", [(1, 3), (3, 1), (2, 2)])
def test_ranks_have_the_bits_of_one(grid: tuple[int, int]) -> None:
    network, batch = parse_net("11-75r-40-3", learn_beta=True), some_batch()
    training = replace(TRAINING, objective=Objective(0.1, upper=0.01, strength_upper=50.0))

    def run(engine: Engine, batch: Batch) -> Any:
        engine.start()
        steps = [engine.step(batch, 0.01), engine.step(batch, 0.02), engine.infer(batch)]
        return steps, engine.weights_sha256(), engine.n_parameters

    def on_rank(world: Communicator) -> Any:
        place = make_grid(world, *grid)
        edges = [0, 16, 19] if grid[0] == 2 else [0, 8, 16, 19] if grid[0] == 3 else [0, 19]
        part = part_of(batch, *edges[place.replicas.rank : place.replicas.rank + 2])
        engine = make_engine("cpu", network, training, place)
        columns = engine.columns
        assert columns is not None
        assert (columns["hidden1"] == (0, 75)) == (grid[1] == 1)
        return run(engine, part)

    want = run(make_engine("cpu", network, training), batch)
    for rank, got in enumerate(simulate(grid[0] * grid[1], on_rank)):
        assert got == want, f"rank {rank} of {grid}"


def test_sums_over_ranks() -> None:
    def on_rank(world: Communicator) -> tuple[list[float], list[float], list[float]]:
        x = torch.arange(world.rank, 3.0, requires_grad=True)
        counts = torch.full((2,), float(world.rank + 1), requires_grad=True)
        total = sum_whole(world, counts)
        (total * torch.tensor([1.0, 2.0])).sum().backward()
        assert counts.grad is not None
        return gather(world, x).tolist(), total.tolist(), counts.grad.tolist()

    for whole, total, gradient in simulate(3, on_rank):
        assert whole == [0, 1, 2, 1, 2, 2]
        assert total == [6, 6]
        assert gradient == [1, 2], "each rank's part of the gradient is its own"
    alone = torch.ones(2, requires_grad=True)
    assert sum_whole(Local(), alone) is alone
    assert not gather(Local(), alone).requires_grad


def test_a_mixed_sample_counts_as_its_larger_share() -> None:
    engine, batch = make_engine("cpu", parse_net("11-9-3"), TRAINING), some_batch(n_samples=5)
    shares = torch.nn.functional.one_hot(batch.labels, 3) * 0.6 + 0.4 / 3
    mixed, plain = (engine.infer(replace(batch, labels=labels)) for labels in (shares, batch.labels))
    assert mixed.n_correct == plain.n_correct
    assert mixed.loss != plain.loss


@pytest.mark.parametrize("what", ["loss", "norm of the gradients"])
@pytest.mark.parametrize("name", ["cpu", "dense"])
def test_what_is_not_finite_changes_nothing(name: str, what: str) -> None:
    engine, batch = make_engine(name, parse_net("11-9-3"), TRAINING), some_batch()
    engine.step(batch, 0.1)
    if what == "loss":  # the potentials of all classes become infinite
        engine.model.layers["output"].weights[0].data.fill_(3e38)
    before = engine.state()
    if what != "loss":
        next(engine.model.parameters()).register_hook(lambda gradient: gradient * math.nan)
    with pytest.raises(NotFiniteError, match=f"the {what} is nan") as caught:
        engine.step(batch, 0.1)
    assert (caught.value.what, math.isnan(caught.value.value)) == (what, True)
    after = engine.state()
    assert set(after) == set(before)
    assert all(torch.equal(after[key], before[key]) for key in before)


def test_a_threshold_that_lists_all_is_not_blamed() -> None:
    network = parse_net("11-9-3", grad_threshold=-math.inf)
    for name in ("cpu", "ipu-model"):
        engine = make_engine(name, network, replace(TRAINING, updates=Updates(lr=0.01)))
        with pytest.raises(NotFiniteError, match="the loss is inf") as caught:
            engine._check_finite("loss", math.inf, engine.weights)
        assert "grad_threshold" not in str(caught.value)


# ---- optimizers ----------------------------------------------------------------------------------------------------


def engine_with(updates: Updates, name: str = "dense") -> Any:
    hidden = LIF(5, recurrent=True, bias=True, learn_beta=True, learn_threshold=True)
    return make_engine(name, Network.chain(Input(7), hidden, LI(3)), replace(TRAINING, updates=updates))


@pytest.mark.parametrize("engine", ["cpu", "dense"])
@pytest.mark.parametrize("name", ["adamw", "adam", "sgd"])
def test_weight_decay_acts_on_weights_only(name: str, engine: str) -> None:
    made = engine_with(Updates(name, weight_decay=0.5), engine)
    groups = made.optimizer.param_groups
    decayed = {id(p) for group in groups if group["weight_decay"] for p in group["params"]}
    every = {id(p) for group in groups for p in group["params"]}
    names = {n for n, p in made.model.named_parameters() if id(p) in decayed}
    assert names == {"layers.hidden.input->hidden", "layers.hidden.hidden->hidden", "layers.output.hidden->output"}
    assert every == {id(p) for p in made.model.parameters()}


@pytest.mark.parametrize("updates", [Updates("adamw"), Updates("adam"), Updates("sgd"), Updates("sgd", momentum=0.9)])
@pytest.mark.parametrize("name", ["cpu", "dense"])
def test_state_keys_are_those_that_the_optimizer_makes(updates: Updates, name: str) -> None:
    engine = engine_with(updates, name)
    for parameter in engine.model.parameters():
        parameter.grad = torch.ones_like(parameter)
    engine.optimizer.step()
    for parameter in engine.model.parameters():
        state = engine.optimizer.state[parameter]
        assert {k for k, v in state.items() if v is not None} == updates.state_keys


@pytest.mark.parametrize("name", ["cpu", "dense"])
def test_clipping_scales_all_gradients_to_the_norm(name: str) -> None:
    def norm_with(clip_norm: float) -> float:
        engine.training = replace(TRAINING, updates=Updates(clip_norm=clip_norm))
        return float(engine.finish_backward())

    engine = engine_with(Updates(), name)
    assert norm_with(1.0) == 0.0, "no gradient yet"
    for parameter in engine.model.parameters():
        parameter.grad = torch.full_like(parameter, 2.0)
    n = engine.n_parameters
    assert norm_with(0.0) == pytest.approx(2 * math.sqrt(n))
    assert norm_with(1e6) == pytest.approx(2 * math.sqrt(n)), "below the limit nothing is scaled"
    assert norm_with(0.5) == pytest.approx(2 * math.sqrt(n)), "the norm before clipping is returned"
    assert norm_with(0.0) == pytest.approx(0.5)


# ---- unsupported options and networks --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("tpu", {}, "backend: is 'tpu'; allowed: cpu, gpu, dense, ipu-model, ipu"),
        (
            "cpu",
            {"keep_every": 3},
            "keep_every: is 3 with backend 'cpu'; only backend 'ipu-model' or 'ipu' reads it",
        ),
        (
            "dense",
            {"target": "ipu-mk2"},
            "target: is 'ipu-mk2' with backend 'dense'; only .*'ipu' reads it; remove it",
        ),
        ("ipu", {"weight_dtype": "bfloat16"}, "weight_dtype: is 'bfloat16' .* only backend 'cpu' or 'gpu' reads it"),
        ("cpu", {"weight_dtype": "int3"}, "weight_dtype: is 'int3'; allowed: float32, bfloat16"),
        ("cpu", {"precision": "bfloat16"}, "precision: is 'bfloat16' with backend 'cpu'; only backend 'dense'"),
        ("dense", {"precision": "float16"}, "precision: is 'float16', whose small gradients .* use 'bfloat16'"),
        ("dense", {"precision": "fp8"}, "precision: is 'fp8'; allowed: float32, tf32, bfloat16"),
        ("dense", {"device": "gpu"}, "device: is 'gpu'; allowed: cpu, cuda"),
        ("ipu-model", {"target": "cpu:4"}, "target: is 'cpu:4'; give an IPU"),
        ("ipu", {}, "backend 'ipu' needs the Poplar SDK"),
    ],
)
def test_options_that_an_engine_does_not_read(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_engine(name, parse_net("11-9-3"), replace(TRAINING, options=options))


def test_options_for_another_engine_are_left_out() -> None:
    options = {"weight_dtype": "bfloat16", "dense_mode": "hoist", "precision": "bfloat16"}
    assert engines.options_for("dense", options) == {"dense_mode": "hoist", "precision": "bfloat16"}
    assert engines.options_for("cpu", options) == {"weight_dtype": "bfloat16"}
    assert [engines.on_host(name) for name in engines.names()] == ["cpu", "cpu", "dense", "cpu", "cpu"]


def test_spikes_with_values_are_for_engines_whose_lists_carry_them() -> None:
    training = replace(TRAINING, graded=True)
    spikes = SpikeBatch.from_dense(3 * some_batch().spikes.to_dense(), graded=True)
    network = parse_net("11-13r-3")
    losses = []
    for name in ("cpu", "dense"):
        engine = make_engine(name, network, training)
        engine.start()
        losses.append(engine.step(replace(some_batch(), spikes=spikes), 0.01).loss)
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    with pytest.raises(ConfigError, match="data.duplicates.*'ipu-model'.*give duplicates = 'binary' .* cpu or dense"):
        make_engine("ipu-model", network, training)
    engine = make_engine("ipu-model", network, TRAINING)
    engine.start()
    with pytest.raises(SpikeListError, match="input: spikes have values, but an IPU"):
        engine.step(replace(some_batch(), spikes=spikes), 0.01)


def two_readouts() -> Network:
    populations = {"input": Input(11), "hidden": LIF(9), "early": LI(2), "output": LI(3)}
    pairs = [("input", "hidden"), ("hidden", "early"), ("hidden", "output")]
    return Network(populations, [Connection(a, b) for a, b in pairs])


@pytest.mark.parametrize(
    ("name", "network", "message"),
    [
        (
            "dense",
            lambda: parse_net("11-9-3", capacity=4),
            "hidden: capacity is 4, but backend 'dense' .* use backend 'cpu'",
        ),
        ("ipu-model", two_readouts, "early: is a second readout; .*one, 'output' at the end; .* use backend 'cpu'"),
    ],
)
def test_networks_that_an_engine_does_not_run(name: str, network: Callable[[], Network], message: str) -> None:
    with pytest.raises((ConfigError, DescriptionError), match=message):
        make_engine(name, network(), TRAINING)
    make_engine("cpu", network(), TRAINING)


class Torchrun(Local):
    """Looks like a rank of two that torchrun started."""

    launcher = "torchrun"

    def __init__(self) -> None:
        super().__init__()
        self.size = 2


@pytest.mark.parametrize("name", ["cpu", "ipu-model"])
def test_engines_know_their_launcher(name: str) -> None:
    want = f"is '{name}' on 2 ranks of torchrun; allowed: 'cpu' on ranks of mpirun or poprun, 'dense' on ranks of torchrun, 'ipu' on ranks of poprun, others"
    with pytest.raises(ConfigError, match=want):
        engines.engine_grid(name, Torchrun())
    with pytest.raises(ConfigError, match=want):
        make_engine(name, parse_net("11-9-3"), TRAINING, Grid(Torchrun(), Local(), Local()))


@pytest.mark.parametrize("name", ["dense", "ipu-model", "ipu"])
def test_engines_that_do_not_run_on_ranks_of_mpirun(name: str) -> None:
    def on_rank(world: Communicator) -> str:
        with pytest.raises(ConfigError, match=f"is '{name}' on 2 ranks of mpirun; allowed: 'cpu' on ranks of mpirun"):
            engines.engine_grid(name, world)
        return "refused"

    assert simulate(2, on_rank) == ["refused"] * 2
