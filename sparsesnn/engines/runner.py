"""The part of an engine that `Model` and `Layer` hold: its runner, which runs layers, and whole networks if it can."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from sparsesnn.errors import ShapeError
from sparsesnn.network import Network
from sparsesnn.output import LayerState, Output
from sparsesnn.spikes import SpikeBatch

if TYPE_CHECKING:
    from sparsesnn.engines.dropout import Heard


@dataclass(frozen=True)
class NetworkRun:
    """A pass of a whole network.

    Args:
        outputs: by population, the input first.
        states: likewise.
        arrived: gives, by population, the spikes of its senders as they arrive.
        potentials: of the last population, if it fires and they are an output too.
    """

    outputs: dict[str, Any]
    states: dict[str, LayerState]
    arrived: Callable[[str], Any]
    potentials: Tensor | None = None


class Runner:
    """Runs layers for `Model`, which has one runner for all its layers, and for a `Layer` that is used alone.

    An engine derives its own; only `run_layer` is required. This base class reads tensors [T, B, N], runs layers one by one, and
    does not support ranks.

    Args:
        name: the engine's name, as users give it.
        options: the engine's options, an instance of its `Options`.
        network: the `Model`'s network; None: for a `Layer` that is used alone.
        grid: the ranks that run the network together; None: this process alone.

    Attributes:
        parts: how the network is divided over ranks, see `sparsesnn.engines.ranks.parts`; None: this process has all of it.
        numbers_drawn: how many initial weights are drawn at a time; 0: all of a connection at once.
        is_traceable: whether `torch.compile` may trace the engine; else it calls `Model` and `Layer` as they are.
    """

    parts: Any = None

    @property
    def is_traceable(self) -> bool:
        return False

    numbers_drawn = 0

    def __init__(self, name: str, options: Any, network: Network | None = None, grid: Any = None) -> None:
        self.name, self.options = name, options

    # ---- checks ------------------------------------------------------------------------------------------------

    def check(self, connections: Iterable[Any]) -> None:
        """Raises `DescriptionError` for connections into a layer that the engine does not run."""

    # ---- forms of spikes ---------------------------------------------------------------------------------------

    def readable(self, spikes: SpikeBatch) -> Any:
        """Spike lists in the form that single layers read."""
        return spikes.to_dense()

    def read(self, model: Any, spikes: Any) -> Any:
        """The input of a network in the form that its first layer reads fastest."""
        return as_tensor(spikes.to(weights_like(model).device) if isinstance(spikes, SpikeBatch) else spikes)

    def delayed(self, layer: Any, c: Any, x: Any, first_step: int) -> Any:
        """A sender's spikes, from step `first_step`, after the axonal delays of the connection `c`."""
        return delayed_tensor(as_tensor(x), layer.axonal_delays(c), layer.between_steps(c))[first_step:]

    def by_name(self, fired: Mapping[str, Any]) -> Mapping[str, Any]:
        """The spikes of populations by name, as an `Output` holds them."""
        return fired

    # ---- running -----------------------------------------------------------------------------------------------

    def run_layer(
        self,
        layer: Any,
        sources: Sequence[Any],
        state: LayerState | None,
        *,
        packed: bool,
        first_sample: int,
        potentials: bool = False,
    ) -> tuple[Any, ...]:
        """See `Layer.forward`: its output and its state; the potentials third, which an engine need not give unless `potentials`."""
        raise NotImplementedError

    def layers_run(self, layers: Mapping[str, Any]) -> contextlib.AbstractContextManager[None]:
        """Context in which the layers of a network run one by one."""
        return contextlib.nullcontext()

    def thinned(self, population: str, number: int, spikes: Any, heard: Heard) -> Any:
        """A population's spikes after dropout; `number`: see `sparsesnn.engines.dropout.numbers`."""
        return thinned_tensor(as_tensor(spikes), number, heard)

    def run_network(
        self,
        model: Any,
        data: Any,
        past: Mapping[str, LayerState],
        heard: Heard | None,
        first_sample: int,
        potentials: str,
    ) -> NetworkRun | None:
        """Runs a pass in one call. None: layers run one by one.

        Args:
            potentials: the last population, if it fires and its potentials are an output too; else empty.
        """
        return None

    def learn(
        self,
        model: Any,
        spikes: Any,
        loss: Callable[[Output], Tensor],
        heard: Heard | None,
        first_sample: int,
        potentials: str,
    ) -> tuple[Tensor, Output] | None:
        """Runs a pass that begins a sequence, its loss and its backward pass in one call: loss and output. None: autograd does it."""
        return None

    def begin_backward(self, n_samples: int, first_sample: int) -> None:
        """Called before a pass whose backward pass `finish_backward` completes."""

    def finish_backward(self) -> None:
        """Completes the gradients of a batch that ranks share."""

    # ---- networks that run continuously ------------------------------------------------------------------------

    def still(self, model: Any) -> Any:
        """A copy of a model for evaluation, with its current weights."""
        return copy.deepcopy(model).eval()

    def live_call(self, still: Any) -> Callable[[Any, Any], Output] | None:
        """A faster way to call a model made by `still`, with the next steps and the state before them; None: there is none."""
        return None


def weights_like(model: Any) -> Tensor:
    """A tensor with the dtype and on the device of the weights that read the input."""
    found: Tensor = next(iter(model.layers.values())).like
    return found


def as_tensor(x: Any) -> Tensor:
    """Spikes in any form as a tensor [T, B, N]."""
    found: Tensor = x if isinstance(x, Tensor) else x.to_dense()
    return found


def as_lists(x: Any, backend: str) -> SpikeBatch:
    """The input of a network of an engine that reads spike lists alone. Errors: `ShapeError` for anything else."""
    if not isinstance(x, SpikeBatch):
        kind = type(x).__name__
        raise ShapeError(f"Model: backend {backend!r} reads spike lists but got {kind}; give a SpikeBatch")
    return x


def thinned_tensor(x: Tensor, population: int, heard: Heard) -> Tensor:
    """Spikes [T, B, N] after dropout; the gradient flows back to the spikes that are kept."""
    step, sample, neuron = (np.arange(n).reshape(shape) for n, shape in zip(x.shape, _AXES, strict=True))
    return x * torch.from_numpy(heard(population, step, sample, neuron)).to(x.device, x.dtype)


_AXES = ((-1, 1, 1), (1, -1, 1), (1, 1, -1))


def delayed_tensor(x: Tensor, delays: Tensor, between: bool) -> Tensor:
    """Spikes [T, B, M] as they arrive after `delays` [M], in steps; `between`: delays may be fractions of a step, else they are whole."""
    steps = delays.detach().floor()
    moved = _moved(x, steps.long())
    if between:
        f = (delays - steps).to(x.dtype)
        moved = (1 - f) * moved + f * _moved(x, steps.long() + 1)
    return moved


def _moved(x: Tensor, steps: Tensor) -> Tensor:
    """Row t of neuron m is row t - steps[m] of x [T, B, M], or 0."""
    source = torch.arange(len(x), device=x.device)[:, None] - steps
    rows = torch.gather(x, 0, source.clamp(min=0)[:, None].expand(x.shape))
    return rows * (source >= 0).to(x.dtype)[:, None]
