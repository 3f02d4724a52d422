"""Losses of a network's output: cross-entropy of classes, errors of values, and a penalty on activity.

Everything is differentiable in PyTorch and works on the output of every engine; T steps, B samples, N neurons, C classes, K values.
"""

from __future__ import annotations

import copy
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from sparsesnn import _core
from sparsesnn.arguments import named
from sparsesnn.decoding import DECODINGS as DECODINGS
from sparsesnn.decoding import OVER_TIME, check_decoding, steps_last
from sparsesnn.decoding import decode as decode
from sparsesnn.errors import DescriptionError, ShapeError
from sparsesnn.first_order import first_order
from sparsesnn.options import plain
from sparsesnn.output import Output, at_least_float32
from sparsesnn.spikes import SpikeBatch
from sparsesnn.task import NO_LABEL
from sparsesnn.tensor_like import plain_tensor

#: decodings whose cross-entropy the engine computes
IN_ENGINE = ("mean", "sum", "last", "max", "step")
#: errors of values, elementwise
ERRORS: Mapping[str, Callable[..., Tensor]] = MappingProxyType(
    {"mse": functional.mse_loss, "mae": functional.l1_loss, "huber": functional.huber_loss}
)


class _BatchLoss(ABC):
    """Keeps the decoded values and the losses [B] of the last output, as tensors or arrays."""

    _found: tuple[Any, Any] | None = None
    _names: ClassVar[tuple[str, str]]  # of the class and of its decoded values, for messages

    @property
    def decoded(self) -> Tensor:
        return self._of_last_output(0)

    @property
    def losses(self) -> Tensor:
        return self._of_last_output(1)

    @property
    @abstractmethod
    def answers(self) -> Tensor:
        """The labels or targets, as the loss reads them."""

    @abstractmethod
    def check(self, shape: tuple[int, ...]) -> None:
        """Raises `ShapeError` if the labels or targets do not fit decoded values of this shape, or are out of range."""

    @abstractmethod
    def with_answers(self, answers: Tensor) -> _BatchLoss:
        """The same loss of other labels or targets, on their device; they are not checked."""

    def _of_last_output(self, k: int) -> Tensor:
        if self._found is None:
            who, decoded = self._names
            raise AttributeError(f"{who}: {decoded} and losses exist only after a call with an output")
        x = self._found[k]
        return x if isinstance(x, Tensor) else torch.from_numpy(x)


@named
def cross_entropy(
    output: Output,
    labels: Tensor,
    decoding: str,
    n_classes: int,
    *,
    label_smoothing: float = 0.0,
    class_weights: Any = None,
) -> Tensor:
    """Returns the cross-entropy of a batch, float32[]: the mean of -w[label]·log softmax(logits)[label] over its labels.

    The logits come from `decode`: `loss = cross_entropy(model(spikes), labels, "mean", 20)`.

    Args:
        output, decoding, n_classes: see `decode`.
        labels: whole numbers [B], 0 to C - 1; or floats [B, C], the share of each class in a mixed sample, rows that sum to 1:
            then the mean of -Σ_c w[c]·label[b,c]·log softmax(logits)[b,c]. For the decoding "step" whole numbers [T, B], where -1
            stands for no label. A tensor, sparse too, an array or a list.
        label_smoothing: share of the target spread evenly over the classes, in [0, 1).
        class_weights: w, float[C], 0 or more; None: 1 for all. Unlike PyTorch's, the mean divides by the number of labels and
            not by the sum of their weights.

    Errors: those of `decode`; `ShapeError` for labels of another shape or dtype, or out of range.
    """
    return CrossEntropy(labels, decoding, n_classes, label_smoothing=label_smoothing, class_weights=class_weights)(
        output
    )


