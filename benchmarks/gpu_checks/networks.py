"""The networks of the checks, and the numbers that the engine `cpu` gets."""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import random_networks
import torch
from random_networks import Case

from sparsesnn.engines.base import Batch, Engine, Step, Training
from sparsesnn.engines.cpu.engine import CpuEngine
from sparsesnn.host.comm import Grid
from sparsesnn.layers import fires
from sparsesnn.network import Network, parse_net
from sparsesnn.spikes import SpikeBatch

REFERENCES = Path(__file__).resolve().parents[1] / "results" / "gpu_bits.json"
LR = 1e-3
#: spikes per input neuron and step
INPUT_ACTIVITY = 0.015


@dataclass(frozen=True)
class Size:
    """How large a check is.

    Args:
        name: key of its references.
        seeds: of the random networks.
        most: their largest population.
        nets: networks of training and of timed steps, by name: text, and its hidden activity is scaled to the wanted one.
        n_steps, batch: T and B of training.
        training_steps: steps whose weights are compared.
        batches, activities: of timed kernels.
        repeats: of each measurement.
    """

    name: str
    seeds: tuple[int, ...]
    most: int
    nets: Mapping[str, str]
    n_steps: int
    batch: int
    training_steps: int
    batches: tuple[int, ...]
    activities: tuple[float, ...]
    repeats: int


FULL = Size(
    name="full",
    seeds=(0, 3, 6, 11, 12, 13, 19, 26),  # of them every surrogate, and every kind of neurons and resets
    most=150,
    nets={"W1": "700-1024-1024-20", "W2": "700-1024r-20", "SHD": "700-256r-20"},
    n_steps=100,
    batch=48,
    training_steps=20,
    batches=(48, 512),
    activities=(0.005, 0.02, 0.05),
    repeats=20,
)
DRY = Size(
    name="dry",
    seeds=(0, 1),
    most=40,
    nets={"W1": "40-70-70-5", "W2": "40-70r-5", "SHD": "40-30r-5"},
    n_steps=6,
    batch=9,
    training_steps=2,
    batches=(3,),
    activities=(0.05,),
    repeats=2,
)
SIZES = (FULL, DRY)


def small_case(seed: int, size: Size) -> Case:
    """A random network and how it is trained; `random_networks.case`."""
    return random_networks.case(seed, most=size.most)


def digest(steps: list[Step], engine: Engine, last: Batch) -> dict[str, str]:
    """An engine's results for a case: SHA-256 of its losses and norms, of the lists and potentials of a batch, and of its weights."""
    losses = b"".join(struct.pack("<dd", step.loss, step.gradient_norm) for step in steps)
    with torch.no_grad(), engine.evaluated():
        output = engine.run(last)
        lists = hashlib.sha256()
        for name, x in sorted(output.spikes.items()):
            assert isinstance(x, SpikeBatch)
            lists.update(name.encode())
            for part in (x.offsets, x.ids, x.n_spikes):
                lists.update(part.to(torch.int64).contiguous().numpy().tobytes())
        if output.potentials is not None:
            lists.update(output.potentials.contiguous().numpy().tobytes())
    return {
        "losses": hashlib.sha256(losses).hexdigest(),
        "lists": lists.hexdigest(),
        "weights": engine.weights_sha256(),
    }


# ---- networks of training -------------------------------------------------------------------------------------------


def network_of(text: str) -> Network:
    return parse_net(text, grad_threshold=0.9)


def batch_of(text: str, size: Size, n_samples: int, number: int = 0) -> Batch:
    """Random spikes, and random labels; batches of different numbers differ."""
    network = network_of(text)
    n, n_classes = network.populations[network.inputs[0]].n, network.populations[network.output].n
    rng = np.random.default_rng([number, n_samples])
    rows, ids = (rng.random((size.n_steps * n_samples, n), dtype=np.float32) < INPUT_ACTIVITY).nonzero()
    n_spikes = np.bincount(rows, minlength=size.n_steps * n_samples)
    offsets = np.concatenate([[0], np.cumsum(n_spikes)])
    labels = torch.from_numpy(rng.integers(0, n_classes, n_samples))
    spikes = SpikeBatch(
        torch.from_numpy(offsets), torch.from_numpy(ids.astype(np.uint16)), torch.from_numpy(n_spikes.astype(np.int32)),
        size.n_steps, n_samples, n,
    )  # fmt: skip
    return Batch(spikes, labels)


