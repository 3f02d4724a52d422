"""For users with IPUs: do the ops compute the same numbers as plain PyTorch? `python -m sparsesnn.poptorch.selftest`

Trains small networks for one step through PopTorch, on an IPU or (`--ipu-model`) on the SDK's model of one, and compares their
output and every gradient with a dense loop over time and PyTorch's autograd. Runs under Python 3.8.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from sparsesnn.layers import Input
from sparsesnn.layers.declaration import fires
from sparsesnn.network import Network
from sparsesnn.poptorch.modules import Layer, Model, Output
from sparsesnn.poptorch.spikes import Spikes, from_data, pack_dense
from sparsesnn.selftest import (
    N_INPUT,
    N_SAMPLES,
    N_STEPS,
    Case,
    cases,
    difference,
    parser,
    random_spikes,
    report,
    run,
    set_weights,
)
from sparsesnn.surrogate import Surrogate

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

#: largest difference of a gradient, relative to the largest entry
TOLERANCE = 1e-4


class _Fire(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, surrogate: Surrogate) -> Tensor:
        ctx.save_for_backward(x)
        ctx.surrogate = surrogate
        return (x > 0).float()

    @staticmethod
    def backward(ctx: Any, d_spike: Tensor) -> Any:
        (x,) = ctx.saved_tensors
        return d_spike * ctx.surrogate.derivative(x), None


def dense(network: Network, parameters: Mapping[str, nn.Module], spikes: Tensor) -> dict[str, Tensor]:
    """The output of every population, [T, B, N], for an input [T, B, N]; all neurons listed."""
    out: dict[str, Any] = {network.inputs[0]: list(spikes)}
    for name, population in network.populations.items():
        if isinstance(population, Input):
            continue
        p: Any = population  # with single numbers as parameters
        own: Any = parameters[name]
        named = {q.name: torch.tensor(getattr(p, q.name)) for q in p.parameters}
        states = tuple(torch.zeros(spikes.shape[1], p.n) for _ in p.states)
        fired = torch.zeros_like(states[0])
        out[name] = []
        for t in range(len(spikes)):
            i = torch.zeros_like(states[0]) if own.bias is None else own.bias.expand(len(states[0]), -1)
            for k, c in enumerate(network.incoming(name)):
                if t >= c.delay:
                    i = i + out[c.pre][t - c.delay] @ own.weights[k]
            reset = fired.detach() if getattr(p, "detach_reset", True) else fired
            states = p.step(named, states, reset, fired, i)
            if fires(p):
                fired = _Fire.apply(states[0] - p.threshold, p.surrogate)
            out[name].append(fired if fires(p) else states[0])
    return {name: torch.stack(steps) for name, steps in out.items()}


class Trial(nn.Module):
    """A network with a loss that is linear in its output, with a factor for every entry."""

    def __init__(self, model: nn.Module, factors: Tensor) -> None:
        super().__init__()
        self.model, self.factors = model, factors

    def forward(self, lists: Tensor) -> Any:
        import poptorch

        out = self.model(lists if isinstance(self.model, Model) else from_data(lists, N_INPUT))
        if isinstance(out, Output):
            out = out.potentials if out.potentials is not None else out.spikes[out.output]
        out = out.to_dense() if isinstance(out, Spikes) else out
        return out, poptorch.identity_loss(out * self.factors, reduction="sum")


def compare(case: Case, ipu_model: bool, tiles: int) -> tuple[float, dict[str, float]]:
    """Largest difference of the output, and relative differences of the gradients by name."""
    import poptorch

    network = case.network
    generator = torch.Generator().manual_seed(5)
    populations: list[Any] = [p for p in network.populations.values() if not isinstance(p, Input)]
    alone = len(populations) == 1
    if alone and network.is_recurrent(network.output):
        populations[0] = replace(populations[0], recurrent=True)
    model: Any = Layer(populations[0], N_INPUT, tiles=tiles) if alone else Model(network, tiles=tiles)
    set_weights(model, generator)
    x = random_spikes(generator)
    factors = torch.randint(-4, 5, (N_STEPS, N_SAMPLES, populations[-1].n), generator=generator) / 4
    before = {name: p.detach().clone() for name, p in model.named_parameters()}

    parts = {network.output: model} if alone else dict(model.layers.items())
    expected = dense(network, parts, x)[network.output]
    gradients = torch.autograd.grad((expected * factors).sum(), list(model.parameters()))

    # one step of SGD with learning rate 1: the weights change by the gradient
    options = poptorch.Options().useIpuModel(ipu_model)
    trained = poptorch.trainingModel(
        Trial(model.train(), factors), options, poptorch.optim.SGD(model.parameters(), lr=1.0)
    )
    out, _ = trained(pack_dense(x.transpose(0, 1)))
    trained.copyWeightsToHost()
    trained.destroy()
    moved = [(name, before[name] - p.detach()) for name, p in model.named_parameters()]
    differences = {name: difference(got, gradients[k]) for k, (name, got) in enumerate(moved)}
    return float((out - expected).detach().abs().max()), differences


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the cases; 0 if all passed."""
    known = parser("python -m sparsesnn.poptorch.selftest", __doc__, "1472")
    known.add_argument("--ipu-model", action="store_true", help="use the SDK's model of an IPU instead of an IPU")
    a = known.parse_args(arguments)
    try:
        import poptorch
    except ImportError:
        known.error("PopTorch is not installed; source the SDK's enable.sh and install its poptorch wheel")
    backend = "sdk-model" if a.ipu_model else "ipu"
    tried = partial(compare, ipu_model=a.ipu_model, tiles=a.tiles or 1472)
    findings = run([case for case in cases() if case.ops], backend, tried, TOLERANCE)
    return report(findings, a.json, poptorch=poptorch.__version__)


if __name__ == "__main__":
    sys.exit(main())
