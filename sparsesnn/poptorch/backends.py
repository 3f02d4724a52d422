"""The backends of a layer: the custom op while PopTorch builds an IPU program, the CPU engine otherwise."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, List  # noqa: UP035

import torch
from torch import Tensor

from sparsesnn.errors import ConfigError
from sparsesnn.layers import is_readout
from sparsesnn.layers.declaration import kept_states, trained_entries
from sparsesnn.network import Network
from sparsesnn.poptorch import library
from sparsesnn.poptorch.description import capacity, describe
from sparsesnn.poptorch.spikes import HEAD, Spikes, fixed_lists, places
from sparsesnn.poptorch.tile_map import TileMap, from_plan, spread

Tensors = List[Tensor]  # noqa: UP006
#: domain and version of the op, by which, with its name, PopART finds it
DOMAIN, VERSION = "sparsesnn", 1


def on_ipu() -> bool:
    """Whether PopTorch is tracing the model for an IPU right now; False without PopTorch."""
    poptorch = sys.modules.get("poptorch")  # the tracing program has imported it
    return poptorch is not None and bool(poptorch.isRunningOnIpu())


# ---- the custom op -------------------------------------------------------------------------------------------------


def run_op(
    network: Network,
    source: Spikes,
    weights: Sequence[Tensor],
    biases: Sequence[Tensor],
    entries: Sequence[Tensor],
    *,
    seeds: Sequence[int],
    saves: bool,
    tiles: int,
    plan: Any = None,
) -> tuple[Tensor, dict[str, Spikes]]:
    """One call of `sparsesnn::Stack`.

    Args:
        entries: of each population with trained parameters: the entries of its neurons' arrays that depend on them, [E, N].

    Returns: the output (values [T, B, K], or potentials [T, B, N]) and the lists of each spiking population; only those of
    the last carry a gradient.
    """
    import poptorch

    n_steps, n_samples = int(source.lists.shape[0]), int(source.lists.shape[1])
    input_gradient = source.values is not None
    if plan is None:
        tile_map = spread(network, n_samples, tiles, input_gradient)
    else:
        tile_map = from_plan(plan, n_samples, n_steps)
    description = describe(
        network,
        source.capacity,
        tile_map,
        seeds=seeds,
        saves=saves,
        input_gradient=input_gradient,
        codelets=library.codelets(),
    )
    inputs = [source.lists, *([] if source.values is None else [source.values]), *weights, *biases, *entries]
    outputs = poptorch.custom_op(
        inputs,
        *("Stack", DOMAIN, VERSION),
        _examples(network, tile_map, n_steps, n_samples, saves),
        attributes={"description": description},
    )
    spikes = {}
    at = 1
    for key, p in network.populations.items():
        if key in network.inputs or is_readout(p):
            continue
        spikes[key] = Spikes(outputs[at], outputs[0] if key == network.output else None, p.n, outputs[at + 1])
        at += 2
    return outputs[0], spikes


def _examples(network: Network, tile_map: TileMap, n_steps: int, n_samples: int, saves: bool) -> Tensors:
    """Number, shape and dtype of the outputs, as the op's own `setup` determines them."""
    last = network.populations[network.output]
    firing = [p for k, p in enumerate(network.populations.values()) if k and not is_readout(p)]
    outputs = [torch.zeros(n_steps, n_samples, last.n if is_readout(last) else capacity(last), dtype=torch.float32)]
    for p in firing:
        outputs.append(torch.zeros(n_steps, n_samples, HEAD + capacity(p), dtype=torch.int32))
        outputs.append(torch.zeros(n_steps, n_samples, dtype=torch.int32))
    if saves:
        for k, p in enumerate(network.populations.values()):
            if k and (not is_readout(p) or trained_entries(p)):
                n = tile_map.n_history(k, n_steps, n_samples) * (1 + len(kept_states(p)))
                outputs.append(torch.zeros(n, dtype=torch.float32))
    return outputs


# ---- the CPU engine ------------------------------------------------------------------------------------------------


def run_engine(layer: Any, sources: list[Spikes]) -> Spikes | Tensor:
    """One layer on the CPU engine, with its `autograd.Function`; the lists keep their fixed shapes.

    Errors: `ConfigError` if this Python is too old for the engine.
    """
    if sys.version_info < (3, 10):  # noqa: UP036
        raise ConfigError(
            "sparsesnn.poptorch: on a CPU the layers run on sparsesnn's engine, which needs Python 3.10 and torch 2.6; "
            f"this is Python {sys.version.split()[0]}, where they run on IPUs only, inside poptorch.trainingModel"
        )
    from sparsesnn.engines.cpu.single import run_layer

    out, *_ = run_layer(layer, [_ragged(s) for s in sources], None)
    return out if isinstance(out, Tensor) else _fixed(out, capacity(layer.population))


def _ragged(source: Spikes) -> Any:
    """Converts the lists to the engine's `SpikeBatch`."""
    from sparsesnn.ids import id_dtype
    from sparsesnn.spikes import SpikeBatch

    n_steps, n_samples, k = source.lists.shape[0], source.lists.shape[1], source.capacity
    heads = source.lists[:, :, :HEAD].reshape(-1, HEAD)
    listed = torch.arange(k) < heads[:, 1:]
    offsets = torch.zeros(len(heads) + 1, dtype=torch.int64)
    torch.cumsum(heads[:, 1], 0, out=offsets[1:])
    batch = SpikeBatch(
        offsets=offsets,
        ids=source.lists[:, :, HEAD:].reshape(-1, k)[listed].to(id_dtype(source.n)),
        n_spikes=heads[:, 0].contiguous(),
        n_steps=n_steps,
        n_samples=n_samples,
        n_neurons=source.n,
        values=None if source.values is None else source.values.reshape(-1, k)[listed],
    )
    return batch.validate()


def _fixed(batch: Any, k: int) -> Spikes:
    shape = (batch.n_steps, batch.n_samples)
    values = torch.zeros(len(batch.n_listed), k, dtype=torch.float32).index_put(places(batch), batch.entry_values())
    dropped = torch.zeros(shape, dtype=torch.int32) if batch.dropped is None else batch.dropped.view(shape)
    return Spikes(fixed_lists(batch, k).view(*shape, -1), values.view(*shape, k), batch.n_neurons, dropped)
