from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from sparsesnn.engines import Training, make_engine
from sparsesnn.engines.module import Model
from sparsesnn.errors import DescriptionError, NumericError
from sparsesnn.init import Recurrence, init_activity, orthogonal
from sparsesnn.network import Network, parse_net
from sparsesnn.spikes import SpikeBatch


def poisson(n: int, rate: float, seed: int = 0) -> SpikeBatch:
    generator = torch.Generator().manual_seed(seed)
    return SpikeBatch.from_dense((torch.rand(31, 7, n, generator=generator) < rate).float())


def network(**arguments: object) -> Network:
    return parse_net("60-70r-50c-11", grad_threshold=0.5, alpha=0.8, **arguments)


@pytest.mark.parametrize("backend", ["cpu", "dense"])
@pytest.mark.parametrize("scale", [1e-4, 1.0, 1e4])
@pytest.mark.parametrize("target", [0.01, 0.1, 0.5])
def test_activity_is_reached_from_silent_and_saturated_starts(scale: float, target: float, backend: str) -> None:
    model = Model(network(), backend=backend)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(scale)
    data = [poisson(60, 0.05, seed=k) for k in range(2)]
    reached = init_activity(model, iter(data), target, tolerance=0.2)
    with torch.no_grad():
        outputs = [model(x) for x in data]
    for name in ("hidden1", "hidden2"):
        assert reached[name] == pytest.approx(target, rel=0.2)
        assert sum(o.activity()[name] for o in outputs) / 2 == pytest.approx(reached[name], rel=1e-5)
    potentials = torch.cat([o.potentials.flatten() for o in outputs])
    assert float(potentials.std(correction=0)) == pytest.approx(1.0, rel=1e-4)
    assert set(reached) == {"hidden1", "hidden2"}, "activities alone"


def test_one_gain_for_incoming_and_recurrent_weights() -> None:
    model = Model(network(), backend="dense", seed=3)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    init_activity(model, [poisson(60, 0.05)], 0.1)
    gains = {name: (p / before[name]).detach() for name, p in model.named_parameters()}
    gain = gains["layers.hidden1.input->hidden1"]
    torch.testing.assert_close(gain, torch.full_like(gain, float(gain[0, 0])))
    recurrent = gains["layers.hidden1.hidden1->hidden1"]
    torch.testing.assert_close(recurrent, torch.full_like(recurrent, float(gain[0, 0])))
    assert float(gain[0, 0]) != pytest.approx(1)
    assert all(p.requires_grad and p.grad is None for p in model.parameters())


def test_dict_scales_the_named_populations_only() -> None:
    model = Model(network(), backend="dense")
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    reached = init_activity(model, [poisson(60, 0.1)], {"hidden2": 0.2}, readout_std=None)
    assert reached["hidden2"] == pytest.approx(0.2, rel=0.1)
    assert set(reached) == {"hidden1", "hidden2"}
    changed = {name for name, p in model.named_parameters() if not torch.equal(p, before[name])}
    assert changed == {"layers.hidden2.hidden1->hidden2"}


def test_mean_shift_makes_the_drive_common() -> None:
    silent = []
    for mean_shift in (0.0, 1.0):
        model = Model(parse_net("60-200-3"), backend="dense")
        x = poisson(60, 0.1)
        init_activity(model, [x], 0.05, mean_shift=mean_shift)
        assert (float(model.layers["hidden"].weights[0].detach().mean()) > 0.01) == bool(mean_shift)
        silent.append(int((model(x).counts("hidden").sum(0) == 0).sum()))
    assert silent[1] < silent[0]


def test_silent_input() -> None:
    model = Model(network(), backend="dense")
    with pytest.raises(DescriptionError, match="'hidden1' receives no spikes in 2 batches"):
        init_activity(model, [poisson(60, 0.0)] * 2, 0.1)
    with pytest.raises(DescriptionError, match="'output' receives no spikes"):
        init_activity(model, [poisson(60, 0.0)], {})


def test_no_data() -> None:
    model = Model(network(), backend="dense")
    for data in ([], [poisson(60, 0.1).samples([])], [poisson(60, 0.1).steps(3, 3)]):
        with pytest.raises(DescriptionError, match="without a sample or step"):
            init_activity(model, data, 0.1)


def test_weights_that_cannot_be_scaled() -> None:
    for value, error, message in [
        (0.0, DescriptionError, "weights into 'hidden1' are all zero"),
        (math.nan, NumericError, "weights into 'hidden1' hold NaN"),
        (-1.0, DescriptionError, r"'hidden1' should reach activity 0\.1, but gains from 1 to .* give 0 to 0;"),
    ]:
        model = Model(network(), backend="dense")
        with torch.no_grad():
            model.layers["hidden1"].weights[0].fill_(value)
        with pytest.raises(error, match=message):
            init_activity(model, [poisson(60, 0.1)], 0.1)


