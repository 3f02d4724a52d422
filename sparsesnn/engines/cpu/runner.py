"""How the engine `cpu` runs layers and networks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from sparsesnn.engines.cpu import live
from sparsesnn.engines.cpu.arrival import Move
from sparsesnn.engines.cpu.chain import Chain
from sparsesnn.engines.cpu.layer import run_layer
from sparsesnn.engines.cpu.one_call import OneCall, any_hooks, fits_one_call
from sparsesnn.engines.cpu.pooling import pooled
from sparsesnn.engines.cpu.wiring import Wiring
from sparsesnn.engines.runner import Runner
from sparsesnn.errors import ShapeError
from sparsesnn.in_lists import check_in_lists
from sparsesnn.network import Network
from sparsesnn.output import LayerState, Output
from sparsesnn.rotation import next_training_step
from sparsesnn.spikes import SpikeBatch

if TYPE_CHECKING:
    from sparsesnn.engines.module import Model


class CpuRunner(Runner):
    """Lists in, lists out; all layers in one call where that fits.

    Attributes:
        fits_one_call: whether one call runs the network.
        one_call: the last one, which holds as long as the tensors of the model lie where they lay.
    """

    def __init__(self, name: str, options: Any, network: Network | None = None, grid: Any = None) -> None:
        super().__init__(name, options, network, grid)
        if network is not None:
            self.check(network.connections)
        self.fits_one_call = network is not None and fits_one_call(network)
        self.one_call: OneCall | None = None

    def __getstate__(self) -> dict[str, Any]:
        """For copies and pickles: a copy makes its own call."""
        return {**self.__dict__, "one_call": None}

    def check(self, connections: Iterable[Any]) -> None:
        check_in_lists(connections, f"backend {self.name!r}")

    def readable(self, spikes: SpikeBatch) -> SpikeBatch:
        return spikes

    def read(self, model: Model, spikes: Any) -> SpikeBatch:
        if not isinstance(spikes, SpikeBatch):
            kind = type(spikes).__name__
            raise ShapeError(f"Model: backend {self.name!r} reads spike lists but got {kind}; give a SpikeBatch")
        return spikes

    def delayed(self, layer: Any, c: Any, x: Any, first_step: int) -> Any:
        if not isinstance(x, SpikeBatch):
            return x  # refused by `run_layer`
        return Move(x, layer.axonal_delays(c), layer.between_steps(c), first_step).moved(x)

    def run_layer(
        self, layer: Any, sources: Sequence[Any], state: LayerState | None, *, packed: bool, first_sample: int
    ) -> tuple[Any, LayerState]:
        if not all(isinstance(source, SpikeBatch) for source in sources):
            raise ShapeError(
                f"Layer: backend {self.name!r} reads spike lists but got a tensor; use SpikeBatch.from_dense"
            )
        training_step = state.training_step if state else next_training_step(layer)
        return self.run_lists(layer, sources, state, training_step, first_sample)

    def run_lists(
        self,
        layer: Any,
        sources: Sequence[SpikeBatch],
        state: LayerState | None,
        training_step: int,
        first_sample: int,
    ) -> tuple[Any, LayerState]:
        """See `run_layer`; `training_step`: see `sparsesnn.rotation.list_seed`."""
        heard = [pooled(x, pools) for x, pools in zip(sources, Wiring.of(layer).pools_before, strict=True)]
        return run_layer(layer, heard, state, training_step)

    # ---- all layers in one call --------------------------------------------------------------------------------

    def run_network(self, model: Model, data: Any) -> tuple[dict[str, Any], dict[str, LayerState]] | None:
        if self.parts is not None or (call := self._one_call(model, data)) is None:
            return None
        return call.run(data)

    def learn(
        self, model: Model, spikes: Any, loss: Callable[[Output], Tensor], first_sample: int
    ) -> tuple[Tensor, Output] | None:
        call = self._one_call(model, spikes, model) if isinstance(spikes, SpikeBatch) else None
        if call is None or not call.learns_alone():
            return None
        return call.learn(spikes, loss, model.depth, first_sample)

    def _one_call(self, model: Model, spikes: SpikeBatch, *watched: nn.Module) -> OneCall | None:
        """None where that cannot be, or where a layer or one of the modules `watched` has a hook."""
        layers = model.layers._modules
        if not self.fits_one_call or any_hooks((*watched, *layers.values())):
            return None
        self.one_call = OneCall.of(self.one_call, model.network, layers, spikes, self.parts)
        return self.one_call

    # ---- networks that run continuously ------------------------------------------------------------------------

    def still(self, model: Model) -> Model:
        return live.still(model)

    def live_call(self, still: Any) -> Chain | None:
        fits = not any_hooks([still]) and Chain.fits(still.network, dict(still.layers))
        return Chain(still.network, dict(still.layers)) if fits else None
