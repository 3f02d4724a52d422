"""The network of snnTorch's tutorial 5, with the input of that tutorial: the same image at all 25 steps.

    ./dev bench tutorial                 one thread, 20 turns; needs snnTorch (pip install snntorch)
    ./dev bench tutorial --turns 5 --threads 2

784-1000-10, beta 0.95, a Linear in front of both populations, batches of 128, Adam at 5e-4; the loss is the sum over the steps of the cross-entropy of the last
population's potentials. Images have half of their pixels black, the others uniform. Contestants take turns, batch by batch; the
table has medians of processor time. At first all must have the same loss, and with every neuron listed the same gradients.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

N_STEPS, N_SAMPLES, BETA = 25, 128, 0.95
SIZES = (784, 1000, 10)
N_BATCHES, WARM_UP = 4, 3


def contestants() -> dict[str, Callable[[], Any]]:
    """Makes a module that gives potentials [T, B, 10] from images [B, 784], by title."""
    import snntorch
    import torch
    from torch import Tensor, nn

    import sparsesnn as ss

    class Ours(nn.Module):
        def __init__(self, grad_threshold: float | None) -> None:
            super().__init__()
            rules: dict[str, Any] = {"beta": BETA, "surrogate": ss.atan(2)}
            listed = rules if grad_threshold is None else {**rules, "grad_threshold": grad_threshold}
            hidden, last = (
                ss.LIF(SIZES[1], **listed),
                ss.LIF(SIZES[2], bias=True, grad_threshold=-float("inf"), **rules),
            )
            self.front = nn.Linear(*SIZES[:2])
            self.spiking = ss.Model(ss.Network.chain(ss.Input(SIZES[1], currents=True), hidden, last))

        def forward(self, images: Tensor) -> Tensor:
            potentials = self.spiking(self.front(images), n_steps=N_STEPS, potentials=True).potentials
            assert potentials is not None
            return potentials

        def weights(self) -> list[Tensor]:
            layer: Any = self.spiking.layers["output"]
            return [self.front.weight, self.front.bias, layer.weights[0], layer.bias]

    class Theirs(nn.Module):
        def __init__(self, once: bool) -> None:
            super().__init__()
            self.once = once
            self.fc1, self.lif1 = nn.Linear(*SIZES[:2]), snntorch.Leaky(beta=BETA)
            self.fc2, self.lif2 = nn.Linear(*SIZES[1:]), snntorch.Leaky(beta=BETA)

        def forward(self, images: Tensor) -> Tensor:
            v1, v2 = self.lif1.init_leaky(), self.lif2.init_leaky()
            found = []
            current = self.fc1(images) if self.once else None
            for _ in range(N_STEPS):
                fired, v1 = self.lif1(self.fc1(images) if current is None else current, v1)
                _, v2 = self.lif2(self.fc2(fired), v2)
                found.append(v2)
            return torch.stack(found)

        def weights(self) -> list[Tensor]:
            return [self.fc1.weight, self.fc1.bias, self.fc2.weight, self.fc2.bias]

    return {
        "sparsesnn": lambda: Ours(None),
        "sparsesnn, every neuron listed": lambda: Ours(-float("inf")),
        "snnTorch, first product in front of the loop": lambda: Theirs(True),
        "snnTorch": lambda: Theirs(False),
    }


def same_weights(models: Sequence[Any]) -> None:
    """Gives all models the weights of the last one."""
    import torch

    with torch.no_grad():
        for model in models[:-1]:
            for k, (mine, theirs) in enumerate(zip(model.weights(), models[-1].weights(), strict=True)):
                mine.copy_(theirs.T if k == 2 and mine.shape != theirs.shape else theirs)


def check(models: dict[str, Any], loss_of: Callable[[Any], Any]) -> None:
    """Errors: `AssertionError` unless all losses agree, and the gradients wherever every neuron is listed."""
    losses, gradients = {}, {}
    for title, model in models.items():
        loss = loss_of(model)
        loss.backward()
        losses[title] = float(loss.detach())
        gradients[title] = [w.grad.clone() for w in model.weights()]
        model.zero_grad()
    expected = losses["snnTorch"]
    assert all(abs(x - expected) < 1e-3 * expected for x in losses.values()), losses
    for k, (mine, theirs) in enumerate(
        zip(gradients["sparsesnn, every neuron listed"], gradients["snnTorch"], strict=True)
    ):
        theirs = theirs.T if mine.shape != theirs.shape else theirs
        worst = float((mine - theirs).abs().max() / theirs.abs().max())
        assert worst < 1e-2, f"gradient {k}: differs by {worst:g}"


def race(turns: int, threads: int) -> dict[str, float]:
    """Seconds of processor time of a training step, by contestant."""
    import torch
    from torch.nn import functional

    import sparsesnn as ss

    torch.set_num_threads(threads)
    ss.set_num_threads(threads)
    torch.manual_seed(0)
    models = {title: make() for title, make in contestants().items()}
    same_weights(list(models.values()))
    images = [torch.rand(N_SAMPLES, SIZES[0]) * (torch.rand(N_SAMPLES, SIZES[0]) < 0.5) for _ in range(N_BATCHES)]
    labels = [torch.randint(0, SIZES[2], (N_SAMPLES,)) for _ in range(N_BATCHES)]

    def loss_of(model: Any, k: int = 0) -> Any:
        return functional.cross_entropy(model(images[k]).flatten(0, 1), labels[k].repeat(N_STEPS)) * N_STEPS

    check(models, loss_of)
    optimizers = {title: torch.optim.Adam(m.parameters(), lr=5e-4, fused=True) for title, m in models.items()}
    times: dict[str, list[float]] = {title: [] for title in models}
    for turn in range(WARM_UP + turns):
        for title, model in models.items():
            for k in range(N_BATCHES):
                start = time.process_time()
                optimizers[title].zero_grad()
                loss_of(model, k).backward()
                optimizers[title].step()
                if turn >= WARM_UP:
                    times[title].append(time.process_time() - start)
    return {title: statistics.median(x) for title, x in times.items()}


def machine() -> str:
    """The processor, and the commit."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    model = next(
        (line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine()
    )
    git = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(git, capture_output=True, text=True, check=False).stdout.strip()
    return f"{model}, commit {commit or 'unknown'}"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=20, help="of every contestant (default: %(default)s)")
    parser.add_argument("--threads", type=int, default=1, help="of every contestant (default: %(default)s)")
    options = parser.parse_args(arguments)
    found = race(options.turns, options.threads)
    print(f"{machine()}, {options.threads} thread(s), load {os.getloadavg()[0]:.1f}")
    slowest = found["snnTorch, first product in front of the loop"]
    for title, seconds in found.items():
        print(f"{title:46} {1e3 * seconds:7.1f} ms  {N_SAMPLES / seconds:6.0f} samples/s  {slowest / seconds:5.2f}")
    return 0


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.exit(main())
