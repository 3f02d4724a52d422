"""A population's parameters as a module: the base of the layers of every engine, with the same names.

Also works in Python 3.8 and torch 2.0, for `sparsesnn.poptorch`.
"""

from __future__ import annotations

import contextlib
import copy
import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Mapping, NamedTuple, Optional, Sequence, Union  # noqa: UP035

import numpy as np
import torch
from torch import Tensor, nn

from sparsesnn.bounds import bounded
from sparsesnn.delays import Delays
from sparsesnn.errors import DescriptionError
from sparsesnn.layers.catalog import described
from sparsesnn.layers.declaration import fires
from sparsesnn.network import Connection, Network
from sparsesnn.options import plain
from sparsesnn.rotation import population_seed
from sparsesnn.rounding import BITS, Integers, Receivers, integers, rounded
from sparsesnn.synapses import Dense, OneToOne, Synapses, described_synapses
from sparsesnn.synapses.base import Columns

#: the buffer in which a layer with a capacity counts training's forward passes
STEP_COUNTER = "training_steps"
#: suffix of the names of axonal delays, after the connection's name
DELAYS = ":delays"


def is_step_counter(name: str) -> bool:
    """Whether the full name of a parameter or buffer is that of a step counter."""
    return name.rpartition(".")[2] == STEP_COUNTER


class Incoming(NamedTuple):
    """A connection from its receiver's view.

    Args:
        name: of the weight.
        n_pre: number of the sender's neurons.
        delay: steps between a spike and its arrival.
        is_recurrent: whether the receiver is the sender.
        synapses: their kind.
        n_copies: number of connections from this sender, including this one; they differ in delay.
        axonal: delays of the sending neurons, a parameter or buffer whose name ends in `DELAYS`.
    """

    name: str
    n_pre: int
    delay: int = 0
    is_recurrent: bool = False
    synapses: Synapses = Dense()
    n_copies: int = 1
    axonal: Optional[Delays] = None  # noqa: UP045  evaluated under Python 3.8

    @property
    def reach(self) -> int:
        """Number of steps until the last spikes of a step arrive."""
        return self.delay + (self.axonal.longest if self.axonal else 0)


#: number of neurons of the source or of each source (None: currents), or the connections themselves
Sources = Union[int, Sequence[Optional[int]], Sequence[Incoming], None]  # noqa: UP007, UP045  evaluated under Python 3.8


def incoming_of(network: Network, name: str) -> tuple[Incoming, ...]:
    """The connections into a population of a network, in the order in which its currents are summed."""

    connections = network.incoming(name)

    def seen(c: Connection) -> Incoming:
        n_copies = sum(other.pre == c.pre for other in connections)
        return Incoming(c.name, network.populations[c.pre].n, c.delay, c.is_recurrent, c.synapses, n_copies, c.axonal)

    return tuple(seen(c) for c in connections)


def incoming(population: Any, sources: Sources, delays: Sequence[int] | None) -> tuple[Incoming, ...]:
    """The same for a single layer: its sources are called 0, 1, …, the layer itself `self`; one may be None: currents.

    Errors: `DescriptionError` for sources without neurons, and delays that are out of range or not one per source.
    """
    sources = sources if isinstance(sources, (tuple, list)) else plain(sources)
    several = tuple(sources) if isinstance(sources, (tuple, list)) else (sources,)
    if all(isinstance(source, Incoming) for source in several):
        return several
    when = (0,) * len(several) if delays is None else tuple(delays)
    if len(when) != len(several):
        raise DescriptionError(
            f"Layer: delays has {len(when)} numbers; n_pre has {len(several)} sources; give one for each"
        )
    connections: list[Incoming] = []
    for k, (given, delay) in enumerate(zip(several, when)):  # noqa: B905  Python 3.8 knows no strict
        if given is None:
            if delay:
                raise DescriptionError(
                    f"Layer: the delay of its currents is {delay!r}; allowed: 0; shift the currents instead"
                )
            connections.append(Incoming(f"{k}->self", population.n, 0, False, OneToOne()))
            continue
        n_pre = plain(given)
        if type(n_pre) is not int or n_pre < 1:
            raise DescriptionError(
                f"Layer: n_pre is {n_pre!r}; allowed: 1 or more neurons for each source, or None for currents"
            )
        connections.append(Incoming(f"{k}->self", n_pre, Connection(str(k), "self", delay).delay))
    loop = [Incoming("self->self", population.n, 1, True)] if getattr(population, "recurrent", False) else []
    return (*connections, *loop)


