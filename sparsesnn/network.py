"""The description of a network: populations, and the connections between them."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from types import MappingProxyType
from typing import Any

from sparsesnn.arguments import named
from sparsesnn.connection import Connection as Connection
from sparsesnn.delays import Delays
from sparsesnn.errors import DescriptionError, SparseSnnError
from sparsesnn.layers import LI, MODELS, Input, Neuron, is_readout
from sparsesnn.layers.catalog import (
    AnyPopulation,
    by_letter,
    check_model,
    described,
    find_model,
    firing_models,
    model_letters,
    population_from_dict,
    population_to_dict,
)
from sparsesnn.layers.catalog import (
    neuron_options as all_neuron_options,
)
from sparsesnn.map_text import parse_maps
from sparsesnn.options import options_of, plain
from sparsesnn.subclasses import as_described
from sparsesnn.synapses import Dense, OneToOne, Series, Shape, Sparse, Synapses
from sparsesnn.wording import a_type, unknown

#: limits of a network, because its checks compare all pairs
MAX_POPULATIONS, MAX_CONNECTIONS = 4096, 16_384


@named
@dataclass(frozen=True)
class Network:
    """Populations in execution order and the connections between them.

    Args:
        populations: name → a model of `sparsesnn.layers`, each after the populations it reads from.
        connections: in any order; a population's currents are summed in this order, its recurrent connections last.
            `recurrent=True` on a population adds `Connection(name, name, delay=1)`.

    The network gives convolutions and pooling the shape of their sender, and a population without n its size. A connection
    from an `Input(currents=True)` has no weights; its currents come first in the sum.

    Errors: `DescriptionError` for unknown names, cycles, readouts that are read from, populations without input, sizes that
    do not fit.
    """

    populations: Mapping[str, AnyPopulation]
    connections: tuple[Connection, ...]

    def __post_init__(self) -> None:
        _check_types(self.populations, self.connections)
        for what, n, most in (
            ("populations", len(self.populations), MAX_POPULATIONS),
            ("connections", len(self.connections), MAX_CONNECTIONS),
        ):
            if n > most:
                raise DescriptionError(f"the network has {n:,} {what}; allowed: {most:,}; describe a smaller network")
        parts = _with_loops(*_as_described(self.populations, self.connections))
        populations, connections = _with_sizes(*_with_currents(*parts))
        object.__setattr__(self, "populations", MappingProxyType(populations))
        object.__setattr__(self, "connections", _named(connections))
        order = {name: position for position, name in enumerate(self.populations)}
        for name, population in self.populations.items():
            if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
                raise DescriptionError(
                    f"population name {name!r}: use letters, digits and _, not starting with a digit"
                )
            if not isinstance(population, (Input, Neuron)):
                raise DescriptionError(f"population {name!r} is {population!r}; allowed: {', '.join(MODELS)}")
        for c in self.connections:
            for end in (c.pre, c.post):
                if end not in order:
                    raise DescriptionError(f"connection {c.pre}->{c.post}: {unknown('population', end, order)}")
        if not self.inputs:
            first = next(iter(self.populations), "")
            raise DescriptionError(f"the network has no Input population; put Input(n) before {first!r}")
        for name, population in self.populations.items():
            if not isinstance(population, Input) and all(c.is_recurrent for c in self.incoming(name)):
                raise DescriptionError(f"population {name!r} has no incoming connection; connect it or remove it")
        for c in self.connections:
            if isinstance(self.populations[c.post], Input):
                raise DescriptionError(f"connection {c.pre}->{c.post}: an Input receives nothing")
            if is_readout(self.populations[c.pre]):
                advice = "remove this connection" if c.is_recurrent else "put it last, and use LIF here"
                raise DescriptionError(
                    f"connection {c.pre}->{c.post}: {c.pre!r} is an LI readout, which never fires; {advice}"
                )
            if order[c.pre] > order[c.post]:
                raise DescriptionError(
                    f"connection {c.pre}->{c.post} points backwards; list {c.pre!r} before {c.post!r} "
                    "(only a population itself may feed back, by recurrent=True)"
                )
            where, n_pre = f"connection {c.pre}->{c.post}", self.populations[c.pre].n
            _check_currents(where, c, self.populations[c.pre])
            c.synapses.check(where, n_pre, self.populations[c.post].n)
            if c.axonal:
                c.axonal.check(where, n_pre)
        names = [c.name for c in self.connections]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise DescriptionError(
                f"connection {twice[0]}: exists twice; connections between the same two populations need different "
                "delays: merge them, or change a delay"
            )

    def __reduce__(self) -> tuple[type[Network], tuple[dict[str, AnyPopulation], tuple[Connection, ...]]]:
        """For `copy.deepcopy` and pickling of a model: a view of a table cannot be copied."""
        return Network, (dict(self.populations), self.connections)

    @classmethod
    def chain(cls, *parts: AnyPopulation | Synapses, delay: int = 0) -> Network:
        """A feed-forward chain: `Network.chain(Input(700), LIF(256, recurrent=True), LI(20))`.

        Kinds of synapses stand between the populations that they connect, several in the order in which they act; without
        any, synapses are dense: `Network.chain(Input(shape=(34, 34, 2)), Conv2d(8, 3), LIF(), Pool("sum", 2), Conv2d(16, 3),
        LIF(), LI(10))`. Names are `input`, `hidden` (or `hidden1`, `hidden2`, …) and `output`.
        """
        populations: list[AnyPopulation] = []
        between: list[list[Synapses]] = []
        for part in parts:
            if not isinstance(part, Synapses):
                populations.append(part)
                between.append([])
            elif not populations:
                raise DescriptionError(f"a chain begins with {part}; put an Input before it")
            else:
                between[-1].append(part)
        if between and between[-1]:
            raise DescriptionError(f"a chain ends with {between[-1][-1]}; put a population after it")
        if populations and not isinstance(populations[0], Input):
            raise DescriptionError(f"a chain begins with {type(populations[0]).__name__}; put an Input before it")
        if len(populations) < 2:
            raise DescriptionError("a chain needs an Input and at least one more population")
        n_hidden = len(populations) - 2
        hidden = ["hidden"] if n_hidden == 1 else [f"hidden{k + 1}" for k in range(n_hidden)]
        names = ["input", *hidden, "output"]
        kinds = [Dense() if not some else some[0] if len(some) == 1 else Series(tuple(some)) for some in between]
        return cls(
            {name: populations[k] for k, name in enumerate(names)},
            tuple(Connection(names[k], names[k + 1], delay, kinds[k]) for k in range(len(names) - 1)),
        )

    # ---- queries -----------------------------------------------------------------------------------------------

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the `Input` populations."""
        return tuple(name for name, p in self.populations.items() if isinstance(p, Input))

    @property
    def output(self) -> str:
        """Name of the last population, the one that is decoded."""
        return list(self.populations)[-1]

    def incoming(self, name: str) -> tuple[Connection, ...]:
        """Connections into a population, in the order of their description: the order in which currents are summed."""
        return tuple(c for c in self.connections if c.post == name)

    def senders(self, name: str) -> tuple[Connection, ...]:
        """Connections into a population from other populations."""
        return tuple(c for c in self.incoming(name) if not c.is_recurrent)

    def is_recurrent(self, name: str) -> bool:
        """Whether a population has a connection to itself."""
        return any(c.is_recurrent for c in self.incoming(name))

    def receivers(self) -> dict[str, Neuron]:
        """All populations except the input, by name, which become a model's layers.

        Errors: `DescriptionError` unless there is one `Input`.
        """
        if len(self.inputs) != 1:
            raise DescriptionError(f"Model takes one Input population; the network has {list(self.inputs)}")
        return {name: p for name, p in self.populations.items() if not isinstance(p, Input)}

    def shape(self, name: str) -> Shape | None:
        """Height, width and channels of a population; None if it has no shape."""
        shapes = (c.synapses.post_shape for c in self.incoming(name))
        return getattr(self.populations[name], "shape", None) or next((s for s in shapes if s is not None), None)

    @property
    def is_matrices(self) -> bool:
        """Whether all synapses are matrices when expanded: no convolution, no pooling."""
        return all(c.synapses.is_matrix for c in self.connections)

    def history(self, name: str) -> int:
        """Number of past steps of a population's lists still needed later: the longest delay of a reader."""
        return max((c.reach for c in self.connections if c.pre == name), default=0)

    def delays_text(self, name: str, form: str = "{}") -> str:
        """A text such as `delays input 0, 6, 12`; "" if no connection into the population has an unusual delay."""
        delays_of: dict[str, list[str]] = {}
        for c in self.incoming(name):
            delays_of.setdefault(c.pre, []).append(str(c.delay))
        least = {c.pre: [str(c.least_delay)] for c in self.incoming(name)}
        shown = [f"{pre} {', '.join(delays)}" for pre, delays in delays_of.items() if delays != least[pre]]
        return form.format(f"delays {'; '.join(shown)}") if shown else ""

    def n_weights(self) -> int:
        """Number of weights of all connections, including recurrent ones."""
        return sum(self.n_weights_of(c) for c in self.connections)

    def n_weights_of(self, connection: Connection) -> int:
        """Number of weights of one connection."""
        return connection.synapses.n_weights(*self.ends(connection))

    def ends(self, connection: Connection) -> tuple[int, int]:
        """Numbers of neurons before and after a connection."""
        return self.populations[connection.pre].n, self.populations[connection.post].n

    def with_population(self, name: str, **changes: Any) -> Network:
        """The same network with some arguments of one population changed."""
        if name not in self.populations:
            raise DescriptionError(unknown("population", name, self.populations))
        known = [f.name for f in fields(self.populations[name])]
        if others := set(changes) - set(known):
            raise DescriptionError(f"{name}: {unknown('argument', min(others), known)}")
        connections = self.connections
        if "recurrent" in changes:
            connections = tuple(c for c in connections if not (c.is_recurrent and c.pre == name))
        return Network({**self.populations, name: replace(self.populations[name], **changes)}, connections)

    def with_delay(self, delay: int, *, from_inputs: bool = True) -> Network:
        """Returns the network with one delay for all connections between populations; recurrent connections keep theirs.

        Args:
            delay: in steps, 0 to 2^20.
            from_inputs: whether connections from the input get the delay too.
        """
        kept = () if from_inputs else self.inputs
        changed = (c if c.is_recurrent or c.pre in kept else replace(c, delay=delay) for c in self.connections)
        return Network(self.populations, tuple(changed))

    def with_delays(self, delays: Sequence[int], *, recurrent: bool = False) -> Network:
        """The same network with a copy of each connection into a hidden population for each delay, in this order.

        Each copy has its own weights: the receiver gets its sender's spikes at several times. Connections into the output
        population do not change.

        Args:
            delays: in steps, all different; 1 or more if `recurrent`.
            recurrent: copy recurrent connections instead of those between populations.
        """

        def copies(c: Connection) -> tuple[Connection, ...]:
            if c.post == self.output or c.is_recurrent != recurrent:
                return (c,)
            return tuple(replace(c, delay=delay) for delay in delays)

        return Network(self.populations, tuple(copy for c in self.connections for copy in copies(c)))

    def with_axonal_delays(self, longest: int, *, learn: bool = False, recurrent: bool = False) -> Network:
        """The same network with an axonal delay for each sender of a connection into a hidden population.

        Args:
            longest: see `sparsesnn.delays.Delays`.
            learn: train them.
            recurrent: for recurrent connections instead of those between populations.
        """

        def changed(k: int, c: Connection) -> Connection:
            kept = c.post == self.output or c.is_recurrent != recurrent
            return c if kept else replace(c, axonal=Delays(longest, learn=learn, seed=k))

        return Network(self.populations, tuple(changed(k, c) for k, c in enumerate(self.connections)))

    # ---- JSON --------------------------------------------------------------------------------------------------

    def to_dict(self) -> dict[str, Any]:
        """Plain data: numbers, strings, lists and dicts; -inf is the string "-inf"."""

        return {
            "populations": {name: population_to_dict(p) for name, p in self.populations.items()},
            "connections": [c.to_dict() for c in self.connections],
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Network:
        """The inverse of `to_dict`; missing arguments take their defaults, unknown ones are an error."""
        if set(data) != {"populations", "connections"}:
            raise DescriptionError(f"network: keys are {sorted(data)}; give 'populations' and 'connections'")
        for key, kind in (("populations", Mapping), ("connections", Sequence)):
            if not isinstance(data[key], kind) or isinstance(data[key], str):
                raise DescriptionError(
                    f"network: {key!r} is {data[key]!r}; give {'an object' if kind is Mapping else 'a list'}"
                )
        try:
            populations = {name: population_from_dict(name, fields_) for name, fields_ in data["populations"].items()}
            return cls(populations, tuple(Connection.from_dict(c) for c in data["connections"]))
        except SparseSnnError:
            raise
        except (TypeError, ValueError, LookupError, ArithmeticError, AttributeError, RecursionError) as error:
            raise DescriptionError(
                f"network: a value has the wrong type or size ({type(error).__name__}: {str(error)[:200]}); write it as "
                "Network.to_dict does"
            ) from error

    def to_json(self, indent: int | None = 2) -> str:
        """Returns the description as JSON text."""
        return json.dumps(self.to_dict(), indent=indent, allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> Network:
        """Reads a description that `to_json` wrote. Errors: `DescriptionError` for any other text."""
        try:
            data = json.loads(text)
        except (ValueError, RecursionError) as error:  # ValueError: also numbers with thousands of digits
            where = f"line {error.lineno}, column {error.colno}" if isinstance(error, json.JSONDecodeError) else error
            raise DescriptionError(
                f"network: {text[:40]!r} is not JSON ({where}); give what Network.to_json() writes"
            ) from None
        if not isinstance(data, dict):
            raise DescriptionError(f"network: the JSON is {a_type(data)}; give an object")
        return cls.from_dict(data)


def _check_types(populations: Any, connections: Any) -> None:
    if not isinstance(populations, Mapping):
        hint = f"; for a text use sparsesnn.parse_net({populations!r})" if isinstance(populations, str) else ""
        raise DescriptionError(
            f"Network: populations is {a_type(populations)}; give a dict, such as {{'input': Input(70), 'output': LI(10)}}{hint}"
        )
    if not isinstance(connections, Collection) or isinstance(connections, (str, Mapping)):
        raise DescriptionError(
            f"Network: connections is {a_type(connections)}; give a list, such as [Connection('input', 'output')]"
        )
    for k, c in enumerate(connections):
        if not isinstance(c, Connection):
            ends = c.split("->") if isinstance(c, str) else c
            is_pair = isinstance(ends, (tuple, list)) and len(ends) == 2
            pre, post = ends if is_pair else ("input", "output")
            raise DescriptionError(f"Network: connections[{k}] is {c!r}; give Connection({pre!r}, {post!r})")


def _as_described(
    populations: Mapping[str, AnyPopulation], connections: Sequence[Connection]
) -> tuple[dict[str, AnyPopulation], tuple[Connection, ...]]:
    """The description without subclasses, because engines ignore their methods and parameters."""
    parts = {
        name: described(p, f"population {name!r}") if isinstance(p, (Input, Neuron)) else p
        for name, p in populations.items()
    }
    return parts, tuple(as_described(c, [Connection], f"connection {c.pre}->{c.post}", "class") for c in connections)


def _with_loops(
    populations: dict[str, AnyPopulation], connections: tuple[Connection, ...]
) -> tuple[dict[str, AnyPopulation], tuple[Connection, ...]]:
    """Turns `recurrent=True` into a connection; recurrent connections come last, in the order of their populations."""
    wants = [name for name, p in populations.items() if getattr(p, "recurrent", False)]
    loops = [*(c for c in connections if c.is_recurrent), *(Connection(name, name) for name in wants)]
    loops.sort(key=lambda c: list(populations).index(c.pre) if c.pre in populations else -1)
    parts = {name: replace(p, recurrent=False) if name in wants else p for name, p in populations.items()}  # type: ignore[arg-type]
    return parts, (*(c for c in connections if not c.is_recurrent), *loops)


def gives_currents(network: Network) -> bool:
    """Whether the input of a network with one `Input` is currents."""
    source = network.populations[network.inputs[0]]
    return isinstance(source, Input) and source.currents


def _with_currents(
    populations: dict[str, AnyPopulation], connections: tuple[Connection, ...]
) -> tuple[dict[str, AnyPopulation], tuple[Connection, ...]]:
    """Gives connections from inputs of currents their kind of synapses; in the order of sums they come first."""
    given = {name for name, p in populations.items() if isinstance(p, Input) and p.currents}
    if not given:
        return populations, connections
    driven = [replace(c, synapses=OneToOne()) if c.synapses == Dense() else c for c in connections if c.pre in given]
    return populations, (*driven, *(c for c in connections if c.pre not in given))


def _check_currents(where: str, c: Connection, pre: AnyPopulation) -> None:
    """`DescriptionError` unless exactly the connections from inputs of currents are one to one, without delays."""
    is_given = isinstance(pre, Input) and pre.currents
    if is_given != c.synapses.gives_currents:
        raise DescriptionError(
            f"{where}: its synapses are {c.synapses}, "
            + (
                "but the sender gives currents, one for each neuron; leave the synapses out, or put a torch.nn.Module in front"
                if is_given
                else "which only an Input(currents=True) has; use Dense, or Sparse"
            )
        )
    if is_given and (c.delay or c.axonal):
        raise DescriptionError(
            f"{where}: has a delay of {c.reach}, but currents arrive in their own step; allowed: 0; shift the currents instead"
        )


def _named(connections: tuple[Connection, ...]) -> tuple[Connection, ...]:
    """The connections, with delays in the names if several connect the same populations."""
    pairs = Counter((c.pre, c.post) for c in connections)
    return tuple(c.named(c.name_with_delay if pairs[c.pre, c.post] > 1 else f"{c.pre}->{c.post}") for c in connections)


def _with_sizes(
    populations: dict[str, AnyPopulation], connections: tuple[Connection, ...]
) -> tuple[dict[str, AnyPopulation], tuple[Connection, ...]]:
    """Sets the sender's shape for synapses that read maps, and the size of populations without n from their synapses."""
    shapes = {name: getattr(p, "shape", None) for name, p in populations.items()}
    bound = list(connections)
    for name, p in populations.items():
        for k, c in enumerate(connections):
            if c.post != name or c.pre not in populations:
                continue
            try:
                synapses = c.synapses.bound(shapes[c.pre], getattr(populations[c.pre], "channels_first", False))
            except DescriptionError as error:
                raise DescriptionError(f"connection {c.pre}->{c.post}: {error}") from None
            made = synapses.post_shape
            if made is not None and shapes[name] not in (None, made):
                raise DescriptionError(
                    f"connection {c.pre}->{c.post}: makes maps of {made}, another connection into {name!r} maps of "
                    f"{shapes[name]}; make them equal"
                )
            shapes[name] = shapes[name] or made
            bound[k] = replace(c, synapses=synapses)
        shape, n = shapes[name], getattr(p, "n", 0)
        if n is None and shape is None:
            raise DescriptionError(f"population {name!r}: n is None, and no convolution or pooling sets it; give n")
        if shape is not None and n != math.prod(shape):
            if n is not None:
                raise DescriptionError(
                    f"population {name!r}: n is {n}, but its synapses make maps of {shape}, {math.prod(shape):,} neurons; "
                    "leave n out"
                )
            populations[name] = replace(p, n=math.prod(shape))
    return populations, tuple(bound)


def parse_net(
    text: str,
    *,
    neuron: str | type[Neuron] | None = None,
    neuron_options: Mapping[str, Any] | None = None,
    **defaults: Any,
) -> Network:
    """Makes a `Network` from a text: `"700-256r-20"` is Input(700), LIF(256, recurrent=True), LI(20).

    Sizes are joined by `-`. Letters may follow a size: `r` makes the population recurrent; `c`, `a` and `o` choose CubaLIF,
    AdLIF and Resonator instead of LIF; `p0.1` draws its input connections as `Sparse(density=0.1)`, each with its own seed.
    The last size is an LI readout; with `s` it fires, for rate codes, and every one of its neurons receives a gradient.
    `"currents-1000-10"` has currents as input, one for each of the 1000 neurons: `Input(1000, currents=True)`.
    `"2x34x34:3C8s2-3C16s2-10"` has convolutions: see `sparsesnn.map_text`.

    Args:
        text: the sizes.
        defaults: arguments of every hidden population and of a spiking readout; a model ignores those that it lacks, such as
            `alpha` for LIF. `beta`, if it is one number, is also that of an LI readout.
        neuron: the class, or its name, of hidden populations without a letter; None: LIF.
        neuron_options: its arguments; None: those of `defaults` that it has.

    Errors: `DescriptionError` for an invalid text, and unknown arguments.
    """
    if not isinstance(text, str):
        raise DescriptionError(f"net: is {a_type(text)}, {text!r}; give a text, such as '700-256r-20'")
    models, own = by_letter(), None
    if neuron is not None:
        own = _named_model(neuron) if isinstance(neuron, str) else neuron
        if own is MODELS["Input"] or (isinstance(own, type) and issubclass(own, Neuron) and not own.fires):
            raise DescriptionError(
                f"net.neuron is {own.__name__!r}, which cannot be a hidden population; allowed: {', '.join(firing_models())}, or your "
                "own class that fires (--neuron FILE.py:CLASS)"
            )
        check_model(own, f"net.neuron is {neuron!r}, which")
    known = {*all_neuron_options(), *(() if own is None else (f.name for f in fields(own)))}
    if others := set(defaults) - known:
        raise DescriptionError(f"net: {unknown('argument', min(others), sorted(known))}")

    def neurons(n: int | None, flags: str, last: bool) -> AnyPopulation:
        if last and not flags:
            return LI(n, beta=_readout_beta(defaults))  # type: ignore[arg-type]
        if last and "s" not in flags:
            raise DescriptionError(f"net {text!r}: the readout allows only the letter 's' (spiking)")
        if "s" in flags and not last:
            raise DescriptionError(f"net {text!r}: 's' is allowed only for the last size, the readout")
        spiking = {"grad_threshold": -math.inf, "capacity": None, "activity": "natural"} if last else {}
        letters = set(flags) & set(models)
        if len(letters) > 1:
            raise DescriptionError(
                f"net {text!r}: {n}{flags} has {len(letters)} neuron models; {model_letters()}: give one"
            )
        model = models["".join(letters)]
        arguments = {k: v for k, v in defaults.items() if k in options_of(model)}
        if own is not None and not letters and not last:
            model = own
            has = {f.name for f in fields(own)}
            arguments = (
                {k: v for k, v in defaults.items() if k in has} if neuron_options is None else dict(neuron_options)
            )
            if others := set(arguments) - has:
                raise DescriptionError(f"net: {own.__name__}: {unknown('argument', min(others), sorted(has))}")
        return model(n, **{**arguments, "recurrent": "r" in flags, **spiking})  # type: ignore[arg-type]

    if ":" in text:
        return Network.chain(*parse_maps(text, neurons, "".join(models)))
    pattern = f"([1-9][0-9]{{0,18}})([rs{''.join(models)}]*)(?:p([0-9.]+))?"
    words = text.strip().split("-")
    given = words[0] == "currents" and len(words) > 1
    if given:
        size = re.match("[0-9]*", words[1])
        words[0] = size[0] if size else ""
    matches = [re.fullmatch(pattern, word) for word in words]
    if len(matches) < 2 or None in matches:
        wrong = [word for word in words if not re.fullmatch(pattern, word)]
        problem = f"{wrong[0]!r} is not a size" if wrong else "has one size; a network has two or more"
        letters = f"rs{''.join(models)}"
        strange = re.match(f"[1-9][0-9]*[{letters}]*(?![p{letters}])([a-z])", wrong[0]) if wrong else None
        if "auto" in words:
            raise DescriptionError(
                f"net {text!r}: 'auto' is a size of the data, which only a run knows; write a number"
            )
        if strange is not None:
            raise DescriptionError(
                f"net {text!r}: {wrong[0]!r} has the unknown letter {strange[1]!r}; allowed: r (recurrent), {model_letters()}, s (a spiking "
                "readout), p0.1 (sparse synapses of that density)"
            )
        raise DescriptionError(
            f"net {text!r}: {problem}; write sizes joined by '-', such as 700-256r-20 (r: recurrent, {model_letters()}, "
            "p0.1: sparse synapses of that density; currents-1000-10: currents as input), or convolutions, such as "
            "2x34x34:3C8s2-3C16s2-10"
        )
    sizes = [(int(m[1]), m[2]) for m in matches if m]
    if sizes[0][1]:
        raise DescriptionError(f"net {text!r}: the first size is the input and allows no letter")
    hidden = [neurons(n, flags, last=False) for n, flags in sizes[1:-1]]
    network = Network.chain(Input(sizes[0][0], currents=given), *hidden, neurons(*sizes[-1], last=True))
    densities = {name: m[3] for name, m in zip(network.populations, matches) if m and m[3]}  # noqa: B905  Python 3.8
    if network.inputs[0] in densities:
        raise DescriptionError(
            f"net {text!r}: the first size is the input, which has no synapses; move p to a later size"
        )
    return replace(network, connections=tuple(_thinned(network, densities)))


def _named_model(name: str) -> type[Neuron]:
    try:
        return find_model(name)
    except DescriptionError as error:
        raise type(error)(f"net: neuron {error}") from None


def _thinned(network: Network, densities: Mapping[str, str]) -> Iterator[Connection]:
    for k, c in enumerate(network.connections):
        if c.post not in densities:
            yield c
            continue
        try:
            density = float(densities[c.post])
        except ValueError:
            raise DescriptionError(f"net: p{densities[c.post]} is not a density; give one such as p0.1") from None
        yield replace(c, synapses=Sparse(density, seed=k))


def _readout_beta(defaults: Mapping[str, Any]) -> float:
    beta = plain(defaults.get("beta", 0.95))
    return float(beta) if isinstance(beta, (int, float)) else 0.95
