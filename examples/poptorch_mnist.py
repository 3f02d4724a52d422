"""The network of snnTorch's tutorial for IPUs, 784-1000-10 over 25 steps, in event-sparse layers.

    python examples/poptorch_mnist.py                              # on the CPU
    python examples/poptorch_mnist.py --device ipu --replicas 4    # through PopTorch
    poprun --num-replicas 8 --num-instances 2 python examples/poptorch_mnist.py --device ipu
    python examples/poptorch_mnist.py --data DIR                   # MNIST, where torchvision has put it

`Net` is one model for both: an ordinary `torch.nn.Module` that returns its counts and its loss. Its loss is the tutorial's
`ce_count_loss`, the cross-entropy of spike counts; its optimizer Adam. Where the tutorial feeds a constant current, this
one codes brightness as a rate: our layers read spikes. Without `--data` it learns scikit-learn's handwritten digits, made
as large as MNIST's. Runs under Python 3.8 as well.
"""

from __future__ import annotations

import argparse
import gzip
import math
from pathlib import Path
from typing import Any, Iterator, List, Tuple  # noqa: UP035

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

import sparsesnn as ss
from sparsesnn import poptorch as spt

N_STEPS = 25
#: spikes per step of the brightest pixel
RATE = 0.25


class Net(nn.Module):
    """784-1000-10 LIF neurons.

    Every output neuron is listed, so that silent ones learn too; of the hidden ones those that fired, or nearly (θ_grad =
    0.8), and at most a quarter: lists take memory on the tiles whether they are full or not.
    """

    def __init__(self, n_hidden: int = 1000, tiles: int = 1472, seed: int = 0) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        neuron: dict[str, Any] = {"beta": 0.9, "surrogate": ss.fast_sigmoid(slope=25), "bias": True}
        hidden = ss.LIF(n_hidden, grad_threshold=0.8, capacity=max(1, n_hidden // 4), **neuron)
        output = ss.LIF(10, grad_threshold=-math.inf, **neuron)
        self.hidden = spt.Layer(hidden, n_pre=784, generator=generator, tiles=tiles)
        self.output = spt.Layer(output, n_pre=n_hidden, generator=generator, tiles=tiles)

    def forward(self, lists: Tensor, labels: Tensor) -> Tuple[Tensor, Tensor]:  # noqa: UP006
        """int32[B, T, 2 + K] and int64[B] → counts float32[B, 10] and the loss."""
        counts = self.output(self.hidden(spt.from_data(lists, 784))).counts()
        return counts, functional.cross_entropy(counts, labels)


class ForIpu(nn.Module):
    """The same, with its loss marked for PopTorch."""

    def __init__(self, net: Net) -> None:
        super().__init__()
        self.net = net

    def forward(self, lists: Tensor, labels: Tensor) -> Tuple[Tensor, Tensor]:  # noqa: UP006
        import poptorch

        counts, loss = self.net(lists, labels)
        return counts, poptorch.identity_loss(loss, reduction="none")


# ---- data ----------------------------------------------------------------------------------------------------------


def images(data: Path | None) -> Tuple[np.ndarray, np.ndarray]:  # noqa: UP006
    """Brightness float32[n, 784] in 0 … 1, and labels int64[n]."""
    if data is None:
        from sklearn.datasets import load_digits

        digits, labels = load_digits(return_X_y=True)
        large = np.kron(digits.reshape(-1, 8, 8) / 16, np.ones((3, 3)))
        return np.pad(large, ((0, 0), (2, 2), (2, 2))).reshape(-1, 784).astype(np.float32), labels.astype(np.int64)
    pixels = _idx(data, "train-images-idx3-ubyte", 16).reshape(-1, 784)
    return pixels.astype(np.float32) / 255, _idx(data, "train-labels-idx1-ubyte", 8).astype(np.int64)


def _idx(data: Path, name: str, head: int) -> np.ndarray:
    """The bytes of a file of MNIST behind its head."""
    for path in (data / "MNIST" / "raw" / name, data / name):
        if path.is_file():
            return np.frombuffer(path.read_bytes(), np.uint8, offset=head)
        packed = path.with_name(path.name + ".gz")
        if packed.is_file():
            return np.frombuffer(gzip.decompress(packed.read_bytes()), np.uint8, offset=head)
    raise SystemExit(f"--data: {data} holds no {name}; let torchvision.datasets.MNIST download it there first")


class RateCoded(torch.utils.data.Dataset):  # type: ignore[type-arg]
    """Images as spike lists: a pixel fires with probability RATE·brightness in every step, the same in every epoch."""

    def __init__(self, pixels: np.ndarray, labels: np.ndarray, capacity: int) -> None:
        self.pixels, self.labels, self.capacity = torch.from_numpy(pixels), torch.from_numpy(labels), capacity

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> Tuple[Tensor, Tensor]:  # noqa: UP006
        generator = torch.Generator().manual_seed(int(index))
        spikes = torch.rand(N_STEPS, 784, generator=generator) < RATE * self.pixels[index]
        return spt.pack_dense(spikes, self.capacity), self.labels[index]


# ---- training ------------------------------------------------------------------------------------------------------


def on_cpu(net: Net, data: RateCoded, batch: int, lr: float) -> Iterator[float]:
    """Loss of each step."""
    optimizer = torch.optim.Adam(net.parameters(), lr=lr, betas=(0.9, 0.999))
    for lists, labels in torch.utils.data.DataLoader(data, batch_size=batch, drop_last=True):
        _, loss = net(lists, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield float(loss.detach())


def on_ipu(net: Net, data: RateCoded, batch: int, lr: float, options: Any) -> Iterator[float]:
    """Loss of each step, the mean over replicas. `batch` is one replica's."""
    import poptorch

    optimizer = poptorch.optim.Adam(net.parameters(), lr=lr, betas=(0.9, 0.999))
    model = poptorch.trainingModel(ForIpu(net), options=options, optimizer=optimizer)
    for lists, labels in poptorch.DataLoader(options, data, batch_size=batch):
        _, loss = model(lists, labels)
        yield float(loss.mean())
    model.destroy()


def ipu_options(replicas: int) -> Tuple[Any, int]:  # noqa: UP006
    """PopTorch's options, and how many replicas there are in all; under poprun it is poprun that says."""
    import poptorch

    try:
        import popdist
    except ImportError:  # not every installation of PopTorch has it
        popdist = None
    if popdist is None or not popdist.isPopdistEnvSet():
        return poptorch.Options().replicationFactor(replicas), replicas
    import popdist.poptorch

    popdist.init()
    return popdist.poptorch.Options(ipus_per_replica=1), popdist.getNumTotalReplicas()


def main(arguments: List[str] | None = None) -> List[float]:  # noqa: UP006
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "ipu"), default="cpu", help="where the layers run (cpu)")
    parser.add_argument("--data", type=Path, help="folder of MNIST; default: scikit-learn's digits")
    parser.add_argument("--batch", type=int, default=128, help="samples of a step, of all replicas together (128)")
    parser.add_argument(
        "--replicas", type=int, default=1, help="copies of the network, one IPU each; under poprun poprun says (1)"
    )
    parser.add_argument("--steps", type=int, default=100, help="training steps, at most one epoch (100)")
    parser.add_argument("--hidden", type=int, default=1000, help="hidden neurons (1000)")
    parser.add_argument("--lr", type=float, default=1e-3, help="learning rate of Adam (0.001)")
    parser.add_argument("--tiles", type=int, default=1472, help="tiles of an IPU that neurons are spread over (1472)")
    a = parser.parse_args(arguments)
    options, replicas = ipu_options(a.replicas) if a.device == "ipu" else (None, 1)
    if a.batch % replicas:
        parser.error(f"--batch {a.batch} is not a multiple of the {replicas} replicas")
    pixels, labels = images(a.data)
    data = RateCoded(pixels[: a.steps * a.batch], labels[: a.steps * a.batch], capacity=196)
    net = Net(a.hidden, a.tiles)
    if a.device == "cpu":
        found = on_cpu(net, data, a.batch, a.lr)
    else:
        found = on_ipu(net, data, a.batch // replicas, a.lr, options)
    losses = []
    for step, loss in enumerate(found):
        losses.append(loss)
        print(f"step {step + 1}: loss {loss:.4f}", flush=True)
    return losses


if __name__ == "__main__":
    main()