class PopulationModule(nn.Module):
    """One population and its incoming connections; subclasses run it.

    Parameters, in this order: the weights of recurrent connections, each under the connection's name; `bias` [n]; decays
    and thresholds ([] or [n]; buffers if they are not trained); the other weights. With a capacity also a buffer
    `training_steps` int64[], the number of training's forward passes so far.

    `rotation_seed` and `training_steps` decide which candidates a full list keeps, see `sparsesnn.rotation`.
    """

    bias: nn.Parameter | None
    training_steps: Tensor | None
    #: type in which weights are read; "int8" and "int4" are rounded, see `sparsesnn.rounding`
    weight_dtype: str = "float32"

    def __init__(
        self,
        population: Any,
        incoming: Sequence[Incoming],
        uniform: Callable[[Incoming], Tensor],
        neurons: tuple[int, int] | None = None,
    ) -> None:
        """`uniform`: draws the initial weight of a connection; `neurons`: range of the neurons in this process; None: all."""
        super().__init__()
        population = described(population, "Layer: population")
        if population.n is None:
            raise DescriptionError(f"{type(population).__name__}: n is None, which only a network can set; give n")
        self.population = population
        self.neurons = neurons or (0, population.n)
        own = slice(*self.neurons)
        self._columns: dict[str, Columns | None] = {}
        self._places: dict[str, Tensor] = {}
        self._orders: dict[str, tuple[Tensor, Tensor]] = {}
        self.wiring: Any = None  # for the CPU engine, see sparsesnn.engines.cpu.wiring.Wiring
        self.snapshot: Any = None  # for a `LiveModel`, see sparsesnn.engines.cpu.wiring.Snapshot
        self.tensors_read: Any = None  # for ranks, see sparsesnn.engines.ranks.runner.RanksRunner.layers_run
        self.part: Any = None  # for a layer shared by ranks, see sparsesnn.engines.ranks.layer.Part
        self.incoming = tuple(
            c._replace(synapses=described_synapses(c.synapses, f"connection {c.name}: synapses")) for c in incoming
        )
        #: connections from other populations
        self.senders = tuple(c for c in self.incoming if not c.is_recurrent)
        #: connections from the population to itself
        self.loops = tuple(c for c in self.incoming if c.is_recurrent)
        #: the connection that gives currents, if there is one; it comes first in a sum
        given = [c for c in self.senders if c.synapses.gives_currents]
        if len(given) > 1 or (given and given[0] is not self.senders[0]):
            raise DescriptionError(
                f"{type(population).__name__}: {len(given)} of its sources give currents; allowed: one, the first; add up the currents of "
                "several, and put them first"
            )
        self.given: Incoming | None = given[0] if given else None
        self.n_pre = tuple(c.n_pre for c in self.senders)
        self.delays = tuple(c.delay for c in self.senders)
        self.loop_delays = tuple(c.delay for c in self.loops)
        #: number of steps before a sequence whose spikes loop back into it
        self.loop_reach = max((c.reach for c in self.loops), default=0)
        self.rotation_seed = population_seed(0, 0)
        counts = getattr(population, "capacity", None) is not None
        self.register_buffer(STEP_COUNTER, torch.zeros((), dtype=torch.int64, device="cpu") if counts else None)
        weights = {c.name: uniform(c) for c in self.incoming}
        for c in self.incoming:
            if c.is_recurrent:
                self._register(c, weights[c.name])
        self.bias = (
            nn.Parameter(torch.zeros(population.n, dtype=torch.float32, device="cpu")[own]) if population.bias else None
        )
        numbers = {parameter.name: getattr(population, parameter.name) for parameter in population.parameters}
        if fires(population):
            numbers["grad_threshold"] = population.listed_above
        for name, number in numbers.items():
            if hasattr(self, name):
                raise DescriptionError(
                    f"{type(population).__name__}: a parameter is called {name!r}, as something else of a layer is; choose another name"
                )
            value = torch.tensor(number, dtype=torch.float32, device="cpu")
            value = value[own].clone() if value.ndim else value
            if getattr(population, f"learn_{name}", False):
                self.register_parameter(name, nn.Parameter(value))
            else:
                self.register_buffer(name, value)
        for c in self.incoming:
            if not c.is_recurrent:
                self._register(c, weights[c.name])
        for c in self.incoming:
            if c.axonal:
                low, high = (delays_edge(n, c.n_pre, population.n) for n in self.neurons)
                delays = torch.from_numpy(c.axonal.first(c.n_pre)[low:high])
                if c.axonal.learn:
                    self.register_parameter(f"{c.name}{DELAYS}", nn.Parameter(delays))
                else:
                    self.register_buffer(f"{c.name}{DELAYS}", delays)

    def _register(self, c: Incoming, weight: Tensor) -> None:
        """Registers a weight as a parameter; for synapses without weights, as a buffer that is not saved."""
        if self.has_weights(c):
            self.register_parameter(c.name, nn.Parameter(weight))
        else:
            self.register_buffer(c.name, weight, persistent=False)

    def has_weights(self, c: Incoming) -> bool:
        """Whether the kind of a connection's synapses has weights, on any rank."""
        return math.prod(c.synapses.weight_shape(c.n_pre, self.population.n)) > 0

    def __getstate__(self) -> dict[str, Any]:
        """For copies and pickles: a copy makes its own wiring, and keeps the values of tensors computed from others."""
        state = {**self.__dict__, "wiring": None, "snapshot": None}
        return {k: x.detach() if isinstance(x, Tensor) and not x.is_leaf else x for k, x in state.items()}

    # a parametrized layer has a class generated by PyTorch, whose own copy methods do not handle the wiring
    def __copy__(self) -> PopulationModule:
        copied = self.__new__(type(self))
        copied.__dict__.update(PopulationModule.__getstate__(self))
        return copied

    def __deepcopy__(self, memo: dict[int, Any]) -> PopulationModule:
        copied = memo[id(self)] = self.__new__(type(self))
        copied.__dict__.update(copy.deepcopy(PopulationModule.__getstate__(self), memo))
        return copied

    # ---- Tensors as a forward pass reads them -----------------------------------------------------------------------

    def tensor(self, name: str) -> Any:
        """The current value of a parameter or buffer for a forward pass, even if PyTorch computes it from others: in a parametrization,
        or in a hook before the pass, as `torch.nn.utils.prune` does; None if the layer has no such name.

        All code must read a layer through this; outside a pass, within `settled`.
        """
        if (own := self._own(name)) is not None:
            return own
        hook = self._hook_of(name)
        if hook is None:
            return getattr(self, name) if self._has(name) else None
        if hasattr(hook, "apply_mask"):
            return hook.apply_mask(self)
        # only the pass itself continues the power iteration
        iterates = hasattr(hook, "n_power_iterations")
        return hook.compute_weight(self, False) if iterates else hook.compute_weight(self)

    def _hook_of(self, name: str) -> Any:
        """PyTorch's hook that computes a tensor before each pass; None if there is none."""
        return next((hook for hook in self._forward_pre_hooks.values() if computed_by(hook) == name), None)

    @property
    def tensor_names(self) -> tuple[str, ...]:
        """Names of the parameters and buffers, including those computed from others."""
        delays = (f"{c.name}{DELAYS}" for c in self.incoming if c.axonal)
        names = (*(c.name for c in self.incoming), "bias", *(q.name for q in self.population.parameters))
        return tuple(name for name in (*names, "grad_threshold", *delays, STEP_COUNTER) if self._has(name))

    def _has(self, name: str) -> bool:
        return self._own(name) is not None or name in self._parametrized or isinstance(vars(self).get(name), Tensor)

    def _own(self, name: str) -> Tensor | None:
        return self._parameters.get(name, self._buffers.get(name))

    @property
    def _parametrized(self) -> Any:
        return self._modules.get("parametrizations") or {}

    @property
    def computed(self) -> tuple[str, ...]:
        """Names of the tensors computed from others: pruned, parametrized, or set by a hook."""
        return tuple(name for name in self.tensor_names if self._own(name) is None)

    @contextlib.contextmanager
    def settled(self, where: str = "Layer") -> Iterator[None]:
        """In this context `tensor` returns the values of the next pass in evaluation, and reading changes nothing.

        Errors: `DescriptionError`, which begins with `where`, for a tensor that an unknown hook may set.
        """
        for name in self.computed:
            hooks = [h for h in self._forward_pre_hooks.values() if not computed_by(h)]
            if name not in self._parametrized and self._hook_of(name) is None and hooks:
                raise DescriptionError(
                    f"{where}: {name} is not a parameter, and the forward hook {hooks[0]!r} may change it before each pass, so it cannot be "
                    "read now; compute it by torch.nn.utils.parametrize, or make it a parameter"
                )
        below = [m for m in self.modules() if m is not self and m.training]
        for m in below:
            m.training = False
        try:
            yield
        finally:
            for m in below:
                m.training = True

    def check_plain(self, who: str) -> None:
        """`DescriptionError` if a tensor is computed from others, because `who` changes parameters in place, or adds to their gradients."""
        if self.computed:
            raise DescriptionError(
                f"{who}: {self.computed[0]} is computed from other tensors (pruned or parametrized); allowed: a parameter; call it earlier, or "
                "make the change permanent: torch.nn.utils.prune.remove or torch.nn.utils.parametrize.remove_parametrizations"
            )

    @property
    def like(self) -> Tensor:
        """A tensor with the dtype and device of the weights; its values do not matter."""
        own = self._own(self.incoming[0].name)
        tensor = vars(self).get(self.incoming[0].name) if own is None else own
        return next(x for x in self.parameters() if x.is_floating_point()) if tensor is None else tensor

    def _load_from_state_dict(self, state_dict: dict[str, Tensor], prefix: str, *args: Any) -> None:
        """Accepts files from before layers counted steps, as if training began now."""
        if self.training_steps is not None:
            state_dict.setdefault(prefix + STEP_COUNTER, torch.zeros_like(self.training_steps))
        super()._load_from_state_dict(state_dict, prefix, *args)

    @property
    def weights(self) -> tuple[nn.Parameter, ...]:
        """One for each of `incoming`, empty if its synapses have none; dense ones are [n_pre, n], a row per sender."""
        return tuple(self.tensor(c.name) for c in self.incoming)

    def columns(self, c: Incoming) -> Columns | None:
        """The existing synapses of a connection, see `Synapses.columns`; computed once."""
        if c.name not in self._columns:
            self._columns[c.name] = c.synapses.columns(c.n_pre, self.population.n, *self.neurons)
        return self._columns[c.name]

    def places(self, c: Incoming) -> Tensor:
        """int64[weights]: places of the weights of a connection with `columns` in its matrix."""
        device = self.like.device
        found = self._places.get(c.name)
        if found is None or found.device != device:
            columns = self.columns(c)
            assert columns is not None
            offsets, senders = columns
            n = self.neurons[1] - self.neurons[0]
            receivers = np.repeat(np.arange(n), np.diff(offsets))
            with torch.inference_mode(False):  # cached, also for training
                found = torch.from_numpy(senders.astype(np.int64) * n + receivers).to(device)
            self._places[c.name] = found
        return found

    def weight(self, c: Incoming) -> Tensor:
        """The weight of a connection in effect: rounded if `weight_dtype` names integers; its gradient is the parameter's."""
        weight: Tensor = self.tensor(c.name)
        if self.weight_dtype not in BITS or not weight.numel():
            return weight
        return rounded(weight, self.weight_dtype, self.receivers(c))

    def integers(self, c: Incoming, kind: str) -> Integers:
        """The weight of a connection as integers and scales."""
        return integers(self.tensor(c.name), kind, self.receivers(c))

    def receivers(self, c: Incoming) -> Receivers | None:
        """The receiving neuron of each weight of a connection with `columns`; None: the last axis of the weight counts them."""
        n = self.neurons[1] - self.neurons[0]
        return None if self.columns(c) is None else Receivers(n, self.places(c) % n)

    def matrix(self, c: Incoming) -> Tensor:
        """The weight of a connection as a matrix [n_pre, n], a row per sending neuron; 0 for missing synapses."""
        weight = self.weight(c)
        return weight if self.columns(c) is None else self._spread(c, weight)

    def mask(self, c: Incoming) -> Tensor:
        """1 for each synapse of a connection with `columns`, else 0, [n_pre, n]."""
        return self._spread(c, torch.ones_like(self.tensor(c.name)))

    def _spread(self, c: Incoming, weight: Tensor) -> Tensor:
        n = self.neurons[1] - self.neurons[0]
        places = self.places(c)
        if c.name not in self._orders or self._orders[c.name][0].device != places.device:
            with torch.inference_mode(False):
                ascending, order = torch.sort(places)
            self._orders[c.name] = ascending, order
        matrix: Tensor = _Spread.apply(weight, *self._orders[c.name], (c.n_pre, n))
        return matrix

    def per_receiver(self, c: Incoming, numbers: np.ndarray) -> np.ndarray:
        """float64[n]: numbers in the shape of a connection's weight, summed for each receiving neuron."""
        columns = self.columns(c)
        if columns is None:
            numbers = numbers.reshape(math.prod(numbers.shape[:-1]), numbers.shape[-1])
            sums = np.zeros(numbers.shape[c.synapses.receiver_axis])
            for row in range(0, len(numbers), 1024):
                sums += np.add.reduce(numbers[row : row + 1024].astype(np.float64), axis=0)
            return sums
        counts = np.diff(columns[0])
        return np.bincount(np.repeat(np.arange(len(counts)), counts), numbers, minlength=len(counts))

    def squares_per_receiver(self, name: str, numbers: np.ndarray) -> np.ndarray:
        """float64[n]: squares of float32 numbers in the shape of a weight, or one per neuron, summed for each neuron."""
        from sparsesnn import _core

        for c in self.incoming:
            if c.name == name and self.columns(c) is not None:
                return self.per_receiver(c, numbers.astype(np.float64) ** 2)
        matrix = np.ascontiguousarray(numbers).reshape(math.prod(numbers.shape[:-1]), numbers.shape[-1])
        return np.asarray(_core.column_squares(matrix))

    @property
    def sender_weights(self) -> tuple[nn.Parameter, ...]:
        """The weights of `senders`."""
        return tuple(self.tensor(c.name) for c in self.senders)

    @property
    def sender_matrices(self) -> tuple[Tensor, ...]:
        """The weights of `senders` as matrices; those of other kinds unchanged."""
        return tuple(self.matrix(c) for c in self.senders)

    @property
    def loop_matrices(self) -> tuple[Tensor, ...]:
        """The weights of `loops` as matrices [n, n]; those of other kinds unchanged."""
        return tuple(self.matrix(c) for c in self.loops)

    def between_steps(self, c: Incoming) -> bool:
        """Whether a connection's axonal delays may currently be fractional: in training, if they are trained."""
        return self.training and c.axonal is not None and c.axonal.learn

    def axonal_delays(self, c: Incoming) -> Tensor:
        """The axonal delays of a connection that has them, in steps; whole ones, except for `between_steps`."""
        assert c.axonal
        given: Tensor = self.tensor(f"{c.name}{DELAYS}")
        if self.between_steps(c):
            delays = bounded(given, 0.0, float(c.axonal.longest))
        else:
            delays = given.detach().round().clamp(0, c.axonal.longest)
        return delays if self.part is None else self.part.whole_delays(delays, c.n_pre)

    @property
    def loop(self) -> Incoming | None:
        """The recurrent connection, if there is one; for callers that support only one of delay 1.

        Errors: `DescriptionError` for several recurrent connections, or one whose delay is not 1.
        """
        if self.loops and (self.loop_delays != (1,) or self.loops[0].axonal):
            axonal = " and axonal delays" if any(c.axonal for c in self.loops) else ""
            raise DescriptionError(
                f"{', '.join(c.name for c in self.loops)}: recurrent connections with delays {list(self.loop_delays)}{axonal}; allowed "
                "here: one, with delay 1 and no axonal delays"
            )
        return self.loops[0] if self.loops else None

    @property
    def loop_weight(self) -> nn.Parameter | None:
        """The weight of `loop`."""
        return None if self.loop is None else self.tensor(self.loop.name)

    @property
    def loop_matrix(self) -> Tensor | None:
        """The same as a matrix [n, n]."""
        return None if self.loop is None else self.matrix(self.loop)

    def whole_neurons(self, own: Tensor) -> Tensor:
        """Joins numbers of this process's neurons [..., n] with other ranks' to [..., N]; all ranks call it together."""
        whole: Tensor = own if self.part is None else self.part.whole_neurons(own)
        return whole


