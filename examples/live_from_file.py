"""A live network that sees a recording step by step, in constant memory, as it would see a camera.

    python examples/live_from_file.py                          a short recording that it makes: a bar that moves back and forth
    python examples/live_from_file.py recording.aedat4         or .raw (EVT3, EVT2), .dat; for these: pip install 'sparsesnn[cameras]'
    python examples/live_from_file.py events.txt --sensor 346 260 --run runs/mine      lines `t_us x y p`; a trained network

Without `--run` the network is new and knows nothing. With it, give the step, pool and sensor of the training.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np

import sparsesnn as ss
from sparsesnn.datasets import file_steps
from sparsesnn.train import load_run

SIZE, SECONDS = 32, 2.0


def write_recording(path: Path, seed: int = 0) -> None:
    """Two seconds of events `t_us x y p` of a bar that moves back and forth, as text; the first line is the size of the sensor."""
    rng = np.random.default_rng(seed)
    t = np.sort(rng.integers(0, int(SECONDS * 1e6), 20_000))
    front = (SIZE / 2 + SIZE / 2.5 * np.sin(2 * np.pi * t / 1e6)).astype(int)
    p = rng.integers(0, 2, t.size)
    y = rng.integers(0, SIZE, t.size)
    table = np.stack([t, front - 2 * (1 - p), y, p], axis=1)
    path.write_text(
        f"{SIZE} {SIZE}\nt_us x y p\n" + "\n".join(" ".join(map(str, row)) for row in table.tolist()) + "\n"
    )


def watch(path: Path, options: argparse.Namespace) -> None:
    """Runs the network over the recording, and prints a line for every second."""
    live, spikes, began = None, 0.0, time.perf_counter()
    per_second = round(1e3 / options.dt_ms)
    for step, seen in enumerate(
        file_steps(path, dt_us=1e3 * options.dt_ms, pool=options.pool, sensor_size=options.sensor), start=1
    ):
        if live is None:
            network = ss.parse_net(f"{seen.n_neurons}-64r-4")
            model = load_run(options.run).model if options.run else ss.Model(network)
            live, began = model.live(), time.perf_counter()
        output = live(seen)
        spikes += seen.ids.numel()
        if step % per_second == 0:
            took = (time.perf_counter() - began) / per_second
            assert output.potentials is not None, "the readout does not fire"
            winner = int(output.potentials[0, 0].argmax())
            print(
                f"{step / per_second:5.0f} s  input {spikes:7,.0f} spikes  class {winner}  {1e6 * took:.0f} us a step"
            )
            spikes, began = 0.0, time.perf_counter()


def main() -> None:
    parser = argparse.ArgumentParser(description="Runs a live network over a recording of an event camera.")
    parser.add_argument(
        "file", type=Path, nargs="?", help=".aedat4, .raw, .dat, .txt or .csv; none: made for this example"
    )
    parser.add_argument("--sensor", type=int, nargs=2, metavar=("WIDTH", "HEIGHT"), help="if the file does not say")
    parser.add_argument("--dt-ms", type=float, default=1.0, help="width of a step")
    parser.add_argument("--pool", type=int, default=2, help="pixels that share a neuron, in x and in y")
    parser.add_argument("--run", help="a run folder: its trained network")
    options = parser.parse_args()
    if options.file:
        watch(options.file, options)
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "bar.txt"
        write_recording(path)
        watch(path, options)


if __name__ == "__main__":
    main()
