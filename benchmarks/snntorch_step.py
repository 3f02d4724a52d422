"""The engine against snnTorch on one training step, in one run: speed interleaved, memory in a process of its own.

    ./dev run pip install snntorch && ./dev bench benchmarks/snntorch_step.py [--net 700-1024-1024-20] [--rounds 5]

Both train the same network on the same spikes with the same weights; snnTorch's loss must equal ours. Every round starts
one process for each, in turn, so that both see the same moods of the machine.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn

from sparsesnn.bench.step import bench_step, peak_bytes, start_peak
from sparsesnn.bench.workload import Workload


def snntorch_step(workload: Workload, repeats: int) -> dict[str, Any]:
    """The same step as snnTorch users write it: `Leaky` layers in a loop over time, dense spikes."""
    import snntorch
    from snntorch import surrogate

    spikes, labels = workload.spikes(), workload.labels()
    ours = workload.model("cpu", spikes)
    dense = spikes.to_dense()
    weights = [layer.weights[0].detach().T.contiguous() for layer in ours.layers.values()]
    linears = nn.ModuleList(nn.Linear(w.shape[1], w.shape[0], bias=False) for w in weights)
    neurons = [
        snntorch.Leaky(beta=0.95, spike_grad=surrogate.fast_sigmoid(slope=10), reset_mechanism="subtract")
        for _ in weights[:-1]
    ]
    with torch.no_grad():
        for linear, weight in zip(linears, weights, strict=True):
            linear.weight.copy_(weight)
    del ours
    optimiser = torch.optim.Adam(linears.parameters(), lr=0.0, fused=True)

    def step() -> tuple[float, float]:
        start = time.perf_counter()
        optimiser.zero_grad(set_to_none=True)
        states = [neuron.init_leaky() for neuron in neurons]
        readout: Tensor = torch.zeros(dense.shape[1], weights[-1].shape[0])
        total = torch.zeros_like(readout)
        for x in dense.unbind(0):
            for k, neuron in enumerate(neurons):
                x, states[k] = neuron(linears[k](x), states[k])
            readout = 0.95 * readout + linears[-1](x)
            total = total + readout
        loss = nn.functional.cross_entropy(total / len(dense), labels)
        loss.backward()
        optimiser.step()
        return loss.item(), time.perf_counter() - start

    adam_bytes = 2 * sum(p.numel() * p.element_size() for p in linears.parameters())
    before = start_peak()
    loss, _ = step()
    times = [step()[1] for _ in range(repeats)]
    return {
        "samples_per_s": workload.n_samples / median(times),
        "loss": loss,
        "peak_bytes": None if before is None else peak_bytes() - before - adam_bytes,
        "version": snntorch.__version__,
    }


def sparsesnn_step(workload: Workload, repeats: int) -> dict[str, Any]:
    result = bench_step(workload, repeats=repeats).to_dict()
    return {key: result[key] for key in ("samples_per_s", "loss", "peak_bytes", "activity", "isa", "machine")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--net", default="700-1024-1024-20", help="feed-forward LIF, LI readout")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--one", choices=("sparsesnn", "snntorch"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        run = sparsesnn_step if options.one == "sparsesnn" else snntorch_step
        print(json.dumps(run(Workload(net=options.net), options.repeats)))
        return
    results: dict[str, list[dict[str, Any]]] = {"sparsesnn": [], "snntorch": []}
    for _ in range(options.rounds):
        for name, found in results.items():
            command = [sys.executable, __file__, "--one", name, "--net", options.net, "--repeats", str(options.repeats)]
            found.append(json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout))
    losses = {name: found[0]["loss"] for name, found in results.items()}
    if abs(losses["sparsesnn"] - losses["snntorch"]) > 1e-4 * abs(losses["snntorch"]):
        sys.exit(f"the losses differ, so this compares two networks: {losses}")
    speed = {name: median(r["samples_per_s"] for r in found) for name, found in results.items()}
    memory = {name: median(r["peak_bytes"] or 0 for r in found) for name, found in results.items()}
    first = results["sparsesnn"][0]
    print(f"{options.net}, {first['machine']}, {first['isa']}, loss {losses['sparsesnn']:.5f} in both")
    for name in results:
        print(f"{name:10} {speed[name]:8,.0f} samples/s   {memory[name] / 2**20:6.0f} MiB above the process at rest")
    print(
        f"{speed['sparsesnn'] / speed['snntorch']:.1f} times the speed, "
        f"{memory['sparsesnn'] / max(1, memory['snntorch']):.2f} of the memory"
    )


if __name__ == "__main__":
    main()
