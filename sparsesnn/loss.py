"""Decoding and losses: from a network's output to logits, cross-entropy and activity regularizers.

Everything is differentiable in PyTorch and works on the output of every backend; T steps, B samples, N neurons, C classes.
With a population code the last population has N = k·C neurons, class by class: neurons c·k to c·k + k - 1 are class c.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from sparsesnn import _core
from sparsesnn.arguments import named
from sparsesnn.errors import DescriptionError, ShapeError
from sparsesnn.first_order import first_order
from sparsesnn.options import plain, whole
from sparsesnn.output import Output, at_least_float32
from sparsesnn.spikes import SpikeBatch
from sparsesnn.tensor_like import plain_tensor


def _steps_last(v: Tensor) -> Tensor:
    """[T, B, C] as [B, C, T] in memory: a sum over steps then has an order that does not depend on B."""
    return v.permute(1, 2, 0).contiguous()


class _Maximum(torch.autograd.Function):
    """max_t v[t]; steps with the maximum share its gradient equally, while PyTorch's own maxima differ for ties.

    A readout without input is 0 at every step, so ties are common.
    """

    @staticmethod
    def forward(ctx: Any, v: Tensor) -> Tensor:
        most = v.amax(0)
        ctx.save_for_backward(v, most)
        return most

    @staticmethod
    def backward(ctx: Any, *d: Tensor) -> Any:
        v, most = ctx.saved_tensors
        holds = v == most
        return d[0] * holds / holds.sum(0)


def _softmax_sum(v: Tensor) -> Tensor:
    return _steps_last(v.softmax(-1)).sum(-1)


def _maximum(v: Tensor) -> Tensor:
    most: Tensor = _Maximum.apply(v)
    return most


#: reductions of an LI readout's potentials [T, B, C] to logits [B, C]
OVER_TIME: Mapping[str, Callable[[Tensor], Tensor]] = MappingProxyType(
    {
        "max": _maximum,
        "mean": lambda v: _steps_last(v).mean(-1),
        "sum": lambda v: _steps_last(v).sum(-1),
        "last": lambda v: v[-1],
        "softmax_sum": _softmax_sum,
    }
)
DECODINGS = (*OVER_TIME, "count")
#: decodings whose cross-entropy the engine computes
IN_ENGINE = ("mean", "sum", "last", "max")


@named
def decode(output: Output, decoding: str, n_classes: int) -> Tensor:
    """Logits float32[B, C].

        max, mean, sum, last    logit[b,c] = reduce over t of (1/k)·Σ_j v[t, b, c·k+j]     an LI readout
        softmax_sum             logit[b,c] = Σ_t softmax_c(v[t, b])                        an LI readout
        count                   logit[b,c] = Σ_t Σ_j s[t, b, c·k+j]                        a spiking readout (rate code)

    The gradient of "max" goes to the step of the maximum (shared equally among ties).

    Args:
        output: of the model.
        decoding: "max", "mean", "sum", "last" or "softmax_sum" for a network that ends in LI; "count" for one that ends in spikes.
        n_classes: C; the last population has C neurons, or k·C for a population code.

    Errors: `DescriptionError` if the decoding is unknown or does not fit the readout; `ShapeError` if N is not a multiple
    of C, or there are no steps.
    Source: max over time, Cramer et al. 2022 (Heidelberg spiking datasets), eq. 5; sum of softmax, Bittar & Garner 2022; rate code, Eshraghian et al. 2023.
    """
    n_classes = _check_decoding(decoding, n_classes)
    name = output.output
    if decoding == "count":
        if output.potentials is not None:
            raise DescriptionError(
                f"decoding 'count' reads spikes, but {name!r} is an LI readout; use {', '.join(OVER_TIME)}, "
                "or end the network in a spiking population"
            )
        counts = _by_class(output.counts(), name, n_classes)
        return counts if counts.ndim == 2 else counts.sum(-1)
    if output.potentials is None:
        raise DescriptionError(
            f"decoding {decoding!r} reads potentials, but {name!r} fires; use 'count', or end the network in LI"
        )
    if not len(output.potentials):
        raise ShapeError(f"decoding {decoding!r}: {name!r} has 0 time steps; give a sequence of at least one")
    potentials = _by_class(output.potentials, name, n_classes)
    return OVER_TIME[decoding](potentials if potentials.ndim == 3 else potentials.mean(-1))


def _check_decoding(decoding: str, n_classes: int) -> int:
    """The number of classes."""
    if decoding not in DECODINGS:
        raise DescriptionError(f"decoding is {decoding!r}; allowed: {', '.join(DECODINGS)}")
    number = whole(n_classes)
    if number is None or number < 1:
        raise DescriptionError(f"decode: n_classes is {n_classes!r}; give a whole number, at least 1")
    return number


@named
def cross_entropy(
    output: Output, labels: Tensor, decoding: str, n_classes: int, *, label_smoothing: float = 0.0
) -> Tensor:
    """Mean over the batch of -log softmax(logits)[label], logits from `decode`; float32[].

    Args:
        output, decoding, n_classes: see `decode`.
        labels: whole numbers [B], 0 to C - 1; or floats [B, C], the share of each class in a mixed sample, rows that sum to 1:
            then the mean of -Σ_c label[b,c]·log softmax(logits)[b,c]. A tensor, sparse too, an array or a list.
        label_smoothing: share of the target spread evenly over the classes, in [0, 1).

    Errors: those of `decode`; `ShapeError` for labels of another shape or dtype, or out of range.
    """
    return CrossEntropy(labels, decoding, n_classes, label_smoothing=label_smoothing)(output)


@named
class CrossEntropy:
    """`cross_entropy` of one batch as a loss for `Model.learn`, which then needs no PyTorch graph:
    `model.learn(spikes, CrossEntropy(labels, "mean", 20))`.

    Args:
        labels, decoding, n_classes, label_smoothing: see `cross_entropy`.
        n_samples: if the labels are part of a batch, the size of the whole batch: the loss is the sum over the part / n_samples.

    Attributes:
        logits, losses: of the last output, float32[B, C] and [B], detached.
    """

    def __init__(
        self,
        labels: Tensor,
        decoding: str,
        n_classes: int,
        *,
        label_smoothing: float = 0.0,
        n_samples: int | None = None,
    ) -> None:
        labels = _labels(labels)
        n_classes = _check_decoding(decoding, n_classes)
        if not isinstance(plain(label_smoothing), (int, float)) or not 0 <= label_smoothing < 1:
            raise DescriptionError(f"cross_entropy: label_smoothing is {label_smoothing!r}; allowed: 0 to below 1")
        self.labels, self.decoding, self.n_classes = labels, decoding, n_classes
        self.label_smoothing = float(label_smoothing)
        self.n_samples = (len(labels) if labels.ndim else 1) if n_samples is None else plain(n_samples)
        if type(self.n_samples) is not int or self.n_samples < 0:
            raise DescriptionError(f"cross_entropy: n_samples is {n_samples!r}; allowed: whole numbers, 0 or more")
        self._found: tuple[Any, Any] | None = None

    @property
    def logits(self) -> Tensor:
        return self._of_last_output(0)

    @property
    def losses(self) -> Tensor:
        return self._of_last_output(1)

    def _of_last_output(self, k: int) -> Tensor:
        if self._found is None:
            raise AttributeError("CrossEntropy: logits and losses exist only after a call with an output")
        x = self._found[k]
        return x if isinstance(x, Tensor) else torch.from_numpy(x)

    def __call__(self, output: Output) -> Tensor:
        """The loss of an output, float32[], differentiable."""
        if self.in_engine(output):
            value: Tensor = _CrossEntropyInEngine.apply(output.potentials, self)
            return value
        logits = at_least_float32(decode(output, self.decoding, self.n_classes))
        self._check(logits.shape)
        self._check_range()
        losses = self._losses(logits)
        self._found = logits.detach(), losses.detach()
        return losses.sum() / self.n_samples

    def _losses(self, logits: Tensor) -> Tensor:
        """float32[B]."""
        labels = self.labels.to(logits.device)
        return functional.cross_entropy(logits, labels, label_smoothing=self.label_smoothing, reduction="none")

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
        self._check(v.shape[1:])
        labels = self.labels.contiguous().numpy()
        hard = self.labels.dtype == torch.int64
        of = (
            v, labels if hard else None, None if hard else labels,
            self.decoding, self.label_smoothing, self.n_samples,
        )  # fmt: skip
        logits, losses, loss = _core.cross_entropy(*of)
        self._found = logits, losses
        return torch.from_numpy(loss), lambda d_loss: np.asarray(_core.cross_entropy_grad(*of, logits, d_loss))

    def _check(self, shape: tuple[int, ...]) -> None:
        """Raises `ShapeError` if the labels do not fit logits of this shape."""
        labels = self.labels
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
        if low < 0 or high >= self.n_classes:
            raise ShapeError(
                f"cross_entropy: labels run from {int(low)} to {int(high)}; allowed: 0 to {self.n_classes - 1}; "
                "correct the labels or raise n_classes"
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
            gradient = torch.autograd.grad(loss._losses(logits).sum() / loss.n_samples, v, d[0], create_graph=True)
            return *gradient, None
        return _gradient_in_engine(ctx, *d)


@first_order("a CrossEntropy with its own of_potentials")
def _gradient_in_engine(ctx: Any, *d: Tensor) -> tuple[Tensor, None]:
    (v,) = ctx.saved_tensors  # PyTorch checks whether it has changed since
    return torch.from_numpy(ctx.gradient(float(d[0]))).expand_as(v), None


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


def _by_class(x: Tensor, name: str, n_classes: int) -> Tensor:
    """[..., N] as [..., C, k]; unchanged if k is 1."""
    n = x.shape[-1]
    if n % n_classes:
        raise ShapeError(
            f"decode: {name!r} has {n} neurons for {n_classes} classes; give it {n_classes}, or k·{n_classes} "
            "for a population code"
        )
    return x if n == n_classes else x.reshape(*x.shape[:-1], n_classes, n // n_classes)


def __getattr__(name: str) -> Any:
    if name != "activity_regulariser":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    warnings.warn("activity_regulariser is now spelled activity_regularizer", DeprecationWarning, stacklevel=2)
    return activity_regularizer
