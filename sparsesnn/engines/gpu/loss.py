"""The cross-entropy of a readout's potentials as a kernel, so that a training step needs the host only once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sparsesnn.engines.gpu.arguments import make
from sparsesnn.engines.gpu.passes import Passes
from sparsesnn.loss import CrossEntropy

#: decodings over time that the kernel has, in its order
IN_KERNEL = ("mean", "sum", "last", "max")
_SAME_AT_ALL_STEPS = (0, 1)
#: classes: one thread each
MAX_CLASSES = 1024


class DeviceLoss:
    """The loss of one shape of batches.

    Args:
        passes: of the batches.
        output: the readout.
        of: a loss for which `fits` holds; others of the same kind (`key`) may follow.
    """

    def __init__(self, passes: Passes, output: str, of: CrossEntropy) -> None:
        shape, layer = passes.shape, passes.layers[output]
        self.passes, self.output, self.key = passes, output, key_of(of)
        self._over_time = IN_KERNEL.index(of.decoding)
        n, rows = layer.n, shape.n_samples
        self._labels = passes.extra("labels", (rows,), np.int32)
        self._shares = passes.extra("shares of classes", (rows, n), np.float32)
        self._class_weights = passes.extra("weights of classes", (n,), np.float32)
        self._numbers = passes.extra("numbers of the loss", (2,), np.float64)
        self._logits = passes.extra("logits", (rows, n), np.float32)
        self._losses = passes.extra("losses", (rows,), np.float32)
        self._kernel = passes.device.compile("loss.cu", {}, ["loss"])["loss"]
        self._step: Callable[[], None] | None = None
        self._slots_at = 0
        passes.weights.room_for_gradients(shape.n_slots)

    def step(self, of: CrossEntropy) -> dict[str, int]:
        """Runs a batch forward, its loss, and back, in one graph. Returns the entries that lists need, see `Passes.needs`."""
        passes = self.passes
        self._put_labels(of)
        if self._step is None or self._slots_at != passes.weights.n_rooms:
            self._step, self._slots_at = passes.device.record(self._launch_step), passes.weights.n_rooms
        self._step()
        passes.device.synchronize()
        return passes.needs()

    def _launch_step(self) -> None:
        self.passes.launch_forward()
        self._launch()
        self.passes.launch_backward((self.output,), self._over_time in _SAME_AT_ALL_STEPS)

    def _put_labels(self, of: CrossEntropy) -> None:
        """Copies a batch's labels to the device. Errors: `ShapeError` for labels that do not fit."""
        shape, layer = self.passes.shape, self.passes.layers[self.output]
        of.check_labels((shape.n_samples, layer.n))
        labels = of.labels.numpy()
        if of.labels.dtype == torch.int64:
            self._put(self._labels, labels)
        else:
            self._put(self._shares, labels)
        if of.class_weights is not None:
            self._put(self._class_weights, of.class_weights.numpy())
        self._put(self._numbers, np.array([of.label_smoothing, max(1, of.n_samples)], np.float64))

    def _put(self, to: Any, array: Any) -> None:
        address, staged = to
        staged[...] = array
        self.passes.device.upload(address, staged)

    def _launch(self) -> None:
        """Starts the kernel, and the way of its results to the host."""
        passes, (hard, weighted, _) = self.passes, self.key
        n_classes, shape = passes.layers[self.output].n, passes.shape
        arguments = make(
            "loss.cu", "LossArgs", potentials=passes.address(f"{self.output}, potentials"),
            labels=self._labels[0] if hard else 0, shares=0 if hard else self._shares[0],
            class_weights=self._class_weights[0] if weighted else 0, numbers=self._numbers[0], logits=self._logits[0],
            losses=self._losses[0], d_potentials=passes.address(f"{self.output}, gradient of potentials"), n_steps=shape.n_steps,
            n_samples=shape.n_samples, n_classes=n_classes, over_time=self._over_time,
        )  # fmt: skip
        n_threads = -(-n_classes // 32) * 32
        passes.device.launch(self._kernel, shape.n_samples, n_threads, 16 * n_classes, arguments, self.output)
        for address, staged in (self._logits, self._losses):
            passes.device.download_later(address, staged)

    def take(self, of: CrossEntropy) -> Tensor:
        """The loss, once the device has computed it; `of` keeps the logits and the losses of the samples."""
        of.keep(self._logits[1].copy(), self._losses[1].copy())
        whole = 0.0
        for loss in self._losses[1].tolist():  # in the order of the engine `cpu`
            whole += loss
        return torch.tensor(whole / max(1, of.n_samples), dtype=torch.float32, device="cpu")


def key_of(of: CrossEntropy) -> tuple[bool, bool, str]:
    """The parts of a loss that a recorded step depends on: whether labels are whole numbers, whether classes have weights, the decoding."""
    return of.labels.dtype == torch.int64, of.class_weights is not None, of.decoding


def fits(of: Any, n_classes: int) -> bool:
    """Whether a loss is one that the kernel computes."""
    return (
        isinstance(of, CrossEntropy)
        and of.is_whole()
        and type(of).__call__ is CrossEntropy.__call__
        and of.decoding in IN_KERNEL
        and of.n_classes == n_classes <= MAX_CLASSES
        and of.labels.is_cpu
        and not of.labels.requires_grad
    )
