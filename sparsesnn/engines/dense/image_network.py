"""Convolutional networks described: what the backend `dense` has and event lists have not.

    "1x28x28:5C12+MP2-5C64+MP2-10"          an image of 1 × 28 × 28, two convolutions, ten LI readouts
    "3x32x32:3C128pb-3C256pb-AP2-512-10s"   padded to keep the size, batch norm, pooled spikes, a spiking readout

After the image's channels, height and width come layers, joined by `-`:

| text | layer |
|---|---|
| `5C12` | convolution, kernel 5 × 5, 12 channels, and a population of LIF neurons, one an element of its maps |
| `MP2`, `AP2` | maximum, mean of the spikes over 2 × 2 |
| `1024` | fully connected LIF neurons; the last size is the readout: LI, or with `s` a spiking LIF population |

Letters after a convolution or a size: `p` pads by half the kernel, `b` batch norm, `c` CubaLIF. `+MP2` and `+AP2` pool the
currents, before the neurons: the order of snnTorch's "convolution, pooling, Leaky".
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, fields, replace
from typing import Any

from sparsesnn.errors import DescriptionError
from sparsesnn.layers import LI, LIF, CubaLIF, Population
from sparsesnn.wording import count

#: channels, height, width
Shape = tuple[int, int, int]

MOST_ELEMENTS = (
    1 << 28
)  # of a layer's maps, and of its weights: a slip of the pen is refused before memory is asked for


@dataclass(frozen=True)
class Pool:
    """Non-overlapping windows of `size` × `size`: their maximum ("max") or mean ("mean"); what is left over is cut."""

    kind: str
    size: int

    def __post_init__(self) -> None:
        if self.kind not in ("max", "mean") or self.size < 1:
            raise DescriptionError(f"Pool: {self.kind!r} over {self.size}; allowed: max or mean, over at least 1")

    def shape(self, before: Shape) -> Shape:
        channels, height, width = before
        return channels, height // self.size, width // self.size


@dataclass(frozen=True)
class Stage:
    """One population and what its currents are made of.

    Args:
        neuron: LIF, CubaLIF, or LI for the last; its n is an element for each place of its maps.
        channels: of its maps; of a fully connected stage: its neurons.
        kernel: side of the convolution's window; 0: fully connected.
        padding: zeros around the maps.
        batch_norm: the currents are normalised for each channel, over time steps, samples and places.
        before: pools the spikes that arrive.
        after: pools the currents.
    """

    neuron: LI | Population
    channels: int
    kernel: int = 0
    padding: int = 0
    batch_norm: bool = False
    before: tuple[Pool, ...] = ()
    after: tuple[Pool, ...] = ()

    def maps(self, shape: Shape) -> tuple[Shape, Shape]:
        """The shape that its weights read, and the shape of its neurons, behind maps of a shape."""
        for pool in self.before:
            shape = pool.shape(shape)
        read = shape
        if self.kernel:
            height, width = (side + 2 * self.padding - self.kernel + 1 for side in shape[1:])
            shape = (self.channels, height, width)
        else:
            shape = (self.channels, 1, 1)
        for pool in self.after:
            shape = pool.shape(shape)
        return read, shape

    def weight_shape(self, read: Shape) -> tuple[int, ...]:
        """[channels, channels before, kernel, kernel], or [channels, elements] of a fully connected stage."""
        if self.kernel:
            return self.channels, read[0], self.kernel, self.kernel
        return self.channels, math.prod(read)


@dataclass(frozen=True)
class ImageNetwork:
    """A chain of stages behind images, or sequences of images.

    Args:
        shape: channels, height, width of the input.
        stages: the last is the readout.

    Errors: `DescriptionError` for windows larger than their maps, populations that do not fit their maps, recurrent ones.
    """

    shape: Shape
    stages: tuple[Stage, ...]

    def __post_init__(self) -> None:
        if len(self.shape) != 3 or min(self.shape) < 1 or not self.stages:
            raise DescriptionError(
                f"ImageNetwork: {self.shape} and {len(self.stages)} stages; give C, H, W and a stage"
            )
        for k, (stage, (_, shape)) in enumerate(zip(self.stages, self.maps(), strict=True)):
            name = f"stage {k + 1}"
            if getattr(stage.neuron, "recurrent", False) or getattr(stage.neuron, "capacity", None) is not None:
                raise DescriptionError(f"{name}: is recurrent or has a capacity; leave both out in an image network")
            if stage.neuron.n != math.prod(shape):
                raise DescriptionError(
                    f"{name}: has {count(stage.neuron.n, 'neuron')} for maps of {shape}; give {math.prod(shape)}"
                )
            if isinstance(stage.neuron, LI) and k + 1 < len(self.stages):
                raise DescriptionError(f"{name}: is an LI readout, which does not fire; put it last")

    def maps(self) -> list[tuple[Shape, Shape]]:
        """Per stage the shape that its weights read, and the shape of its neurons."""
        found: list[tuple[Shape, Shape]] = []
        shape = self.shape
        for k, stage in enumerate(self.stages):
            read, after = stage.maps(shape)
            if min(*read, *after) < 1:
                raise DescriptionError(
                    f"stage {k + 1}: nothing is left of maps of {shape} after its windows; "
                    "use smaller kernels or fewer pools, or pad"
                )
            n_weights = math.prod(stage.weight_shape(read))
            if max(math.prod(after), n_weights) > MOST_ELEMENTS:
                raise DescriptionError(
                    f"stage {k + 1}: has maps of {after} and {n_weights:,} weights; allowed: {MOST_ELEMENTS:,}"
                )
            found.append((read, after))
            shape = after
        return found

    def n_weights(self) -> int:
        """Weights of all stages, without batch norm."""
        return sum(math.prod(s.weight_shape(read)) for s, (read, _) in zip(self.stages, self.maps(), strict=True))

    def n_products(self) -> list[int]:
        """Multiply-adds of each stage's products, for one image."""
        found = []
        for stage, (read, _) in zip(self.stages, self.maps(), strict=True):
            places = math.prod(side + 2 * stage.padding - stage.kernel + 1 for side in read[1:]) if stage.kernel else 1
            found.append(places * math.prod(stage.weight_shape(read)))
        return found

    def with_model(self, model: type[Population]) -> ImageNetwork:
        """The same with neurons of another model, LIF or CubaLIF, with the arguments that both know."""

        def changed(neuron: LI | Population) -> LI | Population:
            if not isinstance(neuron, Population):
                return neuron
            known = {f.name for f in fields(model)} & {f.name for f in fields(neuron)}
            return model(**{name: getattr(neuron, name) for name in known})

        return ImageNetwork(self.shape, tuple(replace(stage, neuron=changed(stage.neuron)) for stage in self.stages))

    @property
    def names(self) -> list[str]:
        """Of the populations: hidden1, …, output."""
        return [*(f"hidden{k + 1}" for k in range(len(self.stages) - 1)), "output"]


