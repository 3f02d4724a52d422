"""From a network and a target to a plan."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from sparsesnn import wording
from sparsesnn.errors import ConfigError
from sparsesnn.in_lists import check_in_lists
from sparsesnn.layers import Input, is_readout
from sparsesnn.layers.catalog import AnyPopulation
from sparsesnn.network import Network
from sparsesnn.options import plain
from sparsesnn.partition.cpu.slabs import place_slabs
from sparsesnn.partition.ipu.layout import LAYOUTS
from sparsesnn.partition.ipu.placement import place_shards
from sparsesnn.partition.ipu.strategies import STRATEGIES
from sparsesnn.partition.ipu.work import ASSUMPTIONS, CycleAssumptions
from sparsesnn.partition.lengths import NEAR_PER_SPIKE
from sparsesnn.partition.pieces import MAX_SAMPLES, MAX_STEPS, ConnectionPlan, PopulationPlan
from sparsesnn.partition.plan import Plan
from sparsesnn.partition.target import MAX_DEVICES, Target
from sparsesnn.synapses.base import check_matrices
from sparsesnn.synapses.one_to_one import check_no_currents

#: the share of a population's neurons that fits in a list: the "5 % maximum activity" of Finkbeiner et al. 2024
MAX_ACTIVITY = 0.05
#: a list's room above the mean, in standard deviations, if its capacity comes from measured activity
N_DEVIATIONS = 4.0
#: the smallest capacity of a list, if the population has as many neurons
MIN_CAPACITY = 16


def make_plan(
    network: Network,
    n_samples: int,
    n_steps: int,
    target: Target,
    *,
    activity: float | Mapping[str, float] = 0.02,
    max_activity: float | None = MAX_ACTIVITY,
    capacity: Mapping[str, int] | None = None,
    optimizer: str = "adam",
    weight_dtype: str = "float32",
    strategy: str = "search",
    layout: str = "auto",
    replicas: int = 1,
    regularizes: bool = False,
    keep_every: int = 1,
    assumptions: CycleAssumptions = ASSUMPTIONS,
) -> Plan:
    """Places every neuron of a network on a tile.

    Args:
        n_samples, n_steps: B, of one replica, and T.
        activity: expected spikes per neuron and step, for all populations or by name.
        max_activity: capacity of lists, as a share of the population; 1: no list can overflow; None: from `activity`:
            the mean number of listed ids plus four standard deviations. A population's own `capacity` takes precedence;
            if every neuron is listed (`grad_threshold=-inf`), the capacity is the population's size.
        capacity: by population; takes precedence over all of these.
        optimizer: "adam", "sgd" or "none".
        weight_dtype: "float32" or "half".
        strategy: sizes of shards, see `sparsesnn.partition.ipu.strategies`: "even", "bytes", "work" or "search". IPUs only.
        layout: their places, see `sparsesnn.partition.ipu.layout`: "contiguous", "split", "shared", or "auto": the fastest
            by prediction. IPUs only.
        replicas: copies of the plan, each on its own set of the target's devices and with `n_samples` samples.
        regularizes: whether activity is regularized.
        keep_every: potentials are kept for segments of this many steps, one at a time, and for the ends of the others,
            which run again: about the square root of the steps needs least memory. 1: all are kept. IPUs only.
        assumptions: of the prediction by which sizes and layout are chosen.

    Errors: `PlanError` if it does not fit on the target, with changes that help; `ConfigError` for invalid values.
    """
    check_no_currents(network, "a plan")
    n_samples, n_steps, replicas, keep_every = (plain(n) for n in (n_samples, n_steps, replicas, keep_every))
    if target.kind != "cpu":
        check_matrices(network.connections, f"a plan for '{target.name}'")
    else:
        check_in_lists(network.connections, "a plan")
    skeleton = _skeleton(network, n_samples, n_steps, target, activity, max_activity, capacity, optimizer, weight_dtype)
    if (
        type(replicas) is not int
        or not 1 <= replicas <= MAX_DEVICES
        or (replicas > 1 and target.name.startswith("cpu"))
    ):
        raise ConfigError(
            f"plan: replicas is {replicas!r} on '{target.name}'; allowed: whole numbers from 1 to {MAX_DEVICES:,}, and above 1 only for a "
            "target of several machines: ipu-mk2, ipu-bow or mpi"
        )
    if (
        type(keep_every) is not int
        or not (keep_every == 1 or 1 < keep_every < n_steps)
        or (keep_every > 1 and (target.kind != "ipu" or optimizer == "none"))
    ):
        raise ConfigError(
            f"plan: keep_every is {keep_every!r}; allowed: 1, or 2 to {n_steps - 1} if a network trains on IPUs"
        )
    skeleton = replace(skeleton, replicas=replicas, regularizes=regularizes, keep_every=keep_every)
    if target.kind == "cpu":
        return place_slabs(skeleton)
    for what, chosen, allowed in (
        ("strategy", strategy, STRATEGIES),
        ("layout", layout, ("auto", *LAYOUTS)),
    ):
        if chosen not in allowed:
            raise ConfigError(f"plan: {what} is {chosen!r}; allowed: {', '.join(allowed)}")
    return place_shards(skeleton, strategy, layout, assumptions)


def _skeleton(
    network: Network,
    n_samples: int,
    n_steps: int,
    target: Target,
    activity: float | Mapping[str, float],
    max_activity: float | None,
    capacity: Mapping[str, int] | None,
    optimizer: str,
    weight_dtype: str,
) -> Plan:
    """The plan without shards: everything that does not depend on placement, checked."""
    for what, value, most in (("batch", n_samples, MAX_SAMPLES), ("steps", n_steps, MAX_STEPS)):
        if type(value) is not int or not 1 <= value <= most:
            raise ConfigError(f"plan: {what} is {value!r}; allowed: whole numbers from 1 to {most:,}")
    for what, chosen, allowed in (
        ("optimizer", optimizer, ("adam", "sgd", "none")),
        ("weight_dtype", weight_dtype, ("float32", "half")),
    ):
        if chosen not in allowed:
            raise ConfigError(f"plan: {what} is {chosen!r}; allowed: {', '.join(allowed)}")
    if max_activity is not None and not 0 < max_activity <= 1:
        raise ConfigError(f"plan: max_activity is {max_activity!r}; allowed: above 0, at most 1; None: from activity")
    expected = _by_population(network, activity)
    capacities = {name: plain(most) for name, most in (capacity or {}).items()}
    populations = {}
    for name, p in network.populations.items():
        most = capacities.pop(name, None)
        if most is not None and not 1 <= most <= p.n:
            raise ConfigError(f"plan: capacity of {name} is {most!r}; allowed: 1 to {p.n} (its neurons)")
        populations[name] = PopulationPlan(p.n, _capacity(p, most, max_activity, expected[name]), ())
    if capacities:
        raise ConfigError(f"plan: capacity: {wording.unknown('population', min(capacities), populations)}")
    connections = [ConnectionPlan(c.pre, c.post, c.delay) for c in network.connections]
    return Plan(
        network, target, n_samples, n_steps, optimizer, weight_dtype, expected, populations, tuple(connections), ""
    )


def _by_population(network: Network, activity: float | Mapping[str, float]) -> dict[str, float]:
    default = 0.02
    if not isinstance(activity, Mapping):
        default, activity = activity, {}
    if unknown := set(activity) - set(network.populations):
        raise ConfigError(f"plan: activity: {wording.unknown('population', min(unknown), network.populations)}")
    rates = {name: float(activity.get(name, default)) for name in network.populations}
    for name, value in rates.items():
        if not 0 <= value <= 1:
            raise ConfigError(f"plan: activity of {name} is {value!r}; allowed: 0 to 1 spikes per neuron and step")
    return rates


def _capacity(population: AnyPopulation, given: int | None, max_activity: float | None, activity: float) -> int:
    if is_readout(population):
        return 0
    n = population.n
    if given is not None:
        return given
    own = getattr(population, "capacity", None)
    if own is not None:
        return int(own)
    lists_all = getattr(population, "listed_above", 0.0) == -math.inf
    if lists_all:
        return n
    if max_activity is None:
        listed = activity * n * (1 if isinstance(population, Input) else 1 + NEAR_PER_SPIKE)
        wanted = listed + N_DEVIATIONS * math.sqrt(listed)  # for independent neurons with rare spikes: variance = mean
    else:
        wanted = max_activity * n
    return min(n, max(MIN_CAPACITY, math.ceil(wanted)))