@named
class CrossEntropy(_BatchLoss):
    """`cross_entropy` of one batch as a loss for `Model.learn`, which then needs no PyTorch graph:
    `model.learn(spikes, CrossEntropy(labels, "mean", 20))`.

    Args:
        labels, decoding, n_classes, label_smoothing, class_weights: see `cross_entropy`.
        n_samples: the number of labels of the whole batch, by which the sum is divided, if these labels are a part of it; None:
            they are all of it.

    Attributes:
        logits: of the last output, float32[B, C], or [T, B, C] for the decoding "step"; detached.
        losses: float32[B], of the samples; for "step" their sums over steps. Detached.
    """

    _names = ("CrossEntropy", "logits")

    def __init__(
        self,
        labels: Tensor,
        decoding: str,
        n_classes: int,
        *,
        label_smoothing: float = 0.0,
        class_weights: Any = None,
        n_samples: int | None = None,
    ) -> None:
        labels = _labels(labels)
        n_classes = check_decoding(decoding, n_classes)
        if not isinstance(plain(label_smoothing), (int, float)) or not 0 <= label_smoothing < 1:
            raise DescriptionError(f"cross_entropy: label_smoothing is {label_smoothing!r}; allowed: 0 to below 1")
        self.labels, self.decoding, self.n_classes = labels, decoding, n_classes
        self.label_smoothing = float(label_smoothing)
        self.class_weights = None if class_weights is None else _class_weights(class_weights, n_classes)
        self.per_step = decoding == "step"
        if n_samples is None:
            n_samples = int((labels >= 0).sum()) if self.per_step else len(labels) if labels.ndim else 1
        self.n_samples = plain(n_samples)
        if type(self.n_samples) is not int or self.n_samples < 0:
            raise DescriptionError(f"cross_entropy: n_samples is {n_samples!r}; allowed: whole numbers, 0 or more")

    @property
    def logits(self) -> Tensor:
        return self.decoded

    def __call__(self, output: Output) -> Tensor:
        """The loss of an output, float32[], differentiable."""
        if self.in_engine(output):
            value: Tensor = _CrossEntropyInEngine.apply(output.potentials, self)
            return value
        logits = at_least_float32(decode(output, self.decoding, self.n_classes))
        self.check(logits.shape)
        losses = self.losses_of(logits)
        self._found = logits.detach(), losses.detach()
        return losses.sum() / self._divisor

    @property
    def answers(self) -> Tensor:
        return self.labels

    def check(self, shape: tuple[int, ...]) -> None:
        self._check(shape)
        self._check_range()

    def with_answers(self, answers: Tensor) -> CrossEntropy:
        other, weights = copy.copy(self), self.class_weights
        other.labels, other.class_weights = answers, None if weights is None else weights.to(answers.device)
        return other

    @property
    def _divisor(self) -> int:
        """The number of labels; 1 for a batch without labels, whose loss is 0."""
        return max(1, int(self.n_samples))

    def losses_of(self, logits: Tensor) -> Tensor:
        """float32[B], the loss of each sample from its decoded output, differentiable; for "step" the sum over its steps."""
        labels, weights = self.labels.to(logits.device), self.class_weights
        if weights is not None:
            weights = weights.to(logits.device)
        losses = functional.cross_entropy(
            logits.flatten(0, -2),
            labels.flatten() if self.per_step else labels,
            weights,
            ignore_index=NO_LABEL,
            label_smoothing=self.label_smoothing,
            reduction="none",
        )
        return steps_last(losses.reshape(*logits.shape[:2], 1))[:, 0].sum(-1) if self.per_step else losses

    def in_engine(self, output: Output) -> bool:
        """Whether the engine computes it: for a float32 readout on the CPU, with one neuron per class."""
        v = output.potentials
        is_plain = v is not None and v.dtype == torch.float32 and v.is_cpu and v.is_contiguous()
        return is_plain and self.fits_engine(v)

    def is_whole(self) -> bool:
        """Whether `of_potentials` is the whole loss: not if a subclass extends `__call__` but not `of_potentials`."""
        own, ours = type(self), CrossEntropy
        return own.__call__ is ours.__call__ or own.of_potentials is not ours.of_potentials

    def fits_engine(self, v: Tensor | np.ndarray | None) -> bool:
        """Whether the engine computes it for its own potentials, or for others with the same layout."""
        if v is None or self.decoding not in IN_ENGINE or self.n_classes != v.shape[-1] or not len(v):
            return False
        return self.labels.is_cpu and not self.labels.requires_grad

    def of_potentials(self, v: np.ndarray) -> tuple[Tensor, Callable[[float], np.ndarray]]:
        """The detached loss of potentials for which `in_engine` holds, and a function for its gradient times a number, [1, B, C] if
        it is the same at all steps."""
        self._check(v.shape if self.per_step else v.shape[1:])
        labels = self.labels.contiguous().numpy()
        hard = self.labels.dtype == torch.int64
        of = (
            v, labels if hard else None, None if hard else labels,
            None if self.class_weights is None else self.class_weights.numpy(),
            self.decoding, self.label_smoothing, self._divisor,
        )  # fmt: skip
        logits, losses, loss = _core.cross_entropy(*of)
        self._found = v if self.per_step else logits, losses
        return torch.from_numpy(loss), lambda d_loss: np.asarray(_core.cross_entropy_grad(*of, logits, d_loss))

    def check_labels(self, shape: tuple[int, ...]) -> None:
        """Raises `ShapeError` if the labels do not fit logits of this shape, or name a class that does not exist."""
        self._check(shape)
        self._check_range()

    def keep(self, logits: np.ndarray, losses: np.ndarray) -> None:
        """Keeps an engine's results: the logits, and the losses [B] of the samples."""
        self._found = logits, losses

    def _check(self, shape: tuple[int, ...]) -> None:
        """Raises `ShapeError` if the labels do not fit logits of this shape."""
        labels = self.labels
        if self.per_step:
            if labels.dtype != torch.int64 or labels.shape != shape[:2]:
                raise ShapeError(
                    f"cross_entropy: labels are {labels.dtype} with shape {tuple(labels.shape)}; the decoding 'step' needs whole numbers "
                    f"with shape {tuple(shape[:2])}, [T, B]: a class for each step of each sample, and {NO_LABEL} for no label"
                )
            return
        shares = labels.dtype == torch.float32
        if labels.shape != shape[: 2 if shares else 1] or not (shares or labels.dtype == torch.int64):
            raise ShapeError(
                f"cross_entropy: labels are {labels.dtype} with shape {tuple(labels.shape)}; "
                f"give int64 with shape {tuple(shape[:1])}, one class per sample, "
                f"or float32 with shape {tuple(shape)}, the share of each class; spikes are [T, B, N]: if samples come first, use "
                "SpikeBatch.from_dense(..., batch_first=True)"
            )
        if not self.n_samples:
            raise ShapeError("cross_entropy: the batch has 0 samples, whose mean is undefined; give at least one")
        if shares and len(labels):
            low, sums = labels.min(), labels.sum(1)
            if not bool(low >= 0) or not bool(((sums - 1).abs() < 1e-3).all()):
                raise ShapeError(
                    f"cross_entropy: shares of classes run from {float(low):g} and sum to {float(sums.min()):g} to "
                    f"{float(sums.max()):g} per sample; allowed: from 0, with the sum 1"
                )

    def _check_range(self) -> None:
        if self.labels.dtype != torch.int64 or not self.labels.numel():
            return
        low, high = torch.aminmax(self.labels)
        if low < (NO_LABEL if self.per_step else 0) or high >= self.n_classes:
            raise ShapeError(
                f"cross_entropy: labels run from {int(low)} to {int(high)}; allowed: 0 to {self.n_classes - 1}"
                f"{', and -1 for no label' if self.per_step else ''}; correct the labels or raise n_classes"
            )


