"""A live network gives the numbers of one call, with the weights that it had when it was made."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
import torch

import sparsesnn as ss
from sparsesnn import _core
from sparsesnn.engines.module import Layer

KINDS = ["plain", "recurrent", "capacity", "sparse", "some", "axonal"]
#: without delays between populations, which one call of the engine runs
KINDS += ["direct", "direct-recurrent", "direct-capacity"]


def network(kind: str) -> ss.Network:
    hidden = ss.LIF(33, recurrent="recurrent" in kind, bias=True, capacity=5 if "capacity" in kind else None)
    late = 0 if "direct" in kind else 1
    synapses = {"sparse": ss.Sparse(0.01, seed=3), "some": ss.Sparse(0.4, seed=3)}.get(kind, ss.Dense())
    axonal = ss.Delays(3, learn=True, seed=1) if kind == "axonal" else None
    return ss.Network(
        {"input": ss.Input(30), "a": hidden, "b": ss.CubaLIF(18), "out": ss.LI(5)},
        (
            ss.Connection("input", "a", 2 * late, synapses, axonal=axonal),
            ss.Connection("a", "b", late),
            ss.Connection("b", "out"),
        ),
    )


def model_of(kind: str, backend: str = "cpu", weight_dtype: str = "float32") -> ss.Model:
    model = ss.Model(network(kind), backend=backend, weight_dtype=weight_dtype)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if "->" in name and "delays" not in name:
                p.mul_(5)
    return model


def input_of(n_samples: int) -> ss.SpikeBatch:
    return ss.SpikeBatch.from_dense((torch.rand(13, n_samples, 30) < 0.3).float())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("backend", "weight_dtype"), [("cpu", "float32"), ("cpu", "bfloat16"), ("dense", "float32")])
def test_goes_on_with_the_weights_of_when_it_was_made(kind: str, backend: str, weight_dtype: str) -> None:
    if backend == "dense" and "capacity" in kind:
        pytest.skip("the dense backend has no lists to fill")
    model, spikes = model_of(kind, backend, weight_dtype), input_of(3)
    with torch.no_grad():
        whole = model.eval()(spikes)
    live = model.train().live()
    for p in model.parameters():
        p.data.add_(1.0)  # no counter of versions sees this
    for _ in range(2):
        parts = [live(spikes.steps(t, min(13, t + 2))) for t in range(0, 13, 2)]
        potentials = torch.cat([part.potentials for part in parts if part.potentials is not None])
        assert whole.potentials is not None
        assert float(whole.activity()["b"]) > 0
        assert torch.equal(potentials, whole.potentials)
        assert not potentials.requires_grad
        live.reset()


def test_leaves_the_model_as_it_was() -> None:
    model, spikes = model_of("capacity"), input_of(2)
    before = dict(model.named_parameters())
    live = model.live()
    live(spikes)
    assert model.training
    assert all(layer.training for layer in model.layers.values())
    assert all(x is before[name] for name, x in model.named_parameters())
    assert all(layer.snapshot is None for layer in model.layers.values())
    assert int(model.layers["a"].training_steps) == 0  # type: ignore[arg-type]
    with torch.no_grad():
        first = model(spikes).potentials
        for layer in model.layers.values():
            for weight in layer.weights:  # type: ignore[union-attr]
                weight.data.zero_()
        assert not torch.equal(first, model(spikes).potentials)


def test_weights_are_packed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    packed: list[str] = []
    pack = _core.pack_rows
    monkeypatch.setattr(_core, "pack_rows", lambda *a: (packed.append(a[-1]), pack(*a)))
    live = model_of("recurrent").live()
    assert sorted(packed) == ["a->a", "a->b", "b->out", "input->a"]
    live(input_of(2))
    live(input_of(2))
    assert len(packed) == 4
    _core.phase_seconds(reset=True)
    live(input_of(2))
    assert _core.phase_seconds(reset=True)["pack"] == 0.0


@pytest.mark.parametrize("kind", ["direct-recurrent", "recurrent"])
def test_a_copy_goes_on_by_itself(kind: str) -> None:
    live, spikes = model_of(kind).live(), input_of(2)
    live(spikes)
    twins = copy.deepcopy(live), pickle.loads(pickle.dumps(live))
    expected = live(spikes).potentials
    assert expected is not None
    for twin in twins:
        found = twin(spikes).potentials
        assert torch.equal(found, expected)


def test_not_a_number_is_named() -> None:
    model = model_of("plain")
    with torch.no_grad():
        model.layers["b"].weights[0][7, 3] = np.nan  # type: ignore[index]
    with pytest.raises(ss.errors.NumericError, match=r"b: a->b .*NaN.*\[7, 3\]"):
        model.live()


def test_layers_run_in_one_call_unless_a_hook_looks_at_one(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    forward = Layer.forward
    monkeypatch.setattr(Layer, "forward", lambda *given, **named: (calls.append("layer"), forward(*given, **named))[1])
    model, spikes = model_of("direct-recurrent"), input_of(2)
    expected = model.live()(spikes).potentials
    assert not calls
    model.layers["b"].register_forward_hook(lambda *_: calls.append("hook"))
    assert expected is not None
    assert torch.equal(model.live()(spikes).potentials, expected)
    assert calls == ["layer", "layer", "hook", "layer"]


def test_one_call_of_all_layers_checks_what_it_is_given() -> None:
    model, spikes = model_of("direct-recurrent"), input_of(2)
    live = model.live()
    with pytest.raises(ss.errors.ShapeError, match="29 neurons.*30"):
        live(ss.SpikeBatch.from_lists([[[3]]], 29))
    live(spikes)
    before = live.state
    with pytest.raises(
        ss.errors.ShapeError, match=r"1 sample cannot continue a sequence of 2; begin again with reset\(\)"
    ):
        live(spikes[0])
    assert live.state is before
    live.state = before  # then the number of samples may be another one
    with pytest.raises(ss.errors.ShapeError, match=r"shape \[2, 33\].*\[1, 33\]"):
        live(spikes[0])
    with pytest.raises(ss.errors.ShapeError, match=r"state is int; give the state of an output"):
        live.state = 5
    assert live.state is before
    spikes.ids.numpy()[3] = 77
    with pytest.raises(ss.errors.SpikeListError, match="77"):
        live(spikes)
    with torch.no_grad():
        model.layers["b"].beta.fill_(np.nan)  # type: ignore[union-attr]
    with pytest.raises(ss.errors.NumericError, match="b: beta of neuron 0 is -?nan"):
        model.live()(input_of(2))
