"""How the engine `cpu` runs layers and networks."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor

from sparsesnn.currents import Currents
from sparsesnn.engines.cpu import live, transforms
from sparsesnn.engines.cpu.chain import Chain, learns_as_read, learns_input, network_chain
from sparsesnn.engines.cpu.chain_pass import ChainPass
from sparsesnn.engines.cpu.learn import learn, learns_alone
from sparsesnn.engines.cpu.lists import as_float32, as_read, engine_lists
from sparsesnn.engines.cpu.single import apply, run_layer, thinned
from sparsesnn.engines.hooks import any_hooks
from sparsesnn.engines.runner import NetworkRun, Runner, as_lists
from sparsesnn.errors import ShapeError
from sparsesnn.in_lists import check_in_lists
from sparsesnn.network import Network
from sparsesnn.output import LayerState, Output, last_steps
from sparsesnn.rotation import next_training_step
from sparsesnn.spikes import SpikeBatch

if TYPE_CHECKING:
    from sparsesnn.engines.dropout import Heard
    from sparsesnn.engines.module import Model


class CpuRunner(Runner):
    """Lists in, lists out: a chain of all layers, or of one if hooks watch single layers.

    Attributes:
        chains: the last chains of the network, by whether they have dropout and whether they continue a sequence; each is valid as long as the
            model's tensors stay where they are in memory.
    """

    def __init__(self, name: str, options: Any, network: Network | None = None, grid: Any = None) -> None:
        super().__init__(name, options, network, grid)
        if network is not None:
            self.check(network.connections)
        self.chains: dict[tuple[bool, bool], Chain] = {}

    def __getstate__(self) -> dict[str, Any]:
        """For copies and pickles: a copy makes its own chains."""
        return {**self.__dict__, "chains": {}}

    def check(self, connections: Iterable[Any]) -> None:
        check_in_lists(connections, f"backend {self.name!r}")

    def readable(self, spikes: SpikeBatch) -> SpikeBatch:
        return spikes

    def read(self, model: Model, spikes: Any) -> SpikeBatch | Currents:
        if isinstance(spikes, Currents):
            return spikes
        return as_read(as_lists(spikes, self.name), model.first_connections)

    def delayed(self, layer: Any, c: Any, x: Any, first_step: int) -> Any:
        steps = layer.axonal_delays(c)
        return apply(transforms.delays(steps, between=layer.between_steps(c), first_step=first_step), x)

    def thinned(self, population: str, number: int, spikes: Any, heard: Heard) -> Any:
        return thinned(spikes, number, heard)

    def run_layer(
        self,
        layer: Any,
        sources: Sequence[Any],
        state: LayerState | None,
        *,
        packed: bool,
        first_sample: int,
        potentials: bool = False,
    ) -> tuple[Any, LayerState, Tensor | None]:
        if not all(isinstance(source, (SpikeBatch, Currents)) for source in sources):
            raise ShapeError(
                f"Layer: backend {self.name!r} reads spike lists but got a tensor; use SpikeBatch.from_dense"
            )
        training_step = state.training_step if state else next_training_step(layer)
        return run_layer(layer, sources, state, training_step, first_sample, potentials=potentials)

    # ---- networks ----------------------------------------------------------------------------------------------

    def run_network(
        self,
        model: Model,
        data: Any,
        past: Mapping[str, LayerState],
        heard: Heard | None,
        first_sample: int,
        potentials: str,
    ) -> NetworkRun | None:
        layers = model.layers._modules
        if any_hooks(layers.values()):
            return None
        which = model, data, heard is not None, bool(past)
        chain = self._kept(*which) or self._chain(*which)
        given = {model.source: as_float32(data.values)} if isinstance(data, Currents) else {}
        this = self._forward(
            chain, data, given, past, heard, first_sample, potentials=[potentials] if potentials else []
        )
        outputs, found = this.outputs([] if given else [data.values], given)
        states = {name: this.state(name, x if isinstance(x, SpikeBatch) else None) for name, x in outputs.items()}
        inputs, currents = ([], {model.source: data}) if given else ([data], {})
        return NetworkRun(
            {model.source: data, **outputs}, states, lambda name: this.arrived(name, inputs, currents), found
        )

    def learn(
        self,
        model: Model,
        spikes: Any,
        loss: Callable[[Output], Tensor],
        heard: Heard | None,
        first_sample: int,
        potentials: str,
    ) -> tuple[Tensor, Output] | None:
        layers = list(model.layers._modules.values())
        if not isinstance(spikes, (SpikeBatch, Currents)) or learns_input(spikes) or any_hooks((model, *layers)):
            return None
        spikes = self.read(model, spikes)
        chain = self._kept(model, spikes, heard is not None, False)
        if chain is None:
            if not learns_as_read(layers):
                return None  # the tensors over ranks are read once, by the pass through autograd
            chain = self._chain(model, spikes, heard is not None, False)
        if not learns_alone(chain, model.network.output):
            return None
        given = {model.source: as_float32(spikes.values)} if isinstance(spikes, Currents) else {}
        this = self._forward(
            chain,
            spikes,
            given,
            {},
            heard,
            first_sample,
            hidden=True,
            potentials=[potentials] if potentials else [],
        )

        def input_state() -> dict[str, LayerState]:
            depth = model.depth
            if not depth or not isinstance(spikes, SpikeBatch):
                return {}
            return {model.source: LayerState(history=last_steps(None, spikes, depth))}

        return learn(this, loss, model.network.output, input_state)

    def _kept(self, model: Model, spikes: SpikeBatch | Currents, thins: bool, continues: bool) -> Chain | None:
        """The last chain, if it still holds."""
        chain = self.chains.get((thins, continues))
        return chain if chain is not None and chain.holds(model.layers._modules, [learns_input(spikes)]) else None

    def _chain(self, model: Model, spikes: SpikeBatch | Currents, thins: bool, continues: bool) -> Chain:
        """A chain of the network as it is now."""
        layers: Mapping[str, Any] = model.layers._modules
        chain = network_chain(
            model.network,
            layers,
            learns=learns_input(spikes),
            thins=thins,
            continues=continues,
            shards=self.parts.between(layers.values()) if self.parts else None,
        )
        self.chains[thins, continues] = chain
        return chain

    def _forward(
        self,
        chain: Chain,
        spikes: SpikeBatch | Currents,
        given: Mapping[str, Tensor],
        past: Mapping[str, LayerState],
        heard: Heard | None,
        first_sample: int,
        hidden: bool = False,
        potentials: Collection[str] = (),
    ) -> ChainPass:
        steps = {name: past[name].training_step for name in chain.layers} if past else chain.training_steps()
        with self.packed(chain.layers):
            return chain.forward(
                [engine_lists(spikes)] if isinstance(spikes, SpikeBatch) else [],
                spikes.n_steps,
                spikes.n_samples,
                steps,
                given=given,
                past=past,
                heard=heard,
                first_sample=first_sample,
                hidden=hidden,
                potentials=potentials,
            )

    def packed(self, layers: Mapping[str, Any]) -> contextlib.AbstractContextManager[None]:
        """While it holds, ranks may share weights in the order in which the engine reads them."""
        return contextlib.nullcontext()

    # ---- networks that run continuously ------------------------------------------------------------------------

    def still(self, model: Model) -> Model:
        return live.still(model)

    def live_call(self, still: Any) -> Callable[[Any, Any], Output] | None:
        return None if any_hooks([still, *still.layers.values()]) else live.LiveCall(still)
