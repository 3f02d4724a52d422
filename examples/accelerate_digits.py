"""Handwritten digits with Accelerate, in your own training loop.

    pip install '.[digits]' accelerate
    python examples/accelerate_digits.py --epochs 5
    accelerate launch --cpu --num_processes 2 examples/accelerate_digits.py      # two processes, gradients averaged

Accelerate cannot cut lists of spikes into parts for processes, so each process takes its own samples: a sampler does that.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

import torch
from accelerate import Accelerator
from torch.utils.data import BatchSampler, DistributedSampler, TensorDataset

import sparsesnn as ss
from sparsesnn import datasets
from sparsesnn.init import init_activity
from sparsesnn.loss import cross_entropy


def main(arguments: Sequence[str] | None = None) -> float:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--precision", default="no", choices=["no", "bf16"])
    options = parser.parse_args(arguments)

    accelerator = Accelerator(cpu=True, mixed_precision=options.precision)
    digits, test = datasets.load("digits", split="train"), datasets.load("digits", split="test")
    net = ss.Model(ss.parse_net("128-128r-10"))
    init_activity(net, [digits.batch(list(range(64)))], target=0.05)
    samples = TensorDataset(torch.arange(len(digits)))
    sampler: DistributedSampler[Any] = DistributedSampler(
        samples, accelerator.num_processes, accelerator.process_index, seed=0
    )
    model, optimizer = accelerator.prepare(net, torch.optim.Adam(net.parameters(), lr=5e-3))
    for epoch in range(options.epochs):
        sampler.set_epoch(epoch)
        loss = torch.zeros(())
        for indices in BatchSampler(sampler, 64, drop_last=False):
            optimizer.zero_grad()
            labels = torch.from_numpy(digits.labels[indices])
            loss = cross_entropy(model(digits.batch(indices)), labels, "max", n_classes=10)
            accelerator.backward(loss)
            optimizer.step()
        accelerator.print(f"epoch {epoch + 1}: loss {float(loss.detach()):.3f}")
    with torch.no_grad():
        potentials = net(test.batch(list(range(len(test))))).potentials
    assert potentials is not None, "the last population is a readout"
    accuracy = float((potentials.amax(0).argmax(1) == torch.from_numpy(test.labels)).float().mean())
    accelerator.print(f"accuracy {100 * accuracy:.1f} %")
    return accuracy


if __name__ == "__main__":
    main()