class _CrossEntropyInEngine(torch.autograd.Function):
    """forward(potentials, loss) -> the loss of these potentials.

    A gradient to be differentiated again is computed by PyTorch with the same formula; see `sparsesnn.first_order`.
    """

    @staticmethod
    def forward(ctx: Any, v: Tensor, loss: CrossEntropy) -> Tensor:
        value, ctx.gradient = loss.of_potentials(v.detach().numpy())
        ctx.loss = loss
        ctx.save_for_backward(v)
        return value

    @staticmethod
    def backward(ctx: Any, *d: Tensor) -> Any:
        if torch.is_grad_enabled() and type(ctx.loss).of_potentials is CrossEntropy.of_potentials:
            loss, (v,) = ctx.loss, ctx.saved_tensors
            logits = OVER_TIME[loss.decoding](v)
            gradient = torch.autograd.grad(loss.losses_of(logits).sum() / loss._divisor, v, d[0], create_graph=True)
            return *gradient, None
        return _gradient_in_engine(ctx, *d)


@first_order("a CrossEntropy with its own of_potentials")
def _gradient_in_engine(ctx: Any, *d: Tensor) -> tuple[Tensor, None]:
    (v,) = ctx.saved_tensors  # PyTorch checks whether it has changed since
    return torch.from_numpy(ctx.gradient(float(d[0]))).expand_as(v), None


