"""Regression: predict a chaotic series from spikes, a value for each step. The example makes its own data.

    python examples/mackey_glass.py              trains a minute; draws mackey_glass.png if matplotlib is there
    sparsesnn train events --data examples/mackey_glass.py:mackey_glass --net auto-100r-auto --epochs 20 --batch 10 \\
        --set net.beta=0.9 --set net.readout_beta=0.8 --set init.readout_std=0.25 --out runs/mackey-glass

The series is that of Mackey and Glass, dx/dt = 0.2·x(t - 17) / (1 + x(t - 17)^10) - 0.1·x, in steps of one time unit. Forty neurons
divide its range among them (a population code): in each step the one fires whose interval holds the value. The target is the series
ten steps later.

Source: M. Mackey, L. Glass, Oscillation and chaos in physiological control systems, Science 1977.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch

import sparsesnn as ss
from sparsesnn.loss import RegressionLoss
from sparsesnn.value_errors import ValueErrors, sums_of_samples

N_STEPS, N_NEURONS, AHEAD = 200, 40, 10


def series(n: int, rng: np.random.Generator, delay: int = 17, substeps: int = 10) -> np.ndarray:
    """n values of the Mackey-Glass equation from a random beginning, by Euler's method; float64[n]."""
    x = list(1.2 + 0.2 * rng.standard_normal(delay * substeps + 1))
    for _ in range((n + 200) * substeps):
        late = x[-1 - delay * substeps]
        x.append(x[-1] + (0.2 * late / (1 + late**10) - 0.1 * x[-1]) / substeps)
    return np.array(x[-n * substeps :: substeps])


def make_set(n_samples: int, seed: int) -> ss.EventSet:
    """Samples of N_STEPS steps, each from its own series."""
    rng = np.random.default_rng(seed)
    edges = np.linspace(0.2, 1.4, N_NEURONS - 1)
    events, targets = [], []
    for _ in range(n_samples):
        x = series(N_STEPS + AHEAD, rng)
        events.append((np.arange(N_STEPS) * 1000.0, np.searchsorted(edges, x[:N_STEPS])))
        targets.append(x[AHEAD:] - 0.9)  # around 0
    return ss.EventSet.from_events(
        events, step_targets=np.array(targets), n_steps=N_STEPS, dt_us=1000.0, n_neurons=N_NEURONS
    )


def mackey_glass() -> dict[str, ss.EventSet]:
    """The parts, for `sparsesnn train events --data examples/mackey_glass.py:mackey_glass`."""
    return {"train": make_set(300, 0), "valid": make_set(50, 1), "test": make_set(50, 2)}


def main(epochs: int) -> float:
    """Trains, and returns the RMSE of the test part."""
    parts = mackey_glass()
    model = ss.Model(
        ss.Network.chain(ss.Input(N_NEURONS), ss.LIF(100, recurrent=True, beta=0.9), ss.LI(1, beta=0.8, bias=True)),
        seed=0,
    )
    ss.init.init_activity(model, [parts["train"].batch(range(30))], 0.05, readout_std=0.25)
    optimizer = ss.Adam(model.parameters(), lr=5e-3)
    for epoch in range(epochs):
        losses = []
        for spikes, targets in ss.Stream(parts["train"], None, 10, shuffle=True, seed=0).epoch(epoch):
            loss, _ = model.learn(spikes, RegressionLoss(targets, "step"))
            optimizer.step()
            optimizer.zero_grad()
            losses.append(float(loss))
        print(f"epoch {epoch + 1}: mean squared error {np.mean(losses):.4f}")
    with torch.no_grad():
        outputs = model(parts["test"].batch(range(50))).potentials
    assert outputs is not None, "the network ends in LI"
    targets = torch.from_numpy(parts["test"].batch_labels(range(50)))
    errors = ValueErrors.of(sums_of_samples(outputs, targets))
    print(f"test: RMSE {errors.rmse:.4f}, R² {errors.r2:.4f}")
    try:
        from sparsesnn.task import Task
        from sparsesnn.train.output_plots import plot_outputs

        plot_outputs(
            Task(has_values=True, per_step=True),
            outputs,
            targets,
            Path("mackey_glass.png"),
            title="Mackey-Glass, 10 steps ahead",
        )
    except ImportError as error:
        print(error)
    return errors.rmse


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Predict a chaotic series from spikes.")
    parser.add_argument("--epochs", type=int, default=20)
    main(parser.parse_args().epochs)