def computed_by(hook: Any) -> str:
    """The name of the tensor that a PyTorch hook before a pass computes from others, see `PopulationModule.tensor`; "" for other
    hooks. `torch.nn.utils.prune` has `apply_mask`, the older weight_norm and spectral_norm have `compute_weight`."""
    if hasattr(hook, "apply_mask"):
        return str(getattr(hook, "_tensor_name", ""))
    return str(getattr(hook, "name", "")) if hasattr(hook, "compute_weight") else ""


class _Spread(torch.autograd.Function):
    """A matrix of zeros with some numbers: number `order[k]` goes to `places[k]`. Places ascend, so that the matrix, which
    is larger than a cache, is written in order."""

    @staticmethod
    def forward(ctx: Any, numbers: Tensor, places: Tensor, order: Tensor, shape: tuple[int, int]) -> Tensor:
        ctx.save_for_backward(places, order)
        if not _in_numpy(numbers):
            return numbers.new_zeros(shape).put_(places, numbers[order])
        from sparsesnn import _core

        matrix = np.asarray(_core.empty_matrix(*shape))  # reuses the last step's memory
        matrix[:] = 0
        matrix.reshape(-1)[places.numpy()] = numbers.detach().numpy()[order.numpy()]
        return torch.from_numpy(matrix)

    @staticmethod
    def backward(ctx: Any, d_matrix: Tensor) -> tuple[Tensor, None, None, None]:
        places, order = ctx.saved_tensors
        if torch.is_grad_enabled():  # a second derivative is possible
            picked = d_matrix.reshape(-1)[places]
            return torch.zeros_like(picked).scatter(0, order, picked), None, None, None
        d_numbers = d_matrix.new_empty(len(order))
        if _in_numpy(d_matrix):
            d_numbers.numpy()[order.numpy()] = d_matrix.contiguous().numpy().reshape(-1)[places.numpy()]
        else:
            d_numbers[order] = d_matrix.take(places)
        return d_numbers, None, None, None


