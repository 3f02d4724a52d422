"""Convolution and pooling: NIR's maps are [channels, height, width] or, on one axis, [channels, length]; ours [height, width, channels].

Numbers per neuron, weights, biases and shapes are in our order everywhere except in the nodes themselves.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sparsesnn.errors import DescriptionError
from sparsesnn.synapses import Conv1d, Conv2d, Pool, Shape
from sparsesnn.synapses.maps import OnMaps

Array = NDArray[Any]
#: NIR's node of each reduction
POOLS = {"sum": "SumPool2d", "average": "AvgPool2d"}
#: kinds of nodes with maps as input
NODES = ("Conv1d", "Conv2d", *POOLS.values())


#: largest whole number in a node: sizes, strides, paddings
MOST = 1 << 28


def whole(value: Any, what: str) -> list[int]:
    """Whole numbers in a node, as a list. Errors: `DescriptionError` for texts, fractions, NaN, infinity, large numbers."""
    found = np.asarray(value)
    if found.dtype.kind in "biuf" and found.size <= 16 and np.all((found >= -MOST) & (found <= MOST)):
        numbers = [float(x) for x in found.reshape(-1)]
        if all(x.is_integer() for x in numbers):
            return [int(x) for x in numbers]
    raise DescriptionError(
        f"{what} is {str(value)[:100]!r}; give at most 16 whole numbers, each from {-MOST:,} to {MOST:,}"
    )


# ---- order -------------------------------------------------------------------------------------------------------------


def shape_of(given: Any, one_axis: bool = False, what: str = "shape") -> Shape | None:
    """Our shape from NIR's (channels, height, width) or, on one axis, (channels, length), with or without leading ones (a
    batch); None if these are not maps."""
    sizes = whole(given, what) if given is not None else []
    n = 2 if one_axis else 3
    while len(sizes) > n and sizes[0] == 1:
        sizes = sizes[1:]
    if len(sizes) != n or min(sizes) < 1:
        return None
    return (1, sizes[1], sizes[0]) if one_axis else (sizes[1], sizes[2], sizes[0])


def theirs(shape: Shape, one_axis: bool = False) -> tuple[int, ...]:
    height, width, channels = shape
    return (channels, width) if one_axis else (channels, height, width)


def to_ours(values: Array, shape: Shape) -> Array:
    """Converts numbers of neurons along the last axis from NIR's order to ours."""
    maps = values.reshape(*values.shape[:-1], *theirs(shape))
    return np.ascontiguousarray(np.moveaxis(maps, -3, -1)).reshape(values.shape)


def to_theirs(values: Array, shape: Shape) -> Array:
    """The inverse."""
    maps = values.reshape(*values.shape[:-1], *shape)
    return np.ascontiguousarray(np.moveaxis(maps, -1, -3)).reshape(values.shape)


def per_channel(values: Array, shape: Shape, where: str, what: str) -> Array:
    """[channels] from numbers per neuron. Errors: `DescriptionError` if they differ within a channel."""
    rows = values.reshape(-1, shape[2])
    worst = int(np.argmax(np.ptp(rows, axis=0)))
    if np.ptp(rows[:, worst]) > 0:
        raise DescriptionError(
            f"{where}: {what} differs within channel {worst}, from {rows[:, worst].min():g} to {rows[:, worst].max():g}; a "
            "convolution has one number per channel: make them equal"
        )
    channels: Array = rows[0]
    return channels


# ---- nodes → kinds of synapses -----------------------------------------------------------------------------------------


def kind_of(node: Any) -> OnMaps:
    """The kind of synapses of a Conv1d, Conv2d, SumPool2d or AvgPool2d. Errors: `DescriptionError`."""
    kind = type(node).__name__
    if kind in ("Conv1d", "Conv2d"):
        shape, wanted = np.shape(node.weight), "length" if kind == "Conv1d" else "height, width"
        kernel = shape[2:]
        if len(kernel) != wanted.count(",") + 1:
            raise DescriptionError(f"weight has shape {shape}; give [channels, channels before, {wanted}]")
        stride: Any = _pair(node.stride)[: len(kernel)]
        dilation: Any = _pair(node.dilation)[: len(kernel)]
        padding: Any = _padding(node.padding, kernel, stride, dilation)
        if kind == "Conv1d":
            return Conv1d(shape[0], kernel[0], stride[0], padding[0], dilation[0], groups=_groups(node))
        return Conv2d(shape[0], kernel, stride, padding, dilation, groups=_groups(node))
    if any(_pair(node.padding)):
        raise DescriptionError(f"padding is {_pair(node.padding)}; pools here have none: use 0")
    reduction = next(name for name, its in POOLS.items() if its == kind)
    return Pool(reduction, _pair(node.kernel_size), _pair(node.stride))


