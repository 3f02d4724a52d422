"""The time of one step of a network that runs continuously (`Model.live`), on one thread: `./dev bench live`.

A step at a time, one sample, at the activity of `sparsesnn bench step`. Prints medians and 99th percentiles in µs of the whole
call, and of the engine's phases in it; the rest is Python. `--again` passes the state to the model instead.
"""

from __future__ import annotations

import argparse
import time

import numpy as np
import torch

import sparsesnn as ss
from sparsesnn import _core
from sparsesnn.bench.workload import Workload
from sparsesnn.errors import SparseSnnError


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--net", default="700-1024-1024-20")
    parser.add_argument("--activity", type=float, default=0.02, help="of hidden populations")
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--again", action="store_true", help="call the model with its state")
    options = parser.parse_args()
    if options.steps < 10:
        parser.error(f"--steps is {options.steps}; give at least 10")
    torch.set_num_threads(1)
    ss.set_num_threads(1)
    try:
        workload = Workload(net=options.net, n_steps=options.steps, n_samples=1, hidden_activity=options.activity)
        spikes = workload.spikes()
    except SparseSnnError as error:
        parser.error(str(error))
    model = workload.model("cpu", spikes).eval()
    live, state = model.live(), None
    whole, engine = [], []
    for t in range(options.steps):
        step = spikes.steps(t, t + 1)
        _core.phase_seconds(reset=True)
        start = time.perf_counter()
        if options.again:
            with torch.no_grad():
                state = model(step, state).state
        else:
            live(step)
        whole.append(time.perf_counter() - start)
        engine.append(sum(_core.phase_seconds(reset=True).values()))
    for name, seconds in (("step", whole), ("engine", engine)):
        p50, p99 = np.percentile(seconds[options.steps // 10 :], [50, 99])
        print(f"{name:<8} p50 {1e6 * p50:8.1f} µs   p99 {1e6 * p99:8.1f} µs")


if __name__ == "__main__":
    main()
