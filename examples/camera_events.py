"""Events of a camera that sees a bar move right, left, down or up, written as an event file like your own.

    python examples/camera_events.py bars.npz
    sparsesnn data show bars.npz --sample 1                        frames, and an animation
    sparsesnn train events --data bars.npz --out runs/bars         which way does it move?

Pixels at the bar's front edge get brighter (p = 1), those at its back edge darker (p = 0); some events are noise.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np

DIRECTIONS = ("right", "left", "down", "up")
SIZE, WIDTH, STEPS, STEP_MS = 24, 4, 40, 5.0


def bars(n_samples: int, seed: int = 0) -> dict[str, Any]:
    """Arrays of `n_samples` recordings; sample s moves in direction s % 4."""
    rng = np.random.default_rng(seed)
    columns: list[np.ndarray] = []
    for sample in range(n_samples):
        direction = sample % len(DIRECTIONS)
        place = rng.uniform(-SIZE / 4, SIZE / 4) + np.linspace(0, SIZE, STEPS)
        for step, front in enumerate(place.astype(int)):
            across = rng.permutation(SIZE)[: SIZE // 3]
            along = np.where(rng.random(across.size) < 0.5, front, front - WIDTH)
            p = (along == front).astype(int)
            noise = rng.integers(0, SIZE, (2, 3))
            along, across = np.append(along, noise[0]), np.append(across, noise[1])
            p = np.append(p, rng.integers(0, 2, 3))
            if direction % 2:
                along = SIZE - 1 - along
            x, y = (along, across) if direction < 2 else (across, along)
            seen = (along >= 0) & (along < SIZE)
            t = STEP_MS * (step + rng.random(along.size))
            columns.append(np.stack([t, x, y, p, np.full(along.size, sample)])[:, seen])
    t, x, y, p, of = np.concatenate(columns, axis=1)
    label = np.array(DIRECTIONS)[np.arange(n_samples) % len(DIRECTIONS)]
    whole = {name: values.astype(np.int64) for name, values in (("x", x), ("y", y), ("p", p), ("sample", of))}
    return {"t_ms": t, **whole, "label": label}


def main() -> None:
    parser = argparse.ArgumentParser(description="Writes events of moving bars.")
    parser.add_argument("file", type=Path, help="ends in .npz")
    parser.add_argument("--samples", type=int, default=400)
    options = parser.parse_args()
    np.savez_compressed(options.file, **bars(options.samples))
    print(f"{options.file}: {options.samples} recordings of {SIZE} x {SIZE} pixels, {', '.join(DIRECTIONS)}")


if __name__ == "__main__":
    main()