def _in_numpy(x: Tensor) -> bool:
    """Whether NumPy's indexing can be used, which is several times as fast as PyTorch's."""
    return x.device.type == "cpu" and x.dtype == torch.float32


def uniform(
    generator: torch.Generator | None,
    n: int,
    begin: int = 0,
    end: int | None = None,
    room: Tensor | None = None,
) -> Callable[[Incoming], Tensor]:
    """Draws initial weights: U(±1/√fan-in), with the fan-in of all copies of a connection together.

    Args:
        n: neurons of the population; all are drawn, and neurons `begin` to `end` - 1 are kept.
        room: buffer for drawing; if it is smaller than a weight, some rows at a time; None: all at once.
    """

    def draw(c: Incoming) -> Tensor:
        shape = list(c.synapses.weight_shape(c.n_pre, n))
        axis = range(len(shape))[c.synapses.receiver_axis]
        low, high = c.synapses.cut(c.n_pre, n, begin, n if end is None else end)
        length, rows = math.prod(shape[axis:]), math.prod(shape[:axis])
        low, high = (edge * length // shape[axis] if shape[axis] else 0 for edge in (low, high))
        # independent of PyTorch's defaults: engines compute in float32, and a seed's draws are the same everywhere
        given: Any = {"dtype": torch.float32, "device": "cpu"}
        out = torch.empty(rows, high - low, **given)
        if room is None or len(room) < length:
            buffer = torch.empty(rows * length if room is None else length, **given)
        else:
            buffer = room
        step = max(1, len(buffer) // max(1, length))
        for row in range(0, rows, step):
            height = min(step, rows - row)
            drawn = buffer[: height * length].uniform_(generator=generator)
            out[row : row + step] = drawn.view(height, length)[:, low:high]
        shape[axis] = (high - low) * shape[axis] // length if length else 0
        fan_in = c.synapses.fan_in(c.n_pre, n) * c.n_copies
        return out.mul_(2).sub_(1).mul_(fan_in**-0.5).view(shape)

    return draw


def stable_names(network: Network) -> dict[str, str]:
    """The original names of weights, before they were named after their connections, by their current names.

    `layers.<population>.weights.<k>` for the k-th connection from another population, `layers.<population>.recurrent_weight`.
    Digests of weights use these names, so that they survive a change of names; files with these names are still read.
    """
    names: dict[str, str] = {}
    for name in network.receivers():
        counts: Mapping[bool, list[Connection]] = {False: [], True: []}
        for c in network.incoming(name):
            counts[c.is_recurrent].append(c)
        for k, c in enumerate(counts[False]):
            names[f"layers.{name}.{c.name}"] = f"layers.{name}.weights.{k}"
        for k, c in enumerate(counts[True]):
            names[f"layers.{name}.{c.name}"] = f"layers.{name}.recurrent_weight" + (f".{k}" if k else "")
    return names


def former_names(network: Network) -> dict[str, str]:
    """Current names of weights by former ones: those of `stable_names`, and those with a delay that is now omitted."""
    names = {before: name for name, before in stable_names(network).items()}
    for c in network.connections:
        if c.name != c.name_with_delay:
            for kind in ("", DELAYS):
                names[f"layers.{c.post}.{c.name_with_delay}{kind}"] = f"layers.{c.post}.{c.name}{kind}"
    return names


class Cut(NamedTuple):
    """How shards cut a tensor: along `axis`, at `edge(n)` for a cut before neuron n of its population."""

    axis: int
    edge: Callable[[int], int]


#: for a tensor with one number per neuron
NEURONS = Cut(-1, int)


def delays_edge(n: int, n_pre: int, n_post: int) -> int:
    """Number of a connection's axonal delays that belong to the shards of the receivers before n: proportional to n."""
    return n_pre * n // n_post


def cuts(network: Network) -> dict[str, Cut]:
    """The cuts of all weights and axonal delays, under their names and those of `former_names`."""
    result: dict[str, Cut] = {}
    for c in network.connections:
        n_pre, n_post = network.populations[c.pre].n, network.populations[c.post].n

        def edge(n: int, c: Connection = c, n_pre: int = n_pre, n_post: int = n_post) -> int:
            return c.synapses.cut(n_pre, n_post, 0, n)[1]

        result[f"layers.{c.post}.{c.name}"] = Cut(c.synapses.receiver_axis, edge)
        if c.axonal:
            result[f"layers.{c.post}.{c.name}{DELAYS}"] = Cut(-1, partial(delays_edge, n_pre=n_pre, n_post=n_post))
    return {**result, **{before: result[name] for before, name in former_names(network).items() if name in result}}