def is_image_net(text: str) -> bool:
    """Whether a text describes an image network: it begins with the shape of an image and a colon."""
    return re.match(r"\s*\d+x\d+x\d+\s*:", text) is not None


def parse_image_net(text: str, *, n_outputs: int | None = None, **defaults: Any) -> ImageNetwork:
    """The network that a text describes, see the module.

    Args:
        n_outputs: of the readout, instead of the last size: a population code takes a multiple of the classes.
        defaults: arguments of every LIF population (`beta`, `threshold`, `surrogate`, …).
    """
    match = re.fullmatch(r"\s*(\d{1,6})x(\d{1,6})x(\d{1,6})\s*:\s*(\S+)\s*", text)
    if match is None:
        raise DescriptionError(
            f"net {text!r}: write the image's channels, height and width, a colon, and layers joined by '-', such as "
            "1x28x28:5C12+MP2-5C64+MP2-10"
        )
    shape = (int(match[1]), int(match[2]), int(match[3]))
    known = {f.name for f in fields(CubaLIF)}
    if unknown := set(defaults) - known:
        raise DescriptionError(f"net: unknown arguments {sorted(unknown)}; allowed: {sorted(known)}")
    parts = match[4].split("-")
    stages: list[Stage] = []
    before: list[Pool] = []
    maps = shape
    for k, part in enumerate(parts):
        layer, *pools = part.split("+")
        after = tuple(_pool(pool, text) for pool in pools)
        last = k + 1 == len(parts)
        if re.fullmatch(r"[MA]P\d+", layer) and not last and not pools:
            before.append(_pool(layer, text))
            continue
        conv = re.fullmatch(r"(\d{1,3})C(\d{1,6})([pbc]*)", layer)
        full = re.fullmatch(r"(\d{1,7})([bcs]*)", layer)
        if (conv is None and full is None) or (conv is not None and last) or (full and "s" in full[2] and not last):
            raise DescriptionError(
                f"net {text!r}: {part!r} is no layer here; give a convolution such as 5C12 (letters p, b, c), a pool such "
                "as MP2, or a size (letters b, c); the last is a size, with s for a spiking readout"
            )
        letters = (conv or full)[conv.lastindex if conv else 2]  # type: ignore[index]
        channels = int(conv[2] if conv else full[1])  # type: ignore[index]
        if last and n_outputs is not None:
            channels = n_outputs
        draft = Stage(
            LI(1),
            channels,
            kernel=int(conv[1]) if conv else 0,
            padding=int(conv[1]) // 2 if conv and "p" in letters else 0,
            batch_norm="b" in letters,
            before=tuple(before),
            after=after,
        )
        maps = draft.maps(maps)[1]
        stages.append(
            _with_neurons(draft, max(1, math.prod(maps)), last and "s" not in letters, "c" in letters, defaults)
        )
        before = []
    return ImageNetwork(shape, tuple(stages))


def _pool(text: str, net: str) -> Pool:
    match = re.fullmatch(r"([MA])P([1-9]\d{0,2})", text)
    if match is None:
        raise DescriptionError(f"net {net!r}: {text!r} is no pool; write MP2 (maximum) or AP2 (mean)")
    return Pool("max" if match[1] == "M" else "mean", int(match[2]))


def _with_neurons(stage: Stage, n: int, readout: bool, cuba: bool, defaults: dict[str, Any]) -> Stage:
    """The stage with neurons as `sparsesnn.network.parse_net` makes them."""
    beta = defaults.get("beta", 0.95)
    if readout:
        neuron: LI | Population = LI(n, beta=float(beta) if isinstance(beta, (int, float)) else 0.95)
    else:
        model = CubaLIF if cuba else LIF
        neuron = model(n, **{k: v for k, v in defaults.items() if k in {f.name for f in fields(model)}})
    return replace(stage, neuron=neuron)