def make_engine(
    kind: type[Any],
    name: str,
    text: str,
    n_samples: int,
    scales: Mapping[str, float],
    options: Mapping[str, Any] | None = None,
) -> Any:
    """An engine, whose initial weights into each population are multiplied by its scale."""
    network = network_of(text)
    n_classes = network.populations[network.output].n
    training = Training(n_classes=n_classes, decoding="mean", batch=n_samples, options=options or {})
    engine = kind(name, network, training, Grid.alone())
    with torch.no_grad():
        for population, layer in engine.model.layers.items():
            for p_name, p in layer.named_parameters():
                if "->" in p_name:
                    p.mul_(scales.get(population, 1.0))
    return engine


def references() -> dict[str, Any]:
    """The numbers of the file."""
    found: dict[str, Any] = json.loads(REFERENCES.read_text(encoding="utf-8"))
    return found


def scales_of(size: Size, net: str, activity: float) -> dict[str, float]:
    """Factors on the initial weights with which hidden populations have an activity."""
    found: dict[str, float] = references()[size.name]["scales"][net][str(activity)]
    return found


def expected_of_case(seed: int, size: Size) -> dict[str, str]:
    """The results of the engine `cpu` on this machine."""
    of = small_case(seed, size)
    engine, steps = random_networks.run(of, CpuEngine, 3)
    return digest(steps, engine, of.batch(99))


def train(engine: Engine, text: str, size: Size) -> dict[str, str]:
    """The weights after some steps, and the loss of the last one."""
    step = None
    for number in range(size.training_steps):
        step = engine.step(batch_of(text, size, size.batch, number), LR)
    assert step is not None
    return {"weights": engine.weights_sha256(), "loss": step.loss.hex()}


def write_references() -> None:
    """Writes the results of the engine `cpu`."""
    found: dict[str, Any] = {}
    for size in SIZES:
        scales = {
            net: {str(activity): _find_scales(text, size, activity) for activity in sorted({0.02, *size.activities})}
            for net, text in size.nets.items()
        }
        found[size.name] = {
            "scales": scales,
            "cases": {str(seed): expected_of_case(seed, size) for seed in size.seeds},
            "training": {
                net: train(make_engine(CpuEngine, "cpu", text, size.batch, scales[net]["0.02"]), text, size)
                for net, text in size.nets.items()
            },
        }
    REFERENCES.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print(REFERENCES)


def _find_scales(text: str, size: Size, activity: float) -> dict[str, float]:
    """Found population by population, in the order in which they run, by bisection over powers of 2^(1/32)."""
    batch = batch_of(text, size, min(size.batch, 8))
    engine = make_engine(CpuEngine, "cpu", text, batch.spikes.n_samples, {})
    found: dict[str, float] = {}
    for name, population in engine.network.receivers().items():
        if not fires(population):
            continue
        weights = [p for p_name, p in engine.model.layers[name].named_parameters() if "->" in p_name]
        drawn = [p.detach().clone() for p in weights]

        def reached(exponent: int, weights: Any = weights, drawn: Any = drawn, name: str = name) -> float:
            with torch.no_grad():
                for p, first in zip(weights, drawn, strict=True):
                    p.copy_(first).mul_(2 ** (exponent / 32))
            return float(engine.infer(batch).activity[name])

        low, high = -64, 192
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if reached(middle) < activity else (low, middle)
        found[name] = 2 ** (high / 32)
        print(f"{text}, {name}: {found[name]:.3f} gives {reached(high):.2%}", flush=True)
    return found
