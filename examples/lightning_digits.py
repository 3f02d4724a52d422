"""Handwritten digits with Lightning, which owns the loop, checkpoints, precision and processes.

    pip install '.[digits]' lightning
    python examples/lightning_digits.py --epochs 5
    python examples/lightning_digits.py --devices 2         # two processes, gradients averaged (DDP)
    python examples/lightning_digits.py --precision bf16-mixed

`SpikeBatch` and `Output` travel through Lightning as they are. One thing has to be said: Lightning cannot see how many
samples a batch of lists has, so `self.log` needs `batch_size=len(spikes)`.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import lightning
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

import sparsesnn as ss
from sparsesnn import datasets
from sparsesnn.init import init_activity
from sparsesnn.loss import cross_entropy

Row = tuple[ss.SpikeBatch, int]
Batch = tuple[ss.SpikeBatch, Tensor]


class Digits(Dataset[Row]):
    """The images that scikit-learn ships, as spike times; a row is a batch of one sample and its label."""

    def __init__(self, split: str) -> None:
        self.events = datasets.load("digits", split=split)

    def __len__(self) -> int:
        return len(self.events)

    def __getitem__(self, k: int) -> Row:
        return self.events.batch([k]), int(self.events.labels[k])


def collate(rows: Sequence[Row]) -> Batch:
    return ss.SpikeBatch.cat([spikes for spikes, _ in rows]), torch.tensor([label for _, label in rows])


class Classifier(lightning.LightningModule):
    def __init__(self, net: str = "128-128r-10", lr: float = 5e-3) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.lr = lr
        self.model = ss.Model(ss.parse_net(net))

    def training_step(self, batch: Batch, index: int) -> Tensor:
        spikes, labels = batch
        output = self.model(spikes)
        loss = cross_entropy(output, labels, "max", n_classes=10)
        self.log("activity", output.activity()["hidden"], batch_size=len(spikes), prog_bar=True)
        return loss

    def validation_step(self, batch: Batch, index: int) -> None:
        spikes, labels = batch
        potentials = self.model(spikes).potentials
        assert potentials is not None, "the last population is a readout"
        accuracy = (potentials.amax(0).argmax(1) == labels).float().mean()
        self.log("accuracy", accuracy, batch_size=len(spikes), prog_bar=True, sync_dist=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return ss.Adam(self.parameters(), lr=self.lr)


def main(arguments: Sequence[str] | None = None) -> float:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--devices", type=int, default=1, help="processes on this machine")
    parser.add_argument("--precision", default="32-true", choices=["32-true", "bf16-mixed"])
    parser.add_argument("--out", default="runs/lightning", help="folder of logs and checkpoints")
    options = parser.parse_args(arguments)

    train = DataLoader(Digits("train"), batch_size=64, shuffle=True, collate_fn=collate)
    test = DataLoader(Digits("test"), batch_size=150, collate_fn=collate)
    classifier = Classifier()
    init_activity(classifier.model, [next(iter(train))[0]], target=0.05)
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=options.devices,
        strategy="ddp" if options.devices > 1 else "auto",
        precision=options.precision,
        max_epochs=options.epochs,
        default_root_dir=options.out,
    )
    trainer.fit(classifier, train, test)
    accuracy = float(trainer.callback_metrics["accuracy"])
    print(f"accuracy {100 * accuracy:.1f} %")
    return accuracy


if __name__ == "__main__":
    main()
