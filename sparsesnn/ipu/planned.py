"""A program for a network: the plan of its lists, and its execution."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

from sparsesnn.errors import ConfigError
from sparsesnn.ipu.instance import Instance
from sparsesnn.ipu.program import IpuProgram
from sparsesnn.ipu.settings import Optimizer, Regularizer
from sparsesnn.partition.planner import MIN_CAPACITY, make_plan
from sparsesnn.partition.target import Target, parse_target

if TYPE_CHECKING:
    from sparsesnn.engines.module import Model


def ipu_target(text: str, place: str = "{}:") -> Target:
    """The IPUs of a text; `ConfigError` for another machine. `place`: for the message, with {} where the option's name goes."""
    target = parse_target(text)
    if target.kind != "ipu":
        raise ConfigError(f"{place.format('target')} is {text!r}; give an IPU, such as ipu-mk2:1x64 or ipu-mk2")
    return target


def slots_for(longest: int, n: int, room: float) -> int:
    """Slots of the lists of `n` neurons: `room` times the longest one seen."""
    return min(n, max(MIN_CAPACITY, math.ceil(room * longest)))


def make_program(
    model: Model,
    target: Target,
    updates: Optimizer,
    *,
    machine: str,
    batch: int,
    n_steps: int,
    capacity: Mapping[str, int],
    half_weights: bool,
    keep_every: int,
    decoding: str,
    n_classes: int,
    label_smoothing: float,
    regularizer: Regularizer,
    instance: Instance,
) -> IpuProgram:
    """Plans and builds the training of a model.

    Args:
        target: the IPUs of one replica.
        updates: the optimizer on the device.
        machine: a key of `sparsesnn.ipu.backends.MACHINES`.
        batch: samples of a step, of all replicas together.
        capacity: of lists, by population; no list of the others can overflow.
        half_weights: weights are read in 16 bits.
        keep_every: see `make_plan`; others: see `IpuProgram`.
    """
    plan = make_plan(
        model.network,
        -(-batch // instance.total),
        n_steps,
        target,
        max_activity=1.0,
        capacity=capacity,
        optimizer="sgd" if updates.kind == "sgd" else "adam",
        weight_dtype="half" if half_weights else "float32",
        replicas=instance.total,
        regularizes=regularizer.bounds,
        keep_every=keep_every,
    )
    return IpuProgram(
        plan,
        model,
        updates,
        decoding=decoding,
        n_classes=n_classes,
        backend=machine,
        label_smoothing=label_smoothing,
        regularizer=regularizer,
        instance=instance,
    )
