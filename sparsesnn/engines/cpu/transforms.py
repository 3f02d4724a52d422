"""Transforms of lists on the engine `cpu`: a function a kind, which makes what a chain applies between its layers.

Each has a class in C++, `host/src/transforms/<kind>.cpp`, with an adjoint on the values of the entries.

| transform | lists | setting of a pass |
|---|---|---|
| `dropout` | without the spikes that are left out | which stay |
| `resume` | with the steps before the call in front | the lists of these steps |
| `delay` | entries moved to later steps, by neuron | |
| `pool` | of maps, an entry for each window | |
"""

from __future__ import annotations

from torch import Tensor

from sparsesnn import _core
from sparsesnn.engines.cpu.lists import engine_lists, spikes_of, to_array
from sparsesnn.spikes import SpikeBatch
from sparsesnn.synapses import Pool


def dropout(n: int) -> _core.Transform:
    """Of n neurons; see `sparsesnn.engines.dropout`."""
    return _core.Dropout(n)


def resume(n: int) -> _core.Transform:
    """Of n neurons, in a call that continues a sequence."""
    return _core.Resume(n)


def delay(delays: Tensor, *, between: bool, first_step: int = 0) -> _core.Transform:
    """Axonal delays.

    Args:
        delays: float32[M], in steps, at least 0; the transform's parameter.
        between: they may lie between steps: entries then have values.
        first_step: the result has the steps from here on; those before belong to an earlier call.
    """
    return _core.Delay(to_array(delays, "axonal delays"), between, first_step)


def pool(synapses: Pool) -> _core.Transform:
    """A pool of maps. Sums and averages are graded; a maximum of spikes is a spike."""
    return _core.Pool(**synapses.list_arguments())


def apply(transform: _core.Transform, spikes: SpikeBatch) -> SpikeBatch:
    """The lists that a transform makes, without gradient."""
    chain = _core.Chain([False])
    chain.add_transform("", transform, 0)
    run = chain.forward([engine_lists(spikes)], spikes.n_steps, spikes.n_samples, [None]).runs[0]
    return spikes_of(run, spikes.n_samples, transform.n_made)