@named
class RegressionLoss(_BatchLoss):
    """The mean error of a batch whose targets are values: `loss = RegressionLoss(targets, "last")(model(spikes))`.

    `Model.learn` takes it as its loss, too. The errors are

        mse     (1/n) Σ (y - target)²
        mae     (1/n) Σ |y - target|
        huber   (1/n) Σ h(|y - target|)        h(e) = e²/2 up to 1, above it e - 1/2

    over the n targets that are given, y from `decode`.

    Args:
        targets: floats [B, K], or [T, B, K] for the decoding "step"; NaN: no target.
        decoding: see `decode`; the readout has K neurons, or k·K for a population code.
        error: "mse", "mae" or "huber".
        n_targets: if these targets are part of a batch, the number of targets of the whole batch, n; None: n is counted.

    Attributes:
        outputs: y of the last output, detached.
        losses: float32[B], the sum of the errors of each sample, detached.

    Errors: those of `decode`; `DescriptionError` for an unknown error; `ShapeError` for targets that do not fit the output.
    """

    _names = ("RegressionLoss", "outputs")

    def __init__(self, targets: Any, decoding: str, error: str = "mse", *, n_targets: int | None = None) -> None:
        self.targets = plain_tensor(targets, "RegressionLoss: targets").float()
        if error not in ERRORS:
            raise DescriptionError(f"RegressionLoss: error is {error!r}; allowed: {', '.join(ERRORS)}")
        if self.targets.ndim != (3 if decoding == "step" else 2):
            raise ShapeError(
                f"RegressionLoss: targets have the shape {tuple(self.targets.shape)}; give [B, K], or [T, B, K] with the decoding 'step'"
            )
        self.n_values = check_decoding(decoding, self.targets.shape[-1])
        self.decoding, self.error = decoding, error
        given = int((~self.targets.isnan()).sum()) if n_targets is None else n_targets
        self.n_targets = max(1, given)  # without a target the loss is 0

    @property
    def outputs(self) -> Tensor:
        return self.decoded

    def __call__(self, output: Output) -> Tensor:
        """The loss of an output, float32[], differentiable."""
        outputs = at_least_float32(decode(output, self.decoding, self.n_values))
        self.check(outputs.shape)
        losses = self.losses_of(outputs)
        self._found = outputs.detach(), losses.detach()
        return losses.sum() / self.n_targets

    @property
    def answers(self) -> Tensor:
        return self.targets

    def check(self, shape: tuple[int, ...]) -> None:
        if self.targets.shape != shape:
            raise ShapeError(
                f"RegressionLoss: targets have the shape {tuple(self.targets.shape)}, the decoded output {tuple(shape)}; both must agree"
            )

    def with_answers(self, answers: Tensor) -> RegressionLoss:
        other = copy.copy(self)
        other.targets = answers
        return other

    def losses_of(self, outputs: Tensor) -> Tensor:
        """float32[B], the sum of the errors of each sample from its decoded output, differentiable."""
        targets = self.targets.to(outputs.device)
        errors = ERRORS[self.error](outputs, targets.where(~targets.isnan(), outputs.detach()), reduction="none")
        of_samples = errors if errors.ndim == 2 else steps_last(errors).flatten(1)
        return of_samples.sum(-1)


