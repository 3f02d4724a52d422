"""A network described once: populations, and the connections between them."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from types import MappingProxyType
from typing import Any, Union

from sparsesnn.errors import DescriptionError
from sparsesnn.layers import LI, LIF, CubaLIF, Input, Population
from sparsesnn.options import plain
from sparsesnn.surrogate import Surrogate

AnyPopulation = Union[Input, LI, Population]  # noqa: UP007  evaluated under Python 3.8 by sparsesnn.poptorch
MODELS: Mapping[str, type] = MappingProxyType({"Input": Input, "LIF": LIF, "CubaLIF": CubaLIF, "LI": LI})


@dataclass(frozen=True)
class Connection:
    """All synapses from population `pre` to population `post`, delivered `delay` steps after the spike (0 or more)."""

    pre: str
    post: str
    delay: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "delay", plain(self.delay))
        for end in (self.pre, self.post):
            if not isinstance(end, str):
                raise DescriptionError(
                    f"connection {self.pre}->{self.post}: {end!r} is no name of a population; give text"
                )
        if not isinstance(self.delay, int) or isinstance(self.delay, bool) or self.delay < 0:
            raise DescriptionError(f"connection {self.pre}->{self.post}: delay is {self.delay!r}; give 0, 1, 2, …")


@dataclass(frozen=True)
class Network:
    """Populations in execution order and the connections between them.

    Args:
        populations: name → `Input`, `LIF`, `CubaLIF` or `LI`, each after the populations it reads from.
        connections: all connections but the recurrent ones, which a population declares by `recurrent=True`.

    Errors: `DescriptionError` for unknown names, cycles, readouts that are read from, populations without input.
    """

    populations: Mapping[str, AnyPopulation]
    connections: tuple[Connection, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "populations", MappingProxyType(dict(self.populations)))
        object.__setattr__(self, "connections", tuple(self.connections))
        order = {name: position for position, name in enumerate(self.populations)}
        for name, population in self.populations.items():
            if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
                raise DescriptionError(
                    f"population name {name!r}: use letters, digits and _, not starting with a digit"
                )
            if not isinstance(population, (Input, LI, Population)):
                raise DescriptionError(f"population {name!r} is {population!r}; allowed: {', '.join(MODELS)}")
            if not isinstance(population, Input) and not self.incoming(name):
                raise DescriptionError(f"population {name!r} has no incoming connection; connect it or remove it")
        if not self.inputs:
            raise DescriptionError("the network has no Input population")
        for c in self.connections:
            for end in (c.pre, c.post):
                if end not in order:
                    raise DescriptionError(
                        f"connection {c.pre}->{c.post}: no population {end!r}; there are {list(order)}"
                    )
            if isinstance(self.populations[c.post], Input):
                raise DescriptionError(f"connection {c.pre}->{c.post}: an Input receives nothing")
            if isinstance(self.populations[c.pre], LI):
                raise DescriptionError(f"connection {c.pre}->{c.post}: an LI readout does not fire")
            if c.pre == c.post:
                raise DescriptionError(f"connection {c.pre}->{c.post}: say recurrent=True on the population instead")
            if order[c.pre] > order[c.post]:
                raise DescriptionError(
                    f"connection {c.pre}->{c.post} points backwards; list {c.pre!r} before {c.post!r} "
                    "(only recurrent=True may feed back)"
                )
        pairs = [(c.pre, c.post) for c in self.connections]
        if len(set(pairs)) != len(pairs):
            raise DescriptionError("two connections join the same two populations; merge them")

    def __reduce__(self) -> tuple[type[Network], tuple[dict[str, AnyPopulation], tuple[Connection, ...]]]:
        """For `copy.deepcopy` of a model, and processes that are handed one: a view of a table cannot be copied."""
        return Network, (dict(self.populations), self.connections)

    @classmethod
    def chain(cls, *populations: AnyPopulation, delay: int = 0) -> Network:
        """A feed-forward chain: `Network.chain(Input(700), LIF(256, recurrent=True), LI(20))`.

        Names are `input`, `hidden` (or `hidden1`, `hidden2`, …) and `output`.
        """
        if len(populations) < 2:
            raise DescriptionError("a chain needs an Input and at least one more population")
        n_hidden = len(populations) - 2
        hidden = ["hidden"] if n_hidden == 1 else [f"hidden{k + 1}" for k in range(n_hidden)]
        names = ["input", *hidden, "output"]
        return cls(
            {name: populations[k] for k, name in enumerate(names)},
            tuple(Connection(names[k], names[k + 1], delay) for k in range(len(names) - 1)),
        )

    # ---- looked at ---------------------------------------------------------------------------------------------

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

    def receivers(self) -> list[tuple[str, LI | Population, list[int], list[int]]]:
        """All populations but the input, in their order: what a model makes its layers from.

        Returns: of each the name, the description, and per incoming connection the sender's neurons and the delay.

        Errors: `DescriptionError` unless there is one `Input`.
        """
        if len(self.inputs) != 1:
            raise DescriptionError(f"Model takes one Input population; the network has {list(self.inputs)}")
        found = []
        for name, population in self.populations.items():
            if not isinstance(population, Input):
                incoming = self.incoming(name)
                n_pre = [self.populations[c.pre].n for c in incoming]
                found.append((name, population, n_pre, [c.delay for c in incoming]))
        return found

    def history(self, name: str) -> int:
        """How many past steps of a population's lists are still needed later: the longest delay that reads them."""
        own = 1 if getattr(self.populations[name], "recurrent", False) else 0
        return max([own, *(c.delay for c in self.connections if c.pre == name)])

    def n_weights(self) -> int:
        """Weights of all connections, recurrent ones included."""
        size = {name: p.n for name, p in self.populations.items()}
        recurrent = sum(p.n * p.n for p in self.populations.values() if getattr(p, "recurrent", False))
        return recurrent + sum(size[c.pre] * size[c.post] for c in self.connections)

    def with_population(self, name: str, **changes: Any) -> Network:
        """The same network with some arguments of one population changed."""
        if name not in self.populations:
            raise DescriptionError(f"no population {name!r}; there are {list(self.populations)}")
        known = {f.name for f in fields(self.populations[name])}
        if unknown := set(changes) - known:
            raise DescriptionError(f"{name}: unknown arguments {sorted(unknown)}; allowed: {sorted(known)}")
        return Network({**self.populations, name: replace(self.populations[name], **changes)}, self.connections)

    # ---- JSON --------------------------------------------------------------------------------------------------

    def to_dict(self) -> dict[str, Any]:
        """Plain data: numbers, strings, lists and dicts; -inf is the string "-inf"."""
        return {
            "populations": {
                name: {"model": type(p).__name__, **{k: _plain(v) for k, v in asdict(p).items()}}
                for name, p in self.populations.items()
            },
            "connections": [asdict(c) for c in self.connections],
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
        populations = {name: _population(name, fields_) for name, fields_ in data["populations"].items()}
        try:
            connections = tuple(Connection(**c) for c in data["connections"])
        except TypeError as error:
            raise DescriptionError(f"connection: {error}; allowed: pre, post, delay") from None
        return cls(populations, connections)

    def to_json(self, indent: int | None = 2) -> str:
        return json.dumps(self.to_dict(), indent=indent, allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> Network:
        try:
            data = json.loads(text)
        except json.JSONDecodeError as error:
            raise DescriptionError(f"network: not JSON: {error}") from None
        if not isinstance(data, dict):
            raise DescriptionError(f"network: the JSON is a {type(data).__name__}; give an object")
        return cls.from_dict(data)


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_plain(v) for v in value]
    if isinstance(value, float) and math.isinf(value):
        return "inf" if value > 0 else "-inf"
    return value


def _population(name: str, data: Mapping[str, Any]) -> AnyPopulation:
    if not isinstance(data, Mapping):
        raise DescriptionError(f"population {name!r} is {data!r}; give an object with 'model' and its arguments")
    arguments = dict(data)
    model = arguments.pop("model", None)
    if not isinstance(model, str) or model not in MODELS:
        raise DescriptionError(f"population {name!r}: model is {model!r}; allowed: {', '.join(MODELS)}")
    allowed = {f.name for f in fields(MODELS[model])}
    if unknown := set(arguments) - allowed:
        raise DescriptionError(f"population {name!r} ({model}): unknown {sorted(unknown)}; allowed: {sorted(allowed)}")
    for key, value in arguments.items():
        if key == "surrogate" and isinstance(value, Mapping):
            try:
                arguments[key] = Surrogate(**value)
            except TypeError as error:
                raise DescriptionError(f"population {name!r}: surrogate: {error}") from None
        elif value in ("inf", "-inf"):
            arguments[key] = float(value)
        elif isinstance(value, list):
            arguments[key] = tuple(float(v) if v in ("inf", "-inf") else v for v in value)
    try:
        population: AnyPopulation = MODELS[model](**arguments)
    except TypeError as error:
        raise DescriptionError(f"population {name!r} ({model}): {error}") from None
    return population


def parse_net(text: str, **defaults: Any) -> Network:
    """`"700-256r-20"` → Input(700), LIF(256, recurrent=True), LI(20).

    Sizes joined by `-`. After a size: `r` recurrent, `c` current-based (CubaLIF); the last is an LI readout, or with
    `s` a spiking LIF that lists every neuron, for rate codes. `defaults` are arguments of every hidden population
    (those that a model does not know, such as `alpha` for LIF, are left out where they do not apply).
    """
    parts = text.strip().split("-")
    matches = [re.fullmatch(r"([1-9][0-9]*)([rcs]*)", part) for part in parts]
    if re.match(r"\s*\d+x\d+x\d+\s*:", text):
        raise DescriptionError(
            f"net {text!r}: is one of images, which only `sparsesnn bench baselines` and `bench sweep` run, on the backend "
            "dense; write sizes joined by '-', such as 700-256r-20"
        )
    if len(parts) < 2 or None in matches:
        raise DescriptionError(
            f"net {text!r}: write sizes joined by '-', such as 700-256r-20 (r: recurrent, c: CubaLIF)"
        )
    sizes = [(int(m[1]), m[2]) for m in matches if m]
    known = {f.name for f in fields(CubaLIF)}
    if unknown := set(defaults) - known:
        raise DescriptionError(f"net: unknown arguments {sorted(unknown)}; allowed: {sorted(known)}")

    def population(n: int, flags: str, **more: Any) -> Population:
        model = CubaLIF if "c" in flags else LIF
        arguments = {k: v for k, v in defaults.items() if k in {f.name for f in fields(model)}}
        return model(n, **{**arguments, "recurrent": "r" in flags, **more})

    if sizes[0][1] or any("s" in flags for _, flags in sizes[:-1]):
        raise DescriptionError(
            f"net {text!r}: the first size is the input and takes no letter; 's' is for the last one"
        )
    hidden = [population(n, flags) for n, flags in sizes[1:-1]]
    n_out, flags = sizes[-1]
    if "s" in flags:
        last: AnyPopulation = population(n_out, flags, grad_threshold=-math.inf, capacity=None, activity="natural")
    elif flags:
        raise DescriptionError(f"net {text!r}: the readout takes no letter but 's' (spiking)")
    else:
        last = LI(n_out, beta=_readout_beta(defaults))
    return Network.chain(Input(sizes[0][0]), *hidden, last)


def _readout_beta(defaults: Mapping[str, Any]) -> float:
    beta = plain(defaults.get("beta", 0.95))
    return float(beta) if isinstance(beta, (int, float)) else 0.95
