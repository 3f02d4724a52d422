"""Convolutional networks as a text.

    "1x28x28:5C12+MP2-5C64+MP2-10"      an image of 1 × 28 × 28, two convolutions, ten LI readouts
    "2x34x34:3C8s2-3C16s2p-AP2-128r-10s"  strided, padded, pooled spikes, recurrent neurons, a spiking readout
    "1x700:9C8s4p-SP2-5C16-20"   one axis: channels and length; 9C8 is `Conv1d(8, 9)`, SP2 pools two neighbors

After channels, height and width (or channels and length) of the input, whose neurons are in this order, come layers, joined by `-`:

| text | layer |
|---|---|
| `5C12` | convolution, kernel 5 × 5, 12 channels, and a population of LIF neurons, one for each element of its maps |
| `MP2`, `AP2`, `SP2` | maximum, average, sum of the spikes over 2 × 2; without neurons |
| `1024` | fully connected LIF neurons; the last size is the readout: LI, or with `s` a spiking LIF population |

Letters after a convolution: `s2` stride, `p2` padding (`p`: half the kernel), `d2` dilation, `g2` groups, and the letter of a neuron model; after a
size, those of `sparsesnn.parse_net`; after a pool, `s2`, its stride. `+MP2` pools the currents, before the neurons: the order of
snnTorch's "convolution, pooling, Leaky".
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from sparsesnn.errors import DescriptionError
from sparsesnn.layers import Input
from sparsesnn.synapses import Conv1d, Conv2d, Dense, Pool, Synapses

POOLS = {"M": "max", "A": "average", "S": "sum"}
#: a text of this kind, up to the colon
HEAD = re.compile(r"\s*(\d{1,6})x(\d{1,6})(?:x(\d{1,6}))?\s*:")


def parse_maps(text: str, neurons: Callable[[int | None, str, bool], Any], models: str) -> list[Any]:
    """The chain described by a text, see the module: populations and kinds of synapses.

    Args:
        neurons: makes a population from its number of neurons, its letters, and whether it is the last.
        models: the letters of neuron models.
    """
    head = HEAD.match(text)
    if head is None:
        raise DescriptionError(
            f"net {text!r}: write the input's channels, height and width, a colon, and layers joined by '-', such as "
            "1x28x28:5C12+MP2-5C64+MP2-10; on one axis channels and length, such as 1x700:9C8-20"
        )
    channels, *lengths = (int(side) for side in head.groups() if side is not None)
    flat = len(lengths) == 1
    height, width = (1, *lengths)[-2:]
    parts: list[Any] = [Input(shape=(height, width, channels), channels_first=True)]
    layers = text[head.end() :].strip().split("-")
    for k, layer in enumerate(layers):
        last = k + 1 == len(layers)
        first, *pools = layer.split("+")
        if not last and not pools and _pool(first, flat) is not None:
            parts.append(_pool(first, flat))
            continue
        after = [_pool(pool, flat) for pool in pools]
        conv = re.fullmatch(rf"(\d{{1,3}})C(\d{{1,6}})((?:[sdg]\d{{1,3}}|p\d{{0,3}}|[{models}])*)", first)
        size = re.fullmatch(rf"([1-9]\d{{0,8}})([rs{models}]*)", first)
        if None in after or (conv is None and (size is None or after)) or (conv is not None and last):
            raise DescriptionError(
                f"net {text!r}: {layer!r} is not a layer; give a convolution such as 5C12 (s2: stride, p2: padding, d2: "
                "dilation, g2: groups, or the letter of a neuron model), a pool such as MP2, AP2 or SP2, or a size; the last is a size"
            )
        if conv is not None:
            parts += [_convolution(conv, flat), *after, neurons(None, "".join(x for x in conv[3] if x in models), last)]
        elif size is not None:
            parts += [Dense()] * isinstance(parts[-1], Synapses) + [neurons(int(size[1]), size[2], last)]
    return parts


def _pool(text: str, flat: bool) -> Synapses | None:
    match = re.fullmatch(r"([MAS])P([1-9]\d{0,2})(?:s([1-9]\d{0,2}))?", text)
    if match is None:
        return None
    size, stride = int(match[2]), int(match[3] or match[2])
    return Pool(POOLS[match[1]], (1, size), (1, stride)) if flat else Pool(POOLS[match[1]], size, stride)


def _convolution(match: re.Match[str], flat: bool) -> Conv2d:
    kernel = int(match[1])
    letters = dict(re.findall(r"([sdgp])(\d*)", match[3]))

    def number(letter: str, default: int) -> int:
        return int(letters.get(letter) or default)

    padding = number("p", kernel // 2) if "p" in letters else 0
    kind = Conv1d if flat else Conv2d
    return kind(int(match[2]), kernel, number("s", 1), padding, number("d", 1), number("g", 1))