def test_bias_alone_is_too_active() -> None:
    model = Model(network(bias=True), backend="dense")
    with torch.no_grad():
        model.layers["hidden1"].bias.fill_(5.0)
        before = model.layers["hidden1"].weights[0].clone()
    with pytest.raises(DescriptionError, match=r"'hidden1' should reach activity 0\.1, but gains from .* to 1 give"):
        init_activity(model, [poisson(60, 0.1)], 0.1)
    torch.testing.assert_close(model.layers["hidden1"].weights[0], before)


def test_a_jump_over_the_target_warns() -> None:
    """One neuron that sees one spike: its activity is 0 or 1."""
    model = Model(parse_net("1-1-1"), backend="dense")
    with torch.no_grad():
        model.layers["hidden"].weights[0].fill_(0.3)
    one = SpikeBatch.from_lists([[[0]]], 1)
    with pytest.warns(UserWarning, match=r"'hidden' reached activity [01], not 0\.6 ± 10%, in 12 passes: it jumps"):
        reached = init_activity(model, [one], 0.6, max_passes=12, readout_std=None)
    assert reached["hidden"] == 1


def test_capacity_bounds_what_can_be_reached() -> None:
    """The activity that counts is what finds a slot: at most 7 of 70."""
    for target, message in [(0.05, None), (0.3, r"'hidden1' should reach activity 0\.3, but .* to 0\.1; .* capacity")]:
        model = Model(network(capacity=7), backend="cpu")
        if message is None:
            reached = init_activity(model, [poisson(60, 0.1)], {"hidden1": target}, readout_std=None)
            assert reached["hidden1"] == pytest.approx(target, rel=0.1)
            continue
        with pytest.raises(DescriptionError, match=message):
            init_activity(model, [poisson(60, 0.1)], {"hidden1": target})


def test_errors_of_the_target() -> None:
    model = Model(network(), backend="dense")
    with pytest.raises(
        DescriptionError, match=r"'output' is not a spiking population; spiking ones: \['hidden1', 'hidden2'\]"
    ):
        init_activity(model, [poisson(60, 0.1)], {"output": 0.1})
    for target in (0.0, 1.0, -0.1, math.nan):
        with pytest.raises(DescriptionError, match=r"target of 'hidden1' is .*; allowed: above 0, below 1"):
            init_activity(model, [poisson(60, 0.1)], target)


def test_copies_of_a_connection_share_the_fan_in() -> None:
    network = parse_net("16-50r-3")
    one, several = Model(network).layers["hidden"], Model(network.with_delays([0, 2, 5, 7])).layers["hidden"]
    bounds = [float(w.detach().abs().max()) for w in several.weights]
    assert [round(b, 2) for b in bounds] == [0.12] * 4 + [0.14], "1/√(4·16), and 1/√50 of the recurrent one"
    assert 0.24 < float(one.weights[0].detach().abs().max()) <= 0.25


def test_orthogonal_recurrent_weights() -> None:
    training = Training(n_classes=3, decoding="mean", seed=3, recurrence=Recurrence("orthogonal", 2.0))
    network = parse_net("5-33r-20r-3")
    first, again = (make_engine(name, network, training) for name in ("cpu", "dense"))
    plain = make_engine("cpu", network, Training(n_classes=3, decoding="mean", seed=3))
    for name in ("hidden1", "hidden2"):
        weight = first.model.layers[name].loop_weight.detach()
        torch.testing.assert_close(weight.T @ weight, 4 * torch.eye(len(weight)), rtol=0, atol=1e-5)
        assert torch.equal(weight, again.model.layers[name].loop_weight.detach())
    for key, x in plain.weights().items():
        assert torch.equal(x, first.weights()[key]) == ("hidden1->hidden1" not in key and "hidden2->hidden2" not in key)
    whole, other = orthogonal(9, 1), orthogonal(9, 2)
    np.testing.assert_allclose(whole @ whole.T, np.eye(9), atol=1e-14)
    assert not np.array_equal(whole, other)
    assert orthogonal(1, 4).item() in (-1, 1)


def test_a_gain_on_recurrent_weights() -> None:
    network = parse_net("5-4r-3")
    weights = [
        make_engine("cpu", network, Training(n_classes=3, decoding="mean", recurrence=Recurrence(recurrent_gain=gain)))
        .model.layers["hidden"]
        .loop_weight.detach()
        for gain in (1.0, 0.5)
    ]
    assert torch.equal(weights[0] * 0.5, weights[1])