@named
def activity_regularizer(
    output: Output,
    *,
    lower: float | Mapping[str, float] | None = None,
    upper: float | Mapping[str, float] | None = None,
    strength_lower: float = 1.0,
    strength_upper: float = 1.0,
    n_samples: int | None = None,
    over_batch: Callable[[Tensor], Tensor] = lambda counts: counts,
) -> Tensor:
    """Penalizes too quiet neurons and too active populations; float32[], to add to the loss.

        a[n] = (1 / (T·B)) Σ_t Σ_b s[t,b,n]
        Σ_populations  strength_lower · mean_n max(0, lower - a[n])²  +  strength_upper · max(0, mean_n a[n] - upper)²

    Args:
        output: of the model; all its spiking populations count.
        lower: wanted activity of every neuron, spikes per neuron and step; a dict sets it for the named populations
            only; None: no lower bound.
        upper: highest wanted mean activity of a population, likewise.
        strength_lower, strength_upper: weights of the two terms. Activities are small numbers and enter squared, so
            useful strengths are large, of the order of 1 / lower².
        n_samples, over_batch: if the output is part of a batch: B, and a function from the part's counts [N] to those of
            the batch.

    Errors: `DescriptionError` if neither bound is given, a bound is outside 0 to 1, or a named population is not one
    of the output's spiking populations.
    Source: Zenke & Vogels 2021, eq. 14 and 15, with activities instead of counts.
    """
    if lower is None and upper is None:
        raise DescriptionError("activity_regularizer: lower and upper are both None; give at least one bound")
    if not output.spikes:
        raise DescriptionError(
            "activity_regularizer: the network has no spiking population, and so nothing to regularize"
        )
    lowers, uppers = _bounds("lower", lower, output), _bounds("upper", upper, output)
    terms = []
    for name, spikes in output.spikes.items():
        n_steps = spikes.n_steps if isinstance(spikes, SpikeBatch) else len(spikes)
        counts = output.counts(name)
        activity = over_batch(counts.sum(0)) / max(1, n_steps * (len(counts) if n_samples is None else n_samples))
        if name in lowers:
            terms.append(strength_lower * (lowers[name] - activity).clamp(min=0).square().mean())
        if name in uppers:
            terms.append(strength_upper * (activity.mean() - uppers[name]).clamp(min=0).square())
    return torch.stack(terms).sum()


def _bounds(what: str, bound: float | Mapping[str, float] | None, output: Output) -> dict[str, float]:
    """The bound of each population that has one."""
    if bound is None:
        return {}
    bounds = dict(bound) if isinstance(bound, Mapping) else dict.fromkeys(output.spikes, bound)
    for name, value in bounds.items():
        if name not in output.spikes:
            raise DescriptionError(f"{what}: {name!r} is not a spiking population; spiking ones: {list(output.spikes)}")
        if not isinstance(plain(value), (int, float)) or not 0 <= value <= 1:
            raise DescriptionError(f"{what}: {name!r} has {value!r}; allowed: 0 to 1 spikes per neuron and step")
    return bounds


def _labels(given: Any) -> Tensor:
    """Labels as int64 or float32; others unchanged, for messages."""
    labels = plain_tensor(given, "cross_entropy: labels")
    if labels.is_floating_point():
        return labels.float()
    return labels if labels.dtype == torch.bool else labels.long()


def _class_weights(given: Any, n_classes: int) -> Tensor:
    """float32[C]; `ShapeError` for another shape, or weights that are negative or not finite."""
    weights = plain_tensor(given, "cross_entropy: class_weights").detach().float().contiguous()
    if weights.shape != (n_classes,) or not bool((weights >= 0).all() and weights.isfinite().all()):
        raise ShapeError(
            f"cross_entropy: class_weights have the shape {tuple(weights.shape)} and run from {float(weights.min()) if weights.numel() else 0:g}; "
            f"give {n_classes} finite numbers from 0, one for each class"
        )
    return weights


def __getattr__(name: str) -> Any:
    if name != "activity_regulariser":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    warnings.warn("activity_regulariser is now spelled activity_regularizer", DeprecationWarning, stacklevel=2)
    return activity_regularizer
