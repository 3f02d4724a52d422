"""`sparsesnn bench baselines`: the modes of the dense backend."""

from __future__ import annotations

import argparse
import json
from typing import Any

from sparsesnn.commands.measuring import add_parser

EXAMPLES = """\
examples:
  sparsesnn bench baselines
  sparsesnn bench baselines --steps 50,100,200 --batch 16,48,128 --modes step,fused
  sparsesnn bench baselines --net 700-512-20 --net 700-1024r-20 --json
  sparsesnn bench baselines --net 1x28x28:5C12+MP2-5C64+MP2-10 --steps 25 --batch 128     with convolutions: see below
  sparsesnn bench baselines --device cuda:0 --precision bfloat16     with peak memory and energy of the device

modes: step (plain autograd, one step at a time), hoist (input products over the whole sequence), fused (one autograd
  node per population, which keeps its input current and recomputes the rest). All compute the same loss and gradients. Times are medians of interleaved steps; memory is
  the peak of a separate process, in addition to its weights, data and optimizer state.
networks with convolutions: channels x height x width, a colon, and layers: 5C12 a convolution (kernel 5, 12 channels; s2 stride,
  p pads), MP2, AP2 and SP2 pool spikes, +MP2 pools currents, a size is fully connected, s a spiking readout.
--json prints a list: mode, samples_per_s, peak_bytes, step_ms, loss, net, n_steps, n_samples, threads,
  machine, device, precision, samples_per_joule (CUDA with NVML: pip install 'sparsesnn[cuda]')."""


def register(what: Any) -> None:
    text = (
        "time and memory of the modes of the dense backend: "
        "Compares the time and memory of the modes of the dense backend over networks, time steps and batches."
    )
    flags = "device precision threads repeats=7"
    parser = add_parser(what, "baselines", text, EXAMPLES, _baselines, flags)
    parser.add_argument(
        "--net", action="append", metavar="TEXT", help="a network; may be repeated (default: 700-1024-1024-20)"
    )
    parser.add_argument(
        "--images",
        metavar="SET=DIR",
        help="real images, mnist=DIR or cifar10=DIR (default: random ones of the same shape)",
    )
    parser.add_argument("--steps", default="100", metavar="T,…", help="time steps (default: %(default)s)")
    parser.add_argument("--batch", default="48", metavar="B,…", help="samples (default: %(default)s)")
    parser.add_argument("--modes", default="step,hoist,fused", metavar="M,…", help="default: %(default)s")


def _baselines(options: argparse.Namespace) -> int:
    from dataclasses import asdict

    from sparsesnn.bench import Workload
    from sparsesnn.bench.baselines import bench_baselines, table
    from sparsesnn.commands.numbers import integers
    from sparsesnn.errors import ConfigError

    images = None
    if options.images is not None:
        images = options.images.partition("=")[::2]
        if not images[1]:
            raise ConfigError(f"--images: is {options.images!r}; give the set and its folder, such as mnist=DIR")
    workloads = [
        Workload(net=net, n_steps=n_steps, n_samples=n_samples, images=images)
        for net in options.net or ["700-1024-1024-20"]
        for n_steps in integers("--steps", options.steps)
        for n_samples in integers("--batch", options.batch)
    ]
    rows = bench_baselines(
        workloads,
        options.modes.split(","),
        repeats=options.repeats,
        n_threads=options.threads,
        device=options.device,
        precision=options.precision,
    )
    print(json.dumps([asdict(row) for row in rows], allow_nan=False) if options.json else table(rows))
    return 0
