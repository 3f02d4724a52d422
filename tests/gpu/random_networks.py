"""Random networks, and their training on the emulated device against the engine `cpu`, to the bit."""

from __future__ import annotations

import contextlib
import math
import random
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sparsesnn.currents import Currents
from sparsesnn.engines.base import Batch, Step, Training
from sparsesnn.engines.cpu.engine import CpuEngine
from sparsesnn.engines.dropout import Dropout
from sparsesnn.engines.gpu.engine import GpuEngine
from sparsesnn.engines.module import Model
from sparsesnn.engines.optimizers import Updates
from sparsesnn.errors import NotFiniteError
from sparsesnn.host.comm import Grid
from sparsesnn.layers import LI, LIF, AdLIF, CubaLIF, Input, Resonator
from sparsesnn.network import Connection, Network, gives_currents
from sparsesnn.spikes import SpikeBatch
from sparsesnn.surrogate import KINDS, Surrogate
from sparsesnn.train.prepare import DrawnDropout


@dataclass(frozen=True)
class Case:
    """A network and how it is trained.

    Args:
        n_steps, n_samples, rate: of the input; of currents, `rate` has no effect.
        constant: currents are the same at all steps.
        scale: factor on the initial weights, so that neurons fire.
        training: arguments of `Training`.
    """

    network: Network
    n_steps: int
    n_samples: int
    rate: float
    scale: float
    training: dict[str, Any] = field(default_factory=dict)
    seed: int = 0
    constant: bool = False

    def batch(self, number: int = 0) -> Batch:
        """A batch with labels; batches of different numbers differ."""
        rng = np.random.default_rng([self.seed, number])
        n = self.network.populations[self.network.inputs[0]].n
        labels = torch.from_numpy(rng.integers(0, self.training["n_classes"], self.n_samples))
        samples = rng.permutation(10 * self.n_samples)[: self.n_samples]
        dropout = self.training.get("dropout", Dropout())
        heard = None if dropout.heard == 1 else DrawnDropout(dropout, self.seed, number, samples)
        shape, given = (self.n_steps, self.n_samples, n), gives_currents(self.network)
        if self.constant:
            numbers = SpikeBatch.constant(rng.standard_normal((self.n_samples, n), np.float32), self.n_steps)
        elif given:
            numbers = SpikeBatch.from_dense(rng.standard_normal(shape, np.float32), graded=True)
        else:
            numbers = SpikeBatch.from_dense((rng.random(shape) < self.rate).astype(np.float32))
        return Batch(numbers, labels, heard=heard)


def neurons(rng: random.Random, n: int) -> Any:
    """A random population."""
    kind = rng.choice([LIF, LIF, CubaLIF, AdLIF, Resonator])
    options: dict[str, Any] = {
        "surrogate": Surrogate(rng.choice(KINDS), rng.choice([2.0, 10.0])),
        "detach_reset": rng.random() < 0.5,
        "reset": rng.choice(["subtract", "zero"]) if kind is not Resonator else "subtract",
        "grad_threshold": rng.choice([-math.inf, 0.0, 0.5, 0.9]),
        "bias": rng.random() < 0.4,
    }
    if kind in (LIF, CubaLIF):
        options["reset_decays"] = options["reset"] == "subtract" and rng.random() < 0.3
    if rng.random() < 0.3:
        options["learn_beta"] = True
        if rng.random() < 0.5:
            options |= {"learn_threshold": True, "grad_threshold": -math.inf}
    fields = kind.__dataclass_fields__
    return kind(n, **{key: value for key, value in options.items() if key in fields})


