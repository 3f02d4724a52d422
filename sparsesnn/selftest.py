"""Shared parts of the two self-tests for IPUs: networks, initial weights, comparison and report. Works in Python 3.8.

`sparsesnn.ipu.selftest` trains these networks with the IPU program and compares with the CPU engine, `sparsesnn.poptorch.selftest`
trains those supported by the PopTorch ops and compares with a dense loop.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import time
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from sparsesnn.layers import LI, LIF, AdLIF, CubaLIF, Input, Resonator, fires
from sparsesnn.network import Connection, Network
from sparsesnn.surrogate import atan, boxcar, exponential, fast_sigmoid, sigmoid, straight_through, triangle

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

N_STEPS, N_SAMPLES, N_INPUT = 9, 8, 11


@dataclass(frozen=True)
class Case:
    """A network, and its training by the IPU program. The ops use only the network.

    Args:
        ops: whether the ops also train it.
        decoding: of the output; empty: counts of spikes, or the mean of potentials.
        n_classes: number of groups of the output's neurons; None: each neuron is a class.
        optimizer, regularizer: arguments of `sparsesnn.ipu.Optimizer` and `Regularizer` (None: no regularizer).
        half: use half-precision weights.
        tiles: number of tiles, instead of the machine's: with few, rounds share their vertices.
        replicas: copies of the network, each on its own IPUs.
        keep_every: number of steps whose potentials are kept at a time.
    """

    name: str
    network: Network
    ops: bool = False
    decoding: str = ""
    n_classes: int | None = None
    optimizer: Mapping[str, Any] = field(default_factory=dict)
    regularizer: Mapping[str, float] | None = None
    half: bool = False
    tiles: int | None = None
    replicas: int = 1
    keep_every: int = 1

    def decoded_by(self) -> str:
        return self.decoding or ("count" if fires(self.network.populations[self.network.output]) else "mean")


def cases() -> tuple[Case, ...]:
    """The cases, which together use every codelet."""
    return (*_for_both(), *_for_the_program())


def _for_both() -> list[Case]:
    """Surrogates, resets and models. Decays are powers of two, and every neuron is listed."""
    lif: dict[str, Any] = {"beta": 0.5, "threshold": 0.5, "grad_threshold": -math.inf}
    adaptive = AdLIF(9, rho=0.5, q=0.5, **lif)
    single: dict[str, Any] = {}
    for s in (fast_sigmoid(), straight_through(), sigmoid(4), atan(), triangle(0.5), boxcar(0.5), exponential(3)):
        single[f"lif, {s.kind}"] = LIF(9, surrogate=s, **lif)
    single["lif, reset zero"] = LIF(9, reset="zero", **lif)
    single["lif, reset none"] = LIF(9, reset="none", **lif)
    single["lif, reset_decays, reset in the gradient, bias"] = LIF(
        9, reset_decays=True, detach_reset=False, bias=True, **lif
    )
    single["lif, recurrent"] = LIF(9, recurrent=True, **lif)
    single["cuba_lif"] = CubaLIF(9, alpha=0.25, **lif)
    single["ad_lif"] = adaptive
    single["ad_lif, explicit, reset subtract, recurrent"] = replace(
        adaptive, order="explicit", reset="subtract", recurrent=True
    )
    single["resonator"] = Resonator(9, **lif)
    single["li"] = LI(3, beta=0.5, bias=True)
    stack = Network(
        {
            "input": Input(N_INPUT),
            "a": LIF(33, recurrent=True, **lif),
            "b": CubaLIF(8, alpha=0.5, **lif),
            "out": LI(3, beta=0.5),
        },
        (Connection("input", "a"), Connection("a", "b", 1), Connection("b", "out"), Connection("a", "out", 2)),
    )
    networks = {**{name: Network.chain(Input(N_INPUT), p) for name, p in single.items()}, "stack": stack}
    return [Case(name, network, ops=True) for name, network in networks.items()]


def _for_the_program() -> list[Case]:
    """Sums in one and two stages, and all settings besides the network."""
    lif: dict[str, Any] = {"grad_threshold": 0.3, "beta": 0.9}
    cuba: dict[str, Any] = {"grad_threshold": 0.2}
    bounds = {"lower": 0.3, "upper": 0.1, "strength_lower": 100.0, "strength_upper": 50.0}

    def chain(*populations: Any, delay: int = 0) -> Network:
        return Network.chain(Input(N_INPUT), *populations, delay=delay)

    learnt = LIF(13, learn_beta=True, learn_threshold=True, recurrent=True, **lif)
    learnt_cuba = CubaLIF(9, alpha=(0.8,) * 9, learn_alpha=True, **cuba)
    adaptive = AdLIF(
        13, beta=0.7, q=3.0, threshold=0.3, grad_threshold=0.1, recurrent=True, learn_beta=True, learn_rho=True
    )
    rotating = Resonator(9, turn=0.3, grad_threshold=0.2, learn_turn=True)
    return [
        Case("feed-forward LIF, delay 0", chain(LIF(13, **lif), LIF(10, **lif), LI(3))),
        Case(
            "recurrent LIF, delay 1, two stages",
            chain(LIF(20, recurrent=True, bias=True, **lif), LIF(38, **lif), LI(3), delay=1),
            optimizer={"kind": "adamw", "weight_decay": 0.1, "clip_norm": 0.5},
        ),
        Case("synaptic currents, maximum over time", chain(CubaLIF(13, reset="zero", **cuba), LI(3)), decoding="max"),
        Case(
            "full lists, spiking output, SGD",
            chain(LIF(40, capacity=5, **lif), LIF(6, grad_threshold=-math.inf)),
            optimizer={"kind": "sgd", "lr": 0.05, "momentum": 0.9},
        ),
        Case("learnt decays and thresholds", chain(learnt, learnt_cuba, LI(3, learn_beta=True))),
        Case("adaptation and rotation, learnt", chain(adaptive, rotating, LI(3))),
        Case("activity regularizer", chain(LIF(13, **lif), LI(3)), regularizer=bounds),
        Case("half-precision weights", chain(LIF(13, recurrent=True, **lif), LI(3)), half=True),
        Case("rounds that share vertices", chain(LIF(13, **lif), LIF(10, **lif), LIF(9, **lif), LI(3)), tiles=2),
        Case(
            "two replicas, activity regularizer",
            chain(LIF(13, bias=True, **lif), LI(3)),
            optimizer={"kind": "sgd", "lr": 0.05},
            regularizer=bounds,
            replicas=2,
        ),
        Case(
            "population code, steps run again",
            chain(CubaLIF(13, recurrent=True, **cuba), LIF(9, **lif), LI(6)),
            decoding="max",
            n_classes=3,
            keep_every=4,
        ),
    ]


def set_weights(model: nn.Module, generator: torch.Generator) -> None:
    """Sets weights and biases to multiples of 1/64, so that the first potentials are exact in float32 if decays are powers of two, and
    no spike depends on the order of a sum."""
    with torch.no_grad():
        for name, p in model.named_parameters():
            if p.ndim == 2 or name.endswith("bias"):
                p.copy_(torch.randint(-16, 33, p.shape, generator=generator) / 64)


def random_spikes(generator: torch.Generator) -> Tensor:
    """A batch, float32[T, B, N]."""
    return (torch.rand(N_STEPS, N_SAMPLES, N_INPUT, generator=generator) < 0.4).float()


def difference(found: Tensor, wanted: Tensor) -> float:
    """The largest difference, relative to the largest entry."""
    return float((found - wanted).detach().abs().max() / wanted.detach().abs().max().clamp(min=1e-6))


@dataclass(frozen=True)
class Finding:
    """The result of one case on one machine.

    Args:
        output: largest difference of the output, or the number of lists that differ; passes if 0.
        differences: of gradients or weights, by name, relative to the largest entry; each passes up to `tolerance`.
        error: the error that stopped the case; empty if it ran.
    """

    case: str
    backend: str
    tolerance: float
    output: float = math.inf
    differences: Mapping[str, float] = field(default_factory=dict)
    seconds: float = 0.0
    error: str = ""

    @property
    def passed(self) -> bool:
        small = all(x <= self.tolerance for x in self.differences.values())
        return not self.error and self.output == 0 and bool(self.differences) and small

    def line(self) -> str:
        worst = max(self.differences, key=lambda name: self.differences[name], default="")
        what = self.error or (
            f"output off by {self.output:g}, {worst} by {self.differences.get(worst, 0.0):.1e}, {self.seconds:.1f} s"
        )
        return f"{'ok  ' if self.passed else 'FAIL'} {self.backend:10} {self.case:46} {what}"


def run(
    tried: Iterable[Case], backend: str, compare: Callable[[Case], tuple[float, dict[str, float]]], tolerance: float
) -> list[Finding]:
    """Runs the cases one by one, prints one line each, and continues after an error.

    Args:
        compare: returns `output` and `differences` of a `Finding`.
    """
    findings = []
    for case in tried:
        started = time.perf_counter()
        finding = Finding(case.name, backend, tolerance)
        try:
            output, differences = compare(case)
            finding = replace(finding, output=output, differences=differences)
        except Exception as error:  # failures are reported
            finding = replace(finding, error=f"{type(error).__name__}: {error}")
        findings.append(replace(finding, seconds=time.perf_counter() - started))
        print(findings[-1].line(), flush=True)
    return findings


def parser(prog: str, text: str | None, tiles: str) -> argparse.ArgumentParser:
    """The arguments of both self-tests; `tiles`: the default, in words."""
    made = argparse.ArgumentParser(prog=prog, description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--tiles", type=int, metavar="N", help=f"number of tiles (default: {tiles})")
    made.add_argument("--json", type=Path, metavar="FILE", help="write the report there")
    return made


def report(findings: Sequence[Finding], path: Path | None, **versions: str) -> int:
    """Prints the number of passed cases and writes the report; returns the exit code."""
    n_passed = sum(f.passed for f in findings)
    print(f"{n_passed} of {len(findings)} passed")
    if path is not None:
        versions = {"torch": torch.__version__, "python": platform.python_version(), **versions}
        results = [{"passed": f.passed, **asdict(f)} for f in findings]
        text = json.dumps({"versions": versions, "machine": platform.platform(), "findings": results}, indent=1)
        path.write_text(text, encoding="utf-8")
    return 0 if n_passed == len(findings) else 1
