"""A single layer, or a single transform, as a chain of one: for `Layer`, and if hooks watch the layers of a network."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor

from sparsesnn.currents import Currents
from sparsesnn.engines.cpu import transforms
from sparsesnn.engines.cpu.chain import Chain, learns_input, learns_values
from sparsesnn.engines.cpu.chain_pass import lists_for
from sparsesnn.engines.cpu.lists import as_float32, as_read
from sparsesnn.errors import ShapeError
from sparsesnn.output import LayerState
from sparsesnn.spikes import SpikeBatch

if TYPE_CHECKING:
    from sparsesnn.engines.dropout import Heard


def run_layer(
    layer: Any,
    sources: Sequence[SpikeBatch | Currents],
    state: LayerState | None,
    training_step: int = 0,
    first_sample: int = 0,
    *,
    potentials: bool = False,
) -> tuple[SpikeBatch | Tensor, LayerState, Tensor | None]:
    """One layer over one chunk of a sequence; see `sparsesnn.engines.module.Layer.forward`.

    Args:
        training_step: see `sparsesnn.rotation.list_seed`.
        first_sample: over ranks, samples of the batch that other replicas run before these.
        potentials: those of neurons that fire are the third result, else None.
    """
    reach = [c.reach if state is not None else 0 for c in layer.senders]
    lists = [
        as_read(x, [c]) if layer.given is None else x.expanded()
        for x, c in zip(sources, layer.senders, strict=True)
        if isinstance(x, SpikeBatch)
    ]
    names = [str(k) for k in range(len(sources))]
    given = {name: x for name, x in zip(names, sources, strict=True) if isinstance(x, Currents)}
    n_steps, n_samples = sources[0].n_steps - reach[0], sources[0].n_samples
    for source, c, more in zip(sources, layer.senders, reach, strict=True):
        if (source.n_steps - more, source.n_samples, source.n_neurons) != (n_steps, n_samples, c.n_pre):
            raise ShapeError(
                f"input has T={source.n_steps - more}, B={source.n_samples}, N={source.n_neurons}; "
                f"this layer needs T={n_steps}, B={n_samples}, N={c.n_pre}"
            )
    inputs = {name: c.n_pre for name, c in zip(names, layer.senders, strict=True) if not c.synapses.gives_currents}
    chain = Chain(
        {"": layer},
        {"": names},
        inputs,
        learns=list(map(learns_values, lists)),
        given={name: learns_input(x) for name, x in given.items()},
        continues=state is not None,
        shards=layer.part.alone(layer) if layer.part else None,
    )
    past = {} if state is None else {"": state}
    currents = {name: as_float32(x.values) for name, x in given.items()}
    this = chain.forward(
        [lists_for(x) for x in lists],
        n_steps,
        n_samples,
        {"": training_step},
        given=currents,
        past=past,
        first_sample=first_sample,
        potentials=[""] if potentials else [],
    )
    outputs, found = this.outputs([x.values for x in lists], currents)
    out = outputs[""]
    return out, this.state("", out if isinstance(out, SpikeBatch) else None), found


def thinned(spikes: SpikeBatch, population: int, heard: Heard, shards: Any = None) -> SpikeBatch:
    """The same spikes without those that dropout leaves out; their gradient flows back to those that stay."""
    n = spikes.n_neurons
    chain = Chain({}, {}, {"": n}, learns=[learns_values(spikes)], shards=shards)
    chain.add(transforms.thin(n, population), "", 0)
    this = chain.forward([lists_for(spikes)], spikes.n_steps, spikes.n_samples, {}, heard=heard)
    return this.lists_at(0, this.node_outputs([spikes.values])[0][0])


def apply(transform: transforms.Made, spikes: SpikeBatch) -> SpikeBatch:
    """The lists that a transform makes, without gradient."""
    chain = Chain({}, {}, {"": spikes.n_neurons}, learns=[False])
    chain.add(transform, "", 0)
    return chain.forward([lists_for(spikes)], spikes.n_steps, spikes.n_samples, {}).lists_at(0)