def case(seed: int, most: int = 150) -> Case:
    """The case of a seed."""
    rng = random.Random(seed)
    sizes = [rng.choice([1, 7, rng.randint(2, most), rng.randint(2, most)]) for _ in range(rng.randint(1, 3))]
    n_classes = rng.randint(2, 12)
    given = rng.random() < 0.25
    populations: dict[str, Any] = {
        "input": Input(sizes[0] if given else rng.choice([1, rng.randint(2, 80)]), currents=given)
    }
    connections = []
    names = ["input"]
    for k, n in enumerate(sizes):
        name = f"hidden{k}"
        populations[name] = neurons(rng, n)
        senders = [names[-1], *(other for other in names[:-1] if rng.random() < 0.3)]
        for pre in senders:
            if not given or pre != "input":
                connections.append(Connection(pre, name, delay=rng.choice([0, 0, 1, 3])))
            elif n == sizes[0]:
                connections.append(Connection(pre, name))
        for delay in rng.choice([[], [1], [2], [1, 3]]):
            connections.append(Connection(name, name, delay=delay))
        names.append(name)
    spiking_readout = rng.random() < 0.15
    last: Any = LIF(n_classes) if spiking_readout else LI(n_classes, learn_beta=rng.random() < 0.3)
    populations["output"] = last
    connections += [Connection(pre, "output") for pre in dict.fromkeys([names[-1], rng.choice(names[1:])])]
    decoding = "count" if spiking_readout else rng.choice(["mean", "sum", "last", "max", "softmax_sum"])
    updates = Updates(
        name=rng.choice(["adam", "adamw", "sgd"]),
        momentum=rng.choice([0.0, 0.9]),
        weight_decay=rng.choice([0.0, 0.01]),
        clip_norm=rng.choice([0.0, 0.5]),
        ema=rng.choice([0.0, 0.9]),
    )
    options = {"weight_dtype": rng.choice(["float32", "bfloat16"])}
    training = {"n_classes": n_classes, "decoding": decoding, "updates": updates, "options": options}
    shape = rng.choice([1, 5, 11]), rng.choice([1, 3, 9, 19])
    rate, scale, constant = rng.choice([0.0, 0.05, 0.3]), rng.choice([1.0, 3.0]), given and rng.random() < 0.5
    others = random.Random(f"capacity and dropout of {seed}")  # the rest of a case does not depend on them
    for name in names[1:]:
        if others.random() < 0.3:
            n = populations[name].n
            populations[name] = replace(populations[name], capacity=others.randint(1, -(-n // 2)))
    if others.random() < 0.3:
        training["dropout"] = Dropout(neurons=others.choice([0.0, 0.2]), spikes=others.choice([0.1, 0.4]))
    return Case(Network(populations, connections), *shape, rate, scale, training, seed, constant)


def run(of: Case, kind: type[Any], n_steps: int = 3) -> tuple[Any, list[Step]]:
    """Trains with one engine: the engine, and its steps, up to one whose numbers are not finite."""
    name = "gpu" if kind is GpuEngine else "cpu"
    engine = kind(name, of.network, Training(batch=of.n_samples, **of.training), Grid.alone())
    with torch.no_grad():
        for name, p in engine.model.named_parameters():
            if "->" in name:
                p.mul_(of.scale)
    steps: list[Step] = []
    with contextlib.suppress(NotFiniteError):
        for k in range(n_steps):
            steps.append(engine.step(of.batch(k), 1e-2))
    return engine, steps


def differences(of: Case, n_steps: int = 3) -> list[str]:
    """What differs between the engines after some steps of training and one of evaluation; empty: nothing."""
    cpu, expected = run(of, CpuEngine, n_steps)
    gpu, found = run(of, GpuEngine, n_steps)
    differ = [f"{len(found)} steps instead of {len(expected)}"] if len(found) != len(expected) else []
    differ += [
        f"{what} of step {k}"
        for k, (a, b) in enumerate(zip(expected, found, strict=False))
        for what in ("loss", "gradient_norm", "activity", "dropped", "n_correct")
        if getattr(a, what) != getattr(b, what)
    ]
    with torch.no_grad(), cpu.evaluated(), gpu.evaluated():
        batch = of.batch(99)
        a, b = cpu.infer(batch), gpu.infer(batch)
        differ += [
            f"{what} of evaluation" for what in ("loss", "activity", "dropped") if getattr(a, what) != getattr(b, what)
        ]
        wanted, made = cpu.run(batch), gpu.run(batch)
        for name, lists in wanted.spikes.items():
            other = made.spikes[name]
            arrays = [*(["dropped"] if lists.dropped is not None else []), "offsets", "ids", "n_spikes"]
            same = all(torch.equal(getattr(lists, x), getattr(other, x)) for x in arrays)
            differ += [] if same else [f"lists of {name}"]
    before, after = cpu.state(), gpu.state()
    differ += [f"{name} in the state" for name in before.keys() ^ after.keys()]
    differ += [name for name in before.keys() & after.keys() if not equal(before[name], after[name])]
    gpu.close()
    return differ + (gradient_differences(of) if gives_currents(of.network) else [])


def gradient_differences(of: Case) -> list[str]:
    """The parameters whose gradients differ between `Model`s on the two engines, and "input" if those of its currents do."""
    batch, found = of.batch(), []
    given = Currents.of(batch.spikes, None, "input", batch.spikes.n_neurons)
    for backend in ("cpu", "gpu"):
        model = Model(of.network, backend=backend, seed=1, **of.training.get("options", {}))
        x = given.values.clone().requires_grad_()
        output = model(x, n_steps=of.n_steps if of.constant else None)
        last = output.spikes[output.output].values if output.potentials is None else output.potentials
        last.square().sum().backward()
        found.append({"input": x.grad, **{name: p.grad for name, p in model.named_parameters()}})
    return [f"gradient of {name}" for name, x in found[0].items() if not equal(x, found[1][name])]


def equal(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors have the same numbers, signs of zero included; NaN equals NaN."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    same = (a == b) & (a.signbit() == b.signbit()) | (a.isnan() & b.isnan())
    return bool(same.all())