def filters_of(weight: Array) -> Array:
    """A convolution's weight [channels, channels before, height, width] or [channels, channels before, length] as ours."""
    weight = weight[:, :, None] if weight.ndim == 3 else weight
    return np.ascontiguousarray(weight.transpose(2, 3, 1, 0))


def shape_before(node: Any) -> Shape | None:
    """The input shape stored in a Conv1d or Conv2d."""
    given = getattr(node, "input_shape", None)
    if given is None:
        return None
    n_channels = np.shape(node.weight)[1] * _groups(node)
    return shape_of((n_channels, *np.reshape(given, -1)), type(node).__name__ == "Conv1d")


def pooled(constant: Array, pool: OnMaps) -> Array:
    """A constant input after pooling."""
    made = np.zeros((1, math.prod(pool.post_shape)))
    pool.add(made, constant[None], None)
    result: Array = made[0]
    return result


def _pair(value: Any) -> tuple[int, int]:
    numbers = whole(value, "stride, padding, dilation or kernel_size")
    if not numbers:
        raise DescriptionError("stride, padding, dilation or kernel_size is empty; give one or two whole numbers")
    return (numbers[0], numbers[-1])


def _groups(node: Any) -> int:
    # 0 is refused later with a message that names groups
    (groups,) = whole(node.groups, "groups") if np.size(node.groups) == 1 else (0,)
    return groups


def _padding(padding: Any, kernel: Any, stride: tuple[int, ...], dilation: tuple[int, ...]) -> tuple[int, ...]:
    """Padding as numbers, one per side of the kernel, also for "same" and "valid"."""
    if not isinstance(padding, (str, bytes)):
        return _pair(padding)[: len(kernel)]
    name = padding.decode() if isinstance(padding, bytes) else padding
    if name == "valid":
        return (0,) * len(kernel)
    reach = [d * (k - 1) for d, k in zip(dilation, kernel, strict=True)]
    if name != "same" or set(stride) != {1} or any(r % 2 for r in reach):
        raise DescriptionError(
            f"padding is {name!r} with kernel {tuple(kernel)}, stride {stride}, dilation {dilation}; allowed: numbers, 'valid', "
            "and 'same' with stride 1 and equal padding on both sides: give numbers"
        )
    return tuple(r // 2 for r in reach)


# ---- kinds of synapses → nodes -----------------------------------------------------------------------------------------


def conv_node(nir: Any, kind: Conv2d, weight: Array, bias: Array, metadata: dict[str, Any], one_axis: bool) -> Any:
    """A node with our weight [height, width, channels before, channels]; `one_axis`: a Conv1d."""
    _, stride, padding, dilation = kind.windows()
    filters = np.ascontiguousarray(weight.transpose(3, 2, 0, 1))
    if one_axis:
        numbers = stride[1], padding[1], dilation[1]
        node = nir.Conv1d(None, filters[:, :, 0], *numbers, kind.groups, bias, metadata=metadata)
        node.input_shape = kind.pre_shape[1]
    else:
        node = nir.Conv2d(None, filters, stride, padding, dilation, kind.groups, bias, metadata=metadata)
        node.input_shape = kind.pre_shape[:2]
    return _typed(node, kind, one_axis)


def pool_node(nir: Any, kind: Pool) -> Any:
    size, stride, padding, _ = (np.array(pair) for pair in kind.windows())
    return _typed(getattr(nir, POOLS[kind.reduction])(size, stride, padding), kind)


def flatten_node(nir: Any, shape: Shape, one_axis: bool) -> Any:
    return nir.Flatten({"input": np.array(theirs(shape, one_axis))}, start_dim=0, end_dim=-1)


def neuron_node(node: Any, shape: Shape, one_axis: bool) -> Any:
    """A node of neurons, with its parameters [n] reshaped to its maps."""
    names = [name for name, value in vars(node).items() if isinstance(value, np.ndarray)]
    return type(node)(**{k: to_theirs(getattr(node, k), shape).reshape(theirs(shape, one_axis)) for k in names})


def _typed(node: Any, kind: OnMaps, one_axis: bool = False) -> Any:
    """The node with explicit types: nir's own are wrong for groups, and for kernels that are not square."""
    node.input_type = {"input": np.array(theirs(kind.pre_shape, one_axis))}
    node.output_type = {"output": np.array(theirs(kind.post_shape, one_axis))}
    return node
