"""The input of the graph builder (host/src/ipu/spec.h): a plan with every argument resolved to numbers, and its checks."""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any

from sparsesnn.errors import ConfigError, DescriptionError
from sparsesnn.ipu.instance import Instance
from sparsesnn.ipu.neurons import NO_TRAINING, check_trained, neuron_entries, training_fields
from sparsesnn.ipu.settings import OPTIMIZERS, Optimizer, Regularizer
from sparsesnn.layers import Input
from sparsesnn.layers.declaration import fires, kept_states
from sparsesnn.layers.shapes import shape_of
from sparsesnn.network import Network
from sparsesnn.partition.ipu.vertices import loops_rounds
from sparsesnn.partition.plan import Plan
from sparsesnn.surrogate import KINDS
from sparsesnn.synapses.dense import check_dense

if TYPE_CHECKING:
    from sparsesnn.engines.module import Model

_DECODINGS = {"max": 0, "mean": 1, "sum": 2, "last": 3, "count": 4}


def check(plan: Plan, model: Model, optimizer: Optimizer, decoding: str) -> None:
    """Refuses plans and models for which the program has no codelet."""
    if plan.target.kind != "ipu":
        raise ConfigError(f"the plan is for '{plan.target.name}'; make one for ipu-mk2 or ipu-bow")
    if plan.network != model.network:
        raise DescriptionError("the plan was made for another network than the model's; make it again")
    if ("adam" if optimizer.kind == "adamw" else optimizer.kind) != plan.optimizer:
        raise ConfigError(
            f"the plan was made for optimizer {plan.optimizer!r}, but the program's is {optimizer.kind!r}"
        )
    check_network(plan.network, decoding)


def check_network(network: Network, decoding: str) -> None:
    """Raises `DescriptionError`, by name, for parts for which the program has no codelet."""
    if decoding not in _DECODINGS:
        raise DescriptionError(f"decoding is {decoding!r}; allowed: {', '.join(_DECODINGS)}")
    pairs = [(c.pre, c.post) for c in network.connections]
    if several := [c.name for c in network.connections if pairs.count((c.pre, c.post)) > 1]:
        raise DescriptionError(
            f"{', '.join(several)}: join the same populations; the IPU program has one connection per pair: use cpu"
        )
    check_dense(network.connections, "the IPU program")
    if late := [c.name for c in network.connections if c.is_recurrent and c.delay > 1]:
        raise DescriptionError(f"{', '.join(late)}: the IPU program has recurrent connections of delay 1: use cpu")
    for name, p in network.populations.items():
        if isinstance(p, Input):
            continue
        if not p.linear:
            raise DescriptionError(
                f"{name}: {type(p).__name__} is not linear between spikes; the IPU program runs models with arrays: use dense"
            )
        check_trained(p)
        if not fires(p) and name != network.output:
            raise DescriptionError(
                f"{name}: is a second readout; the IPU program has only one, {network.output!r} at the end; "
                "remove it, or use backend 'cpu'"
            )


def make_spec(
    native: ModuleType,
    plan: Plan,
    model: Model,
    optimizer: Optimizer,
    decoding: str,
    n_classes: int,
    regularizer: Regularizer,
    instance: Instance,
) -> Any:
    names = list(plan.populations)
    return native.Spec(
        devices=plan.target.devices,
        tiles=plan.target.stride,
        n_samples=plan.n_samples,
        n_steps=plan.n_steps,
        optimizer=OPTIMIZERS[optimizer.kind],
        momentum=optimizer.keeps_first_moment,
        decoding=_DECODINGS[decoding],
        n_classes=n_classes,
        loops_rounds=loops_rounds(plan),
        half_weights=plan.weight_dtype == "half",
        replicas=plan.replicas,
        first_replica=instance.first,
        own_replicas=instance.own,
        keep_every=plan.keep_every if plan.keep_every > 1 else 0,
        regularizer=(
            regularizer.lower,
            regularizer.upper,
            regularizer.strength_lower,
            regularizer.strength_upper,
        ),
        populations=[_population(native, plan, model, name) for name in names],
        connections=[
            native.Connection(
                pre=names.index(c.pre),
                post=names.index(c.post),
                delay=c.delay,
                reducers=[(r.tile, r.first_shard, r.n_shards, r.first_sample, r.n_samples) for r in c.reducers],
            )
            for c in plan.connections
        ],
    )


def _population(native: ModuleType, plan: Plan, model: Model, name: str) -> Any:
    p, placed = plan.network.populations[name], plan.populations[name]
    fields: dict[str, Any] = {
        "name": name,
        "n": placed.n,
        "capacity": placed.capacity,
        "shards": [(s.tile, s.first, s.n) for s in placed.shards],
        "collectors": [(c.tile, c.first, c.n) for c in placed.collectors],
        "detach_reset": getattr(p, "detach_reset", True),
        "fixed": getattr(p, "activity", "natural") == "fixed",
        "bias": getattr(p, "bias", False),
    }
    if isinstance(p, Input):
        return native.Population(
            **fields,
            **NO_TRAINING,
            shape="",
            fires=False,
            surrogate=0,
            slope=1.0,
            kept=0,
            operations=(0, 0),
            entries=[],
        )
    layer: Any = model.layers[name]
    surrogate = getattr(p, "surrogate", None)
    kept = kept_states(p) if plan.trains else ()
    return native.Population(
        **fields,
        **(training_fields(layer) if plan.trains else NO_TRAINING),
        shape=shape_of(p).name,
        fires=fires(p),
        surrogate=KINDS.index(surrogate.kind) if surrogate else 0,
        slope=surrogate.slope if surrogate else 1.0,
        kept=_bits([x in kept for x in (*p.states, "i")]),
        operations=p.operations,
        entries=neuron_entries(layer).ravel().tolist(),
    )


def _bits(flags: Sequence[bool]) -> int:
    return sum(1 << k for k, flag in enumerate(flags) if flag)
