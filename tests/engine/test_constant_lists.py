"""Lists that are the same at all steps: one list for each sample, whose current the first layer computes once."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
import torch
from torch import Tensor

import sparsesnn as ss
from sparsesnn import encode
from sparsesnn.errors import ShapeError, SpikeListError

T, B = 17, 11
LISTED: dict[str, Any] = {"grad_threshold": 0.3, "bias": True}
NETS: dict[str, ss.Network] = {
    "plain": ss.parse_net("64-70-10", **LISTED),
    "recurrent": ss.parse_net("64-70r-33-10s", **LISTED),
    "sparse": ss.parse_net("64-257p0.02-10", **LISTED),
    "convolution": ss.parse_net("1x8x8:3C5-10", **LISTED),
    "readout": ss.parse_net("64-10"),
    "learnt": ss.parse_net("64-70-10", learn_beta=True, learn_threshold=True, **LISTED),
    "capacity": ss.parse_net("64-70-10", capacity=9, **LISTED),
    "twice": ss.Network(
        {"in": ss.Input(64), "a": ss.LIF(70, **LISTED), "b": ss.LIF(33, **LISTED), "out": ss.LI(10)},
        [ss.Connection("in", "a"), ss.Connection("in", "b"), ss.Connection("a", "b"), ss.Connection("b", "out")],
    ),
    "delayed": ss.parse_net("64-70-10", **LISTED).with_delay(2),
    "pooled": ss.parse_net("1x8x8:MP2-3C5-10", **LISTED),
}


def images() -> Tensor:
    x = torch.rand(B, 64, generator=torch.Generator().manual_seed(1))
    return x * (x > 0.5)


def model_of(net: ss.Network, **more: Any) -> ss.Model:
    model = ss.Model(net, seed=3, **more)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if "->" in name:
                p.mul_(2)
    return model


def loss_of(output: ss.Output) -> Tensor:
    assert output.potentials is not None
    weights = torch.linspace(-1, 1, output.potentials.numel()).view_as(output.potentials)
    loss = (output.potentials * weights).sum()
    for name in output.spikes:
        counts = output.counts(name)
        loss = loss + (counts * torch.linspace(-1, 1, counts.numel()).view_as(counts)).sum() / 100
    return loss


def train(model: ss.Model, spikes: ss.SpikeBatch) -> tuple[Tensor, dict[str, Tensor]]:
    output = model(spikes, potentials=True)
    assert all(output.activity().values())
    loss_of(output).backward()
    assert output.potentials is not None
    return output.potentials.detach(), {k: p.grad for k, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("weight_dtype", ["float32", "bfloat16", "int8"])
@pytest.mark.parametrize("name", NETS)
def test_lists_that_repeat_give_the_same_spikes_and_gradients(name: str, weight_dtype: str) -> None:
    """The spikes to the bit; the gradient of the first weights is another order of the same sum."""
    net, once = NETS[name], encode.direct(images(), T)
    if weight_dtype != "float32" and not net.is_matrices:
        pytest.skip("rounded weights: matrices alone")
    potentials, gradients = train(model_of(net, weight_dtype=weight_dtype), once)
    expected, others = train(model_of(net, weight_dtype=weight_dtype), once.expanded())
    if name == "twice":
        assert torch.allclose(potentials, expected, rtol=1e-4, atol=1e-4)
    else:
        assert torch.equal(potentials, expected)
    for k, g in others.items():
        scale = float(g.abs().max())
        worst = float((gradients[k] - g).abs().max())
        assert worst <= 2e-5 * scale + 1e-7, f"{k}: differs by {worst:g} of {scale:g}"


@pytest.mark.parametrize("name", NETS)
def test_gradients_are_those_of_the_dense_engine(name: str) -> None:
    net, once = NETS[name], encode.direct(images(), T)
    if name == "capacity":
        pytest.skip("the dense backend has no lists to fill")
    _, gradients = train(model_of(net), once)
    _, expected = train(model_of(net, backend="dense"), once)
    for k, g in expected.items():
        scale = float(g.abs().max())
        worst = float((gradients[k] - g).abs().max())
        assert worst <= 3e-4 * scale + 1e-7, f"{k}: differs by {worst:g} of {scale:g}"


@pytest.mark.parametrize("name", NETS)
def test_bits_of_learn_threads_and_repeats(name: str) -> None:
    net, once = NETS[name], encode.direct(images(), T)
    potentials, expected = train(model_of(net), once)
    before = ss.num_threads()
    for n_threads in (1, 3):
        ss.set_num_threads(n_threads)
        try:
            model = model_of(net)
            _, output = model.learn(once, loss_of, potentials=True)
        finally:
            ss.set_num_threads(before)
        assert output.potentials is not None
        assert torch.equal(output.potentials.detach(), potentials)
        for k, p in model.named_parameters():
            assert p.grad is not None
            assert torch.equal(p.grad, expected[k]), k


@pytest.mark.parametrize("name", NETS)
def test_chunks_and_live_equal_one_call(name: str) -> None:
    model, once = model_of(NETS[name]).eval(), encode.direct(images(), T)
    with torch.no_grad():
        whole = model(once, potentials=True)
        live, state, parts = model.live(), None, []
        for start, stop in ((0, 5), (5, 6), (6, T)):
            output = model(once.steps(start, stop), state, potentials=True)
            now = live(once.steps(start, stop))
            state = output.state
            parts.append(output.potentials)
            assert now.activity() == output.activity()
    assert whole.potentials is not None
    assert torch.equal(torch.cat(parts), whole.potentials)


def test_a_layer_alone() -> None:
    layer = ss.Layer(ss.LIF(70, **LISTED), 64)
    once = encode.direct(images(), T)
    a, _ = layer(once)
    b, _ = layer(once.expanded())
    assert torch.equal(a.to_dense(), b.to_dense())
    two = ss.Layer(ss.LIF(70, **LISTED), [None, 64])
    x = torch.rand(B, 70)
    a, _ = two([x, once], n_steps=T)
    b, _ = two([x, once.expanded()], n_steps=T)
    assert torch.equal(a.to_dense(), b.to_dense())


def test_values_as_currents() -> None:
    """Numbers in lists are the currents of a network that reads some."""
    net, x = ss.parse_net("currents-64-10", **LISTED), images()
    a = model_of(net)(encode.direct(x, T))
    b = model_of(net)(x, n_steps=T)
    c = model_of(net)(encode.direct(x, T).expanded())
    assert a.potentials is not None
    assert b.potentials is not None
    assert c.potentials is not None
    assert torch.equal(a.potentials, b.potentials)
    assert torch.equal(c.potentials, b.potentials)


def test_recordings_are_those_of_the_engine() -> None:
    output = model_of(NETS["plain"])(encode.direct(images(), T), record=["output"])
    assert output.potentials is not None
    assert torch.equal(output.traces["output"].v, output.potentials)


def test_batches_behave_like_expanded_ones() -> None:
    x = images()
    once = encode.direct(x, T)
    full = once.expanded()
    assert once.ids.numel() * T == full.ids.numel()
    assert once.shape == full.shape == (T, B, 64)
    assert full.expanded() is full
    assert torch.equal(once.to_dense(), full.to_dense())
    assert torch.equal(full.to_dense(), x.expand(T, -1, -1))
    assert torch.allclose(once.counts(), full.counts())
    assert once.activity() == full.activity()
    assert "the same at all steps" in repr(once)
    for a, b in (
        (once[2:5], full[2:5]),
        (once[3], full[3]),
        (once.steps(2, 7), full.steps(2, 7)),
        (once.then(once), full.then(full)),
        (ss.SpikeBatch.cat([once, once[:2]]), ss.SpikeBatch.cat([full, full[:2]])),
        (ss.SpikeBatch.cat([once, full]), ss.SpikeBatch.cat([full, full])),
        (pickle.loads(pickle.dumps(once)), full),
        (once.to("cpu").detach().pin_memory(), full),
    ):
        assert a.shape == b.shape
        assert torch.equal(a.validate().to_dense(), b.to_dense())
    assert once[2:5].repeats
    assert ss.SpikeBatch.cat([once, once]).repeats
    assert not once.then(once).repeats


def test_refusals() -> None:
    for call, message in (
        (lambda: encode.direct(torch.rand(3), 5), r"direct: x has shape \[3\]; give \[B, \.\.\.\]"),
        (lambda: encode.direct(torch.rand(3, 4), 0), r"direct: n_steps is 0; give a whole number from 1"),
        (lambda: encode.direct(torch.tensor([[float("inf")]]), 5), r"NaN or infinite"),
        (lambda: ss.SpikeBatch.constant(torch.rand(2, 3, 4), 5), r"shape \[2, 3, 4\]; give \[B, N\]"),
        (
            lambda: ss.SpikeBatch.constant(torch.rand(2, 3).requires_grad_(), 5),
            r"require a gradient.*Input\(currents=True\)",
        ),
    ):
        with pytest.raises((ShapeError, SpikeListError), match=message):
            call()
