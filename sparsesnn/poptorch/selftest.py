"""For people with IPUs: do the ops give the numbers of plain PyTorch? `python -m sparsesnn.poptorch.selftest`

Trains small networks for one step through PopTorch, on an IPU or (`--ipu-model`) on the SDK's model of one, and compares what
they put out and every gradient with a dense loop over time and PyTorch's autograd. Weights are multiples of 1/64 and decays
powers of two, so that potentials are exact in float32 and no spike hangs on the order of a sum. Runs under Python 3.8.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, Dict, List  # noqa: UP035

import torch
from torch import Tensor, nn

from sparsesnn.layers import LI, LIF, AdLIF, CubaLIF, Input, Resonator
from sparsesnn.layers.declaration import fires
from sparsesnn.network import Connection, Network
from sparsesnn.poptorch.modules import Layer, Model, Output
from sparsesnn.poptorch.spikes import Spikes, from_data, pack_dense
from sparsesnn.surrogate import Surrogate, atan, boxcar, exponential, fast_sigmoid, sigmoid, straight_through, triangle

N_STEPS, N_SAMPLES, N_INPUT = 6, 7, 10
#: largest difference of a gradient, relative to the largest entry
TOLERANCE = 1e-4


# ---- what is right: a dense loop -----------------------------------------------------------------------------------


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


def dense(network: Network, parameters: Dict[str, nn.Module], spikes: Tensor) -> Dict[str, Tensor]:  # noqa: UP006
    """What every population puts out, [T, B, N], for an input [T, B, N]; all neurons listed."""
    out: Dict[str, Any] = {network.inputs[0]: list(spikes)}  # noqa: UP006
    for name, population in network.populations.items():
        if isinstance(population, Input):
            continue
        p: Any = population  # its parameters are single numbers
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


# ---- what is tried -------------------------------------------------------------------------------------------------


def cases() -> Dict[str, Network]:  # noqa: UP006
    every = -math.inf
    lif: Dict[str, Any] = {"beta": 0.5, "threshold": 0.5, "grad_threshold": every}  # noqa: UP006
    found = {
        f"lif, {s.kind}": Network.chain(Input(N_INPUT), LIF(9, surrogate=s, **lif))
        for s in (
            fast_sigmoid(),
            straight_through(),
            sigmoid(4.0),
            atan(),
            triangle(0.5),
            boxcar(0.5),
            exponential(3.0),
        )
    }
    for reset in ("zero", "none"):
        found[f"lif, reset {reset}"] = Network.chain(Input(N_INPUT), LIF(9, reset=reset, **lif))
    decays = LIF(9, reset_decays=True, detach_reset=False, bias=True, **lif)
    found["lif, reset_decays, reset in the gradient, bias"] = Network.chain(Input(N_INPUT), decays)
    found["lif, recurrent"] = Network.chain(Input(N_INPUT), LIF(9, recurrent=True, **lif))
    found["cuba_lif"] = Network.chain(Input(N_INPUT), CubaLIF(9, alpha=0.25, **lif))
    adaptive = AdLIF(9, rho=0.5, q=0.5, **lif)
    found["ad_lif"] = Network.chain(Input(N_INPUT), adaptive)
    found["ad_lif, explicit, reset subtract, recurrent"] = Network.chain(
        Input(N_INPUT), replace(adaptive, order="explicit", reset="subtract", recurrent=True)
    )
    found["resonator"] = Network.chain(Input(N_INPUT), Resonator(9, **lif))
    found["li"] = Network.chain(Input(N_INPUT), LI(3, beta=0.5, bias=True))
    found["stack"] = Network(
        {
            "input": Input(N_INPUT),
            "a": LIF(33, recurrent=True, **lif),
            "b": CubaLIF(8, alpha=0.5, **lif),
            "out": LI(3, beta=0.5),
        },
        (Connection("input", "a"), Connection("a", "b", 1), Connection("b", "out"), Connection("a", "out", 2)),
    )
    return found


class Trial(nn.Module):
    """A network with a loss that is linear in what it puts out, with factors of its own for every entry."""

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


def compare(network: Network, options: Any, tiles: int) -> Dict[str, float]:  # noqa: UP006
    """Largest difference of the output, and relative differences of the gradients by name."""
    import poptorch

    generator = torch.Generator().manual_seed(5)
    populations: List[Any] = [p for p in network.populations.values() if not isinstance(p, Input)]  # noqa: UP006
    alone = len(populations) == 1
    if alone and network.is_recurrent(network.output):
        populations[0] = replace(populations[0], recurrent=True)
    model: Any = Layer(populations[0], N_INPUT, tiles=tiles) if alone else Model(network, tiles=tiles)
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(torch.randint(-16, 33, p.shape, generator=generator) / 64)
    x = (torch.rand(N_SAMPLES, N_STEPS, N_INPUT, generator=generator) < 0.4).float()
    factors = torch.randint(-4, 5, (N_STEPS, N_SAMPLES, populations[-1].n), generator=generator) / 4
    before = {name: p.detach().clone() for name, p in model.named_parameters()}

    parts = {network.output: model} if alone else dict(model.layers.items())
    expected = dense(network, parts, x.transpose(0, 1))[network.output]
    gradients = torch.autograd.grad((expected * factors).sum(), list(model.parameters()))

    # one step of SGD with learning rate 1: the weights have moved by the gradient
    trial = Trial(model.train(), factors)
    trained = poptorch.trainingModel(trial, options, poptorch.optim.SGD(model.parameters(), lr=1.0))
    out, _ = trained(pack_dense(x))
    trained.copyWeightsToHost()
    trained.destroy()
    found = {"output": float((out - expected).detach().abs().max())}
    for (name, p), wanted in ((item, gradients[k]) for k, item in enumerate(model.named_parameters())):
        got = before[name] - p.detach()
        found[name] = float((got - wanted).abs().max() / wanted.abs().max().clamp(min=1e-6))
    return found


def run(options: Any, tiles: int) -> Dict[str, Any]:  # noqa: UP006
    """The report: per case the differences, or the error that stopped it."""
    results: Dict[str, Any] = {}  # noqa: UP006
    for name, network in cases().items():
        try:
            results[name] = compare(network, options(), tiles)
        except Exception as error:  # a report of what failed is what this is for
            results[name] = {"error": f"{type(error).__name__}: {error}"}
        print(f"{'ok  ' if passed(results[name]) else 'FAIL'} {name}: {results[name]}", flush=True)
    return results


def passed(result: Dict[str, Any]) -> bool:  # noqa: UP006
    return "error" not in result and result["output"] == 0 and all(x <= TOLERANCE for x in result.values())


def main(arguments: List[str] | None = None) -> int:  # noqa: UP006
    parser = argparse.ArgumentParser(prog="python -m sparsesnn.poptorch.selftest", description=__doc__)
    parser.add_argument("--ipu-model", action="store_true", help="the SDK's model of an IPU in place of an IPU")
    parser.add_argument("--tiles", type=int, default=1472, help="tiles that neurons are spread over (1472)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the report as data, too")
    a = parser.parse_args(arguments)
    try:
        import poptorch
    except ImportError:
        parser.error("PopTorch is not there; source the SDK's enable.sh and install its poptorch wheel")
    results = run(lambda: poptorch.Options().useIpuModel(a.ipu_model), a.tiles)
    n_failed = sum(not passed(r) for r in results.values())
    print(f"{len(results) - n_failed} of {len(results)} passed")
    if a.json:
        versions = {"poptorch": poptorch.__version__, "torch": torch.__version__, "python": platform.python_version()}
        report = {"versions": versions, "ipu_model": a.ipu_model, "tiles": a.tiles, "results": results}
        a.json.write_text(json.dumps(report, indent=1), encoding="utf-8")
    return 1 if n_failed else 0


if __name__ == "__main__":
    sys.exit(main())
