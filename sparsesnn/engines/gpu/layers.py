"""A network's layers as kernels see them, and the limits of the engine."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sparsesnn.engines.entries import entries_of, neuron_tensors
from sparsesnn.engines.gpu.layout import LANES, pad
from sparsesnn.errors import DescriptionError
from sparsesnn.layers import Input, fires, is_readout
from sparsesnn.layers.shapes import shape_of
from sparsesnn.network import Network
from sparsesnn.placement import tile_width
from sparsesnn.surrogate import KINDS
from sparsesnn.synapses import Dense

#: limits of the kernels: sources and loops of a layer (codelets/gpu/layout.h), neurons of a population (16-bit ids; 1,024 threads a block,
#: 4 tiles each)
MAX_SOURCES, MAX_LOOPS, MAX_IDS, MAX_NEURONS = 4, 2, 65_536, 16_384
#: threads of a block
MAX_THREADS = 1024

_INSTEAD = "use backend 'cpu', or 'dense' with device 'cuda'"


def check_network(network: Network, who: str) -> None:
    """`DescriptionError` that names the first part of a network that the engine does not run, and the engine to use."""
    for name, p in network.populations.items():
        limit = MAX_IDS if isinstance(p, Input) else MAX_NEURONS
        if p.n > limit:
            raise DescriptionError(f"{name}: has {p.n:,} neurons; {who} runs at most {limit:,}; {_INSTEAD}")
        if isinstance(p, Input):
            continue
        if getattr(p, "activity", "natural") != "natural":
            raise DescriptionError(f"{name}: has activity {p.activity!r}, which {who} does not run; use backend 'cpu'")
        if not p.linear:
            raise DescriptionError(f"{name}: {type(p).__name__} is not linear between spikes; use backend 'dense'")
        given = [c for c in network.incoming(name) if not c.synapses.gives_currents]
        loops = sum(c.is_recurrent for c in given)
        if len(given) - loops > MAX_SOURCES or loops > MAX_LOOPS:
            raise DescriptionError(
                f"{name}: has {len(given) - loops} senders and {loops} recurrent connections; {who} runs at most {MAX_SOURCES} and "
                f"{MAX_LOOPS}; {_INSTEAD}"
            )
    check_connections(network.connections, who)


def check_connections(connections: Iterable[Any], who: str) -> None:
    """The same for connections alone."""
    for c in connections:
        if type(c.synapses) is not Dense and not c.synapses.gives_currents:
            raise DescriptionError(
                f"connection {c.name}: its synapses are {c.synapses!r}, which {who} does not run; {_INSTEAD}"
            )
        if c.axonal:
            raise DescriptionError(f"connection {c.name}: has axonal delays, which {who} does not run; {_INSTEAD}")


@dataclass(frozen=True)
class Link:
    """A connection into a layer.

    Args:
        pre: the sender.
        name: of the weight, in the layer.
        delay: steps.
        n_pre: neurons of the sender.
    """

    pre: str
    name: str
    delay: int
    n_pre: int


class GpuLayer:
    """A layer of a model.

    Attributes:
        name, population: as in the network.
        learnt: the parameters of its neurons that learn.
        sources, loops: its connections with weights.
        is_given: whether the input gives it currents.
        width, columns, n_tiles, n_padded: of its tiles, see codelets/gpu/layout.h.
        rounds: tiles that half a warp takes in turn.
        n_threads: threads of a block that runs a sample.
        capacity: of its lists; 0: none.
        rounds_weights: whether passes read the weights rounded to bfloat16.
    """

    def __init__(self, network: Network, name: str, layer: Any) -> None:
        self.name, self.layer, self.population = name, layer, layer.population
        self.n, self.fires, self.is_readout = self.population.n, fires(self.population), is_readout(self.population)
        self.learnt = self._learnt_now()
        senders = zip(network.senders(name), layer.senders, strict=True)
        self.sources = [Link(of.pre, c.name, c.delay, c.n_pre) for of, c in senders if c is not layer.given]
        self.is_given = layer.given is not None
        self.loops = [Link(name, c.name, c.delay, c.n_pre) for c in layer.loops]
        self.trained = self._trained_now()
        self.width = tile_width(network, name)
        self.columns = self.width // LANES
        self.n_tiles = -(-self.n // self.width)
        self.n_padded = self.n_tiles * self.width
        self.rounds = next(r for r in (1, 2, 4) if LANES * -(-self.n_tiles // r) <= MAX_THREADS)
        self.n_threads = -(-LANES * -(-self.n_tiles // self.rounds) // 32) * 32
        self.shape = shape_of(self.population)
        self.n_entries = len(self.shape.entries)
        self.detaches = not self.fires or bool(self.population.detach_reset)
        self.n_states = len(self.population.states)
        self.has_bias = layer.tensor("bias") is not None
        self.surrogate = self.population.surrogate if self.fires else None
        self.capacity: int = self.population.capacity or 0 if self.fires else 0
        self.rounds_weights = layer.weight_dtype == "bfloat16"

    def _trained_now(self) -> list[bool]:
        """Of its weights, then of its bias."""
        bias = self.layer.tensor("bias")
        weights = [bool(self.layer.tensor(link.name).requires_grad) for link in self.links]
        return [*weights, bias is not None and bool(bias.requires_grad)]

    def _learnt_now(self) -> tuple[str, ...]:
        return tuple(p.name for p in self.population.parameters if self.layer.tensor(p.name).requires_grad)

    def is_current(self) -> bool:
        """Whether the same parameters learn as when this was made."""
        return self.learnt == self._learnt_now() and self.trained == self._trained_now()

    @property
    def learns(self) -> bool:
        """Whether anything of it learns."""
        return bool(self.learnt) or any(self.trained)

    @property
    def learns_numbers(self) -> bool:
        """Whether a training step changes numbers of its neurons."""
        return bool(self.learnt) or self.trained[-1]

    def macros(self, traces: int) -> dict[str, str]:
        """The macros with which kernels of this layer's neurons are compiled."""
        return {
            "SHAPE": _TYPES[self.shape.name],
            "COLUMNS": str(self.columns),
            "ROUNDS": str(self.rounds),
            "TRACES": str(traces),
            "FIRES": str(int(self.fires)),
            "CAPACITY": str(int(self.capacity > 0)),
            "THREADS": str(next(n for n in (256, 512, MAX_THREADS) if self.n_threads <= n)),
            **({"WEIGHT": "uint16"} if self.rounds_weights else {}),
        }

    @property
    def surrogate_number(self) -> int:
        """The place of the surrogate in codelets/surrogate.h."""
        return KINDS.index(self.surrogate.kind) if self.surrogate else 0

    @property
    def links(self) -> list[Link]:
        return [*self.sources, *self.loops]

    @property
    def records_x(self) -> bool:
        """Whether the adjoint reads the potential (`LayerSpec::records_x` of the engine `cpu`)."""
        reads_spikes = any(entry.startswith("R") for entry in self.shape.entries)
        return self.fires and reads_spikes and not self.detaches

    @property
    def traces_spikes(self) -> bool:
        """Whether derivatives by parameters pass through spikes."""
        feeds = any(entry.startswith("f") for entry in self.shape.entries)
        return self.fires and bool(self.learnt) and (not self.detaches or feeds)

    @property
    def n_counts(self) -> int:
        """Numbers of each list: its begin, spikes, entries; with a capacity also dropped candidates, and the spikes among them."""
        return 5 if self.capacity else 3

    @property
    def n_fields(self) -> int:
        """Numbers that a listed neuron keeps for the backward pass."""
        return (1 + self.records_x + len(self.learnt)) if self.fires else 0

    @property
    def n_numbers(self) -> int:
        """Arrays of numbers per neuron: entries, their derivatives, the secondary threshold and the bias."""
        return self.n_entries * (1 + len(self.learnt)) + 2

    def tensors(self) -> dict[str, Tensor]:
        """The parameters of its neurons, as `neuron_tensors` gives them."""
        return neuron_tensors(self.layer)

    def numbers(self, tensors: Mapping[str, Tensor]) -> npt.NDArray[np.float32]:
        """[n_numbers, n_padded]: the entries, their derivatives by each learnt parameter, the secondary threshold, the bias."""
        never = float(np.finfo(np.float32).max)
        arrays = {name: x.detach().to("cpu", torch.float32).contiguous().numpy() for name, x in tensors.items()}
        entries = entries_of(self.population, arrays, self.learnt)
        rows = [
            pad(x, self.n, self.n_padded, never if self.fires and name == "threshold" else 0.0)
            for name, x in zip(self.shape.entries, entries.values, strict=True)
        ]
        for by in entries.derivatives:
            rows += [pad(0.0 if x is None else x, self.n, self.n_padded, 0.0) for x in by]
        grad_threshold, bias = self.layer.tensor("grad_threshold"), self.layer.tensor("bias")
        rows.append(pad(never if grad_threshold is None else _array(grad_threshold), self.n, self.n_padded, never))
        rows.append(pad(0.0 if bias is None else _array(bias), self.n, self.n_padded, 0.0))
        return np.stack(rows)


def _array(x: Tensor) -> npt.NDArray[np.float32]:
    return x.detach().to("cpu", torch.float32).numpy()


def layers_of(network: Network, layers: Mapping[str, Any]) -> dict[str, GpuLayer]:
    """The layers of a model, in the order in which they run."""
    return {name: GpuLayer(network, name, layer) for name, layer in layers.items()}


#: the C++ types of the shapes of codelets/neuron.h, by name
_TYPES = {
    "readout": "Readout",
    "subtract": "Subtract",
    "zero": "Zero",
    "current.subtract": "Current<false>",
    "current.zero": "Current<true>",
    "rotating": "Rotating",
    "adaptive.subtract": "Adaptive<false>",
    "adaptive.zero": "Adaptive<true>",
    **{f"any {k}": f"Any<{k}>" for k in (1, 2, 3, 4)},
}
