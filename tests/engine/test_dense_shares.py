"""List gradients from a product over all senders have the bits of those from lists, whoever is listed."""

from __future__ import annotations

import itertools
import math
import random
from typing import Any

import pytest
import torch

from sparsesnn import _core
from sparsesnn.engines.module import Model
from sparsesnn.layers import LI, LIF, CubaLIF, Input
from sparsesnn.network import Connection, Network
from sparsesnn.spikes import SpikeBatch
from sparsesnn.synapses import Sparse

ALWAYS, NEVER = 0, 101


def random_network(rng: random.Random) -> tuple[Network, int, int]:
    """Sizes that no block, tile or vector width divides; tiles of 16, 32 and 64 neurons, up to 13 of them."""
    a, b, c = rng.randint(1, 150), rng.choice([1, 17, 67, 130, 397, 803, 803]), rng.randint(2, 70)
    common: dict[str, Any] = {"grad_threshold": rng.choice([-math.inf, 0.0, 0.6])}
    if rng.random() < 0.3:
        common["capacity"] = rng.randint(1, a)
    model = rng.choice([LIF, CubaLIF])
    reset = rng.choice(["subtract", "zero"])
    populations = {
        "input": Input(rng.randint(1, 90)),
        "a": LIF(a, bias=True, reset=reset, **common),
        "b": model(b, grad_threshold=-math.inf, capacity=rng.choice([None, None, b])),
        "out": LI(c),
    }
    connections = (
        Connection("input", "a"),
        *(Connection("a", "b", d) for d in rng.sample(range(12), rng.randint(1, 3))),
        Connection("b", "out"),
        *([Connection("a", "out", rng.randint(0, 3))] if rng.random() < 0.5 else []),
        *(Connection("b", "b", d) for d in rng.sample((1, 2, 3, 8), rng.choice([0, 0, 1, 2]))),
        *([Connection("b", "b", 5, synapses=Sparse(0.3))] if rng.random() < 0.1 else []),
    )
    return Network(populations, connections), rng.randint(1, 40), rng.randint(1, 21)


def step(net: Network, n_steps: int, n_samples: int, weight_dtype: str, seed: int) -> list[torch.Tensor]:
    """The loss and all gradients of one training step."""
    generator = torch.Generator().manual_seed(seed)
    spikes = SpikeBatch.from_dense(
        (torch.rand(n_steps, n_samples, net.populations["input"].n, generator=generator) < 0.3).float()
    )
    model = Model(net, seed=seed, weight_dtype=weight_dtype)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "->" in name:
                parameter.mul_(4)
    output = model(spikes)
    assert output.potentials is not None
    loss = (output.potentials**2).sum()
    loss.backward()
    return [loss.detach(), *(p.grad for p in model.parameters() if p.grad is not None)]


@pytest.mark.parametrize("seed", range(20))
def test_same_bits_over_random_networks_threads_and_instruction_sets(seed: int, choices: Any) -> None:
    rng = random.Random(seed)
    net, n_steps, n_samples = random_network(rng)
    weight_dtype = rng.choice(["float32", "float32", "bfloat16"])
    threads = _core.num_threads()
    try:
        with choices(dense_share=NEVER):
            wanted = step(net, n_steps, n_samples, weight_dtype, seed)
        for isa, n in itertools.product(_core.build_info()["isa_supported"], (1, 3)):
            _core.set_isa(isa)
            _core.set_num_threads(n)
            with choices(dense_share=ALWAYS, backward_rows=rng.choice([8, 100, 1024])):
                found = step(net, n_steps, n_samples, weight_dtype, seed)
            assert all(torch.equal(x, y) for x, y in zip(found, wanted, strict=True)), (isa, n)
    finally:
        _core.set_isa(_core.build_info()["isa_supported"][-1])
        _core.set_num_threads(threads)
