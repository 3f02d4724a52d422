"""What `Model` and `Layer` hold of an engine: its runner, which runs layers, and whole networks if it can."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from sparsesnn.network import Network
from sparsesnn.output import LayerState, Output
from sparsesnn.spikes import SpikeBatch

if TYPE_CHECKING:
    from sparsesnn.engines.dropout import Heard


class Runner:
    """Runs layers for `Model`, which has one for all of them, and for a `Layer` that is used alone.

    An engine derives its own; `run_layer` is all that it must give. What is here reads tensors [T, B, N], runs layers one after
    the other, and knows no ranks.

    Args:
        name: of the engine, as users give it.
        options: of the engine, an instance of its `Options`.
        network: of a `Model`; None: of a `Layer` that is used alone.
        grid: the ranks that run the network together; None: this process alone.

    Attributes:
        parts: how the network lies on ranks, see `sparsesnn.engines.ranks.parts`; None: this process has all of it.
        numbers_drawn: initial weights are drawn so many at a time; 0: those of a connection at once.
    """

    parts: Any = None
    numbers_drawn = 0

    def __init__(self, name: str, options: Any, network: Network | None = None, grid: Any = None) -> None:
        self.name, self.options = name, options

    # ---- checks ------------------------------------------------------------------------------------------------

    def check(self, connections: Iterable[Any]) -> None:
        """`DescriptionError` for connections into a layer that the engine does not run."""

    # ---- forms of spikes ---------------------------------------------------------------------------------------

    def readable(self, spikes: SpikeBatch) -> Any:
        """Lists in the form that single layers read."""
        return spikes.to_dense()

    def read(self, model: Any, spikes: Any) -> Any:
        """The input of a network in the form that its first layer reads fastest."""
        return as_tensor(spikes.to(weights_like(model).device) if isinstance(spikes, SpikeBatch) else spikes)

    def delayed(self, layer: Any, c: Any, x: Any, first_step: int) -> Any:
        """A sender's spikes, from `first_step` on, after the axonal delays of the connection `c`."""
        return delayed_tensor(as_tensor(x), layer.axonal_delays(c), layer.between_steps(c))[first_step:]

    def by_name(self, fired: Mapping[str, Any]) -> Mapping[str, Any]:
        """What populations fired, as an output holds it."""
        return fired

    # ---- running -----------------------------------------------------------------------------------------------

    def run_layer(
        self, layer: Any, sources: Sequence[Any], state: LayerState | None, *, packed: bool, first_sample: int
    ) -> tuple[Any, LayerState]:
        """See `Layer.forward`."""
        raise NotImplementedError

    def layers_run(self, layers: Mapping[str, Any]) -> contextlib.AbstractContextManager[None]:
        """While the layers of a network run one after the other."""
        return contextlib.nullcontext()

    def thinned(self, model: Any, population: str, spikes: Any, heard: Heard) -> Any:
        """A population's spikes without those that dropout leaves out; see `sparsesnn.engines.dropout`."""
        return thinned_tensor(as_tensor(spikes), list(model.network.populations).index(population), heard)

    def run_network(
        self, model: Any, data: Any, past: Mapping[str, LayerState], heard: Heard | None, first_sample: int
    ) -> tuple[dict[str, Any], dict[str, LayerState], Callable[[str], Any]] | None:
        """A pass in one call: what each population puts out, the input first; the states; and for each population, when it is called, the
        spikes of its senders as they arrive. None: layers run one after the other."""
        return None

    def learn(
        self,
        model: Any,
        spikes: Any,
        loss: Callable[[Output], Tensor],
        heard: Heard | None,
        first_sample: int,
    ) -> tuple[Tensor, Output] | None:
        """A pass that begins a sequence, its loss and the way back, in one call: the loss and the output; None: autograd does it."""
        return None

    def begin_backward(self, n_samples: int, first_sample: int) -> None:
        """Before a pass whose backward pass `finish_backward` completes."""

    def finish_backward(self) -> None:
        """Completes the gradients of a batch that ranks share."""

    # ---- networks that run continuously ------------------------------------------------------------------------

    def still(self, model: Any) -> Any:
        """A copy of a model for evaluation, with the weights as they are now."""
        return copy.deepcopy(model).eval()

    def live_call(self, still: Any) -> Callable[[Any, Any], Output] | None:
        """A faster call of a model that `still` made, of the next steps and the state before them."""
        return None


def weights_like(model: Any) -> Tensor:
    """A tensor with the dtype and on the device of the weights that read the input."""
    found: Tensor = next(iter(model.layers.values())).like
    return found


def as_tensor(x: Any) -> Tensor:
    """Spikes in any form as a tensor [T, B, N]."""
    found: Tensor = x if isinstance(x, Tensor) else x.to_dense()
    return found


def thinned_tensor(x: Tensor, population: int, heard: Heard) -> Tensor:
    """Spikes [T, B, N] without those that dropout leaves out; the gradient flows back to those that stay."""
    step, sample, neuron = (np.arange(n).reshape(shape) for n, shape in zip(x.shape, _AXES, strict=True))
    return x * torch.from_numpy(heard(population, step, sample, neuron)).to(x.device, x.dtype)


_AXES = ((-1, 1, 1), (1, -1, 1), (1, 1, -1))


def delayed_tensor(x: Tensor, delays: Tensor, between: bool) -> Tensor:
    """Spikes [T, B, M] as they arrive after `delays` [M], in steps; `between`: they may lie between steps, else they are whole."""
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
