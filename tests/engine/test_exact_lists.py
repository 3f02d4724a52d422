"""Exact lists: with a surrogate that is 0 away from the threshold, listing the rest leaves the gradient whole."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from sparsesnn.engines.module import Model
from sparsesnn.errors import DescriptionError
from sparsesnn.layers import LI, LIF, AdLIF, CubaLIF, Input, Neuron, fires
from sparsesnn.network import Network, parse_net
from sparsesnn.spikes import SpikeBatch
from sparsesnn.surrogate import KINDS, Surrogate, boxcar, fast_sigmoid, straight_through, triangle

T, B, N_IN = 13, 5, 31


def random_network(seed: int, surrogate: Surrogate) -> Network:
    draw = torch.Generator().manual_seed(seed)

    def one(low: float, high: float) -> float:
        return float(torch.rand((), generator=draw)) * (high - low) + low

    def chosen(*what: object) -> object:
        return what[int(torch.randint(len(what), (), generator=draw))]

    def hidden(n: int) -> Neuron:
        model = chosen(LIF, CubaLIF, AdLIF)
        gain = 15.0 if model is AdLIF else 1.0  # its currents count by 1 - beta
        threshold = one(0.3, 1.5) if chosen(True, False) else tuple(one(0.3, 1.5) for _ in range(n))
        return model(
            n, gain=gain, beta=one(0.5, 0.97), threshold=threshold, reset=chosen("zero", "subtract"),
            detach_reset=chosen(True, False), recurrent=chosen(True, False), grad_threshold="exact", surrogate=surrogate,
        )  # fmt: skip

    return Network.chain(Input(N_IN), hidden(45), hidden(19), LI(4))


def listing_all(network: Network) -> Network:
    spiking = {k: p for k, p in network.populations.items() if fires(p)}
    return replace(
        network, populations=network.populations | {k: replace(p, grad_threshold=-math.inf) for k, p in spiking.items()}
    )


def gradients(network: Network, backend: str) -> tuple[int, dict[str, torch.Tensor]]:
    """Entries of the hidden lists, and the gradient of every parameter."""
    model = Model(network, backend=backend, seed=1)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            pre, _, post = name.rpartition(".")[2].partition("->")
            parameter.mul_(3 if pre != post else 0.5)
    x = (torch.rand(T, B, N_IN, generator=torch.Generator().manual_seed(2)) < 0.2).float()
    output = model(SpikeBatch.from_dense(x))
    weight = torch.randn(output.potentials.shape, generator=torch.Generator().manual_seed(3))
    ((output.potentials * weight).sum() + output.counts("hidden2").square().mean()).backward()
    n_listed = sum(lists.ids.numel() for lists in output.spikes.values()) if backend == "cpu" else 0
    return n_listed, {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("surrogate", [boxcar(1.3), boxcar(4.0), triangle(1.7), triangle(5.0)], ids=str)
@pytest.mark.parametrize("seed", range(6))
def test_the_gradient_is_that_of_all_neurons_listed(seed: int, surrogate: Surrogate) -> None:
    network = random_network(seed, surrogate)
    some, exact = gradients(network, "cpu")
    every, whole = gradients(listing_all(network), "cpu")
    _, dense = gradients(listing_all(network), "dense")
    assert some < every
    assert exact.keys() == whole.keys() == dense.keys()
    for name, gradient in exact.items():
        assert gradient.abs().max() > 0
        assert (gradient - whole[name]).norm() <= 1e-6 * whole[name].norm(), name
        assert (gradient - dense[name]).norm() <= 1e-5 * dense[name].norm(), name  # it adds up in another order


def test_it_becomes_the_highest_number_below_which_the_derivative_is_zero() -> None:
    assert LIF(3, threshold=2.0, grad_threshold="exact", surrogate=triangle(4.0)).listed_above == pytest.approx(
        1.75, abs=3e-6
    )
    each = CubaLIF(2, threshold=(1.0, 3.0), grad_threshold="exact", surrogate=boxcar(2.0)).listed_above
    assert each == pytest.approx((0.75, 2.75), abs=4e-6)
    assert LIF(3, grad_threshold="exact", surrogate=straight_through()).listed_above == -math.inf
    assert LIF(3, grad_threshold=(0.1, 0.2, 0.3)).listed_above == (0.1, 0.2, 0.3)


def test_it_follows_a_description_that_changes() -> None:
    network = parse_net("30-8-5", surrogate=boxcar(2.0), grad_threshold="exact")
    low = network.with_population("hidden", threshold=0.5)
    assert Model(low).layers["hidden"].grad_threshold.item() == pytest.approx(0.25, abs=2e-6)
    each = network.with_population("hidden", threshold=[0.5 + k / 8 for k in range(8)])
    assert Model(each).layers["hidden"].grad_threshold.tolist() == pytest.approx(
        [0.25 + k / 8 for k in range(8)], abs=3e-6
    )
    with pytest.raises(DescriptionError, match=r"grad_threshold='exact' needs a surrogate"):
        network.with_population("hidden", surrogate=fast_sigmoid())
    with pytest.raises(DescriptionError, match=r"does not follow a trained threshold"):
        network.with_population("hidden", learn_threshold=True)


@pytest.mark.parametrize("kind", KINDS)
def test_half_widths(kind: str) -> None:
    width = Surrogate(kind, 3.0).half_width
    inside = torch.linspace(-min(width, 9.0), min(width, 9.0), 1001, dtype=torch.float64)[1:-1]
    assert bool((Surrogate(kind, 3.0).derivative(inside) > 0).all())
    if not math.isinf(width):
        assert bool((Surrogate(kind, 3.0).derivative(torch.tensor([-1.001, 1.001]) * width) == 0).all())


def test_what_cannot_be_exact_is_refused_by_name() -> None:
    with pytest.raises(
        DescriptionError, match=r"grad_threshold='exact' needs.*not 'fast_sigmoid'; allowed: triangle, boxcar, straight"
    ):
        LIF(3, grad_threshold="exact", surrogate=fast_sigmoid())
    with pytest.raises(DescriptionError, match=r"does not follow a trained threshold; give learn_threshold=False"):
        LIF(3, grad_threshold="exact", surrogate=boxcar(), learn_threshold=True)
    with pytest.raises(
        DescriptionError,
        match=r"grad_threshold is 'exakt'; did you mean 'exact'\? allowed: -inf to 3e\+38, or a list of them, or exact",
    ):
        LIF(3, grad_threshold="exakt")
