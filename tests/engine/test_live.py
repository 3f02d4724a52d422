"""A network that runs on and on gives the numbers of one call, with the weights that it had when it was made."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import sparsesnn as ss
from sparsesnn import _core


def network(kind: str) -> ss.Network:
    hidden = ss.LIF(33, recurrent=kind == "recurrent", bias=True, capacity=5 if kind == "capacity" else None)
    synapses = {"sparse": ss.Sparse(0.01, seed=3), "some": ss.Sparse(0.4, seed=3)}.get(kind, ss.Dense())
    axonal = ss.Delays(3, learn=True, seed=1) if kind == "axonal" else None
    return ss.Network(
        {"input": ss.Input(30), "a": hidden, "b": ss.CubaLIF(18), "out": ss.LI(5)},
        (
            ss.Connection("input", "a", 2, synapses, axonal=axonal),
            ss.Connection("a", "b", 1),
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


@pytest.mark.parametrize("kind", ["plain", "recurrent", "capacity", "sparse", "some", "axonal"])
@pytest.mark.parametrize(("backend", "weight_dtype"), [("cpu", "float32"), ("cpu", "bfloat16"), ("dense", "float32")])
def test_goes_on_with_the_weights_of_when_it_was_made(kind: str, backend: str, weight_dtype: str) -> None:
    if backend == "dense" and kind == "capacity":
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


def test_not_a_number_is_named() -> None:
    model = model_of("plain")
    with torch.no_grad():
        model.layers["b"].weights[0][7, 3] = np.nan  # type: ignore[index]
    with pytest.raises(ss.errors.NumericError, match=r"b: a->b .*NaN.*\[7, 3\]"):
        model.live()
