"""The section [net]: the network as a text with arguments for its populations, or described by population."""

from __future__ import annotations

import random
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from sparsesnn.config.sections import AUTO, Section
from sparsesnn.config.tables import Table, spread
from sparsesnn.delays import MAX_DELAY
from sparsesnn.errors import ConfigError, DescriptionError
from sparsesnn.layers import LI, decays, fires
from sparsesnn.layers.catalog import find_model, model_letters, neuron_options
from sparsesnn.layers.units import decay_of
from sparsesnn.network import Network, parse_net
from sparsesnn.options import Option, option, options_of
from sparsesnn.synapses import Shape

#: longest delay in milliseconds
_MAX_MS = 1e9


def _neurons(table: Table) -> dict[str, Option]:
    """Arguments of the hidden populations: those of every neuron model except the ones that the text sets by letters."""
    known = {name: declared for name, declared in neuron_options().items() if name != "recurrent"}
    capacity = known["capacity"]
    known["capacity"] = replace(
        capacity,
        help=f"{capacity.help}. {AUTO}: no limit, but on IPUs, whose lists have a fixed size, twice the longest of the first batches",
        type=int | str | None,
        choices=(AUTO,),
        default=AUTO,
    )
    return known


def _readout(table: Table) -> Mapping[str, Option]:
    return options_of(LI)


@dataclass(frozen=True)
class NetConfig(Section, name="net"):
    """The network; `populations` and `connections` describe it completely, and then exclude all other keys."""

    text: str = option(
        "auto-128r-auto",
        f"sizes joined by '-', such as 700-256r-20. Letters after a size: r: recurrent, {model_letters()}, p0.1: sparse synapses of that "
        "density. The last size is the readout, a spiking one with s. auto as the first or last size takes it from the data. For "
        "convolutions, such as 2x34x34:3C8s2-10 or auto:3C8s2-auto, see docs/networks.md",
        flag="net",
        metavar="TEXT",
    )
    neuron: str = option(
        "",
        "class of the hidden populations that have no letter in --net: LIF, CubaLIF, Resonator, AdLIF, a class of an installed package, or "
        "one from --neuron FILE.py:CLASS; empty: LIF",
        flag="net-neuron",
        metavar="CLASS",
    )
    neuron_options: dict[str, Any] = option(
        dict, "arguments of that class, such as { strength = 1.8, learn_rho = true }"
    )
    delay: int = option(
        0,
        "delay of all connections between populations, in steps; with 1 all layers run in parallel, which is fastest on Graphcore IPUs",
        low=0,
        high=MAX_DELAY,
        flag="delay",
        metavar="D",
    )
    delays: tuple[int, ...] = option(
        (),
        "steps, such as [0, 6, 12]: each connection into a hidden population has one copy per delay, with its own weights; "
        "empty: one, with delay",
        low=0,
        high=MAX_DELAY,
    )
    delays_ms: tuple[float, ...] = option((), "delays in milliseconds, rounded to steps", low=0, high=_MAX_MS)
    recurrent_delays: tuple[int, ...] = option(
        (), "steps: the same for recurrent connections; empty: one, with one step", low=1, high=MAX_DELAY
    )
    recurrent_delays_ms: tuple[float, ...] = option(
        (), "recurrent_delays in milliseconds, rounded to steps", above=0, high=_MAX_MS
    )
    axonal_delays: int = option(
        0,
        "longest axonal delay, steps: each neuron that sends to a hidden population has its own delay; 0: none",
        low=0,
        high=MAX_DELAY,
    )
    axonal_delays_ms: float = option(0.0, "axonal_delays in milliseconds, rounded to steps", low=0, high=_MAX_MS)
    recurrent_axonal_delays: int = option(
        0, "the same for recurrent connections, in addition to their delay of 1 or more; 0: none", low=0, high=MAX_DELAY
    )
    recurrent_axonal_delays_ms: float = option(
        0.0, "recurrent_axonal_delays in milliseconds, rounded to steps", low=0, high=_MAX_MS
    )
    learn_axonal_delays: bool = option(False, "train the axonal delays; otherwise they stay as drawn")
    neurons: dict[str, Any] = spread(_neurons)
    tau_range: tuple[float, ...] = option(
        (),
        "[low, high]: time constants in steps, spread evenly on a logarithmic scale over the neurons of a population, instead "
        "of beta; empty: every neuron has beta",
        above=0,
    )
    tau_range_ms: tuple[float, ...] = option((), "tau_range in milliseconds, if the data's steps have a width", above=0)
    initial: dict[str, tuple[float, ...]] = option(
        dict,
        "[low, high] of parameters of hidden neurons, such as { a = [0, 1], b = [0, 2] }: each neuron begins with its own value, "
        "spread evenly, in an order that differs between parameters",
    )
    initial_tau_ms: dict[str, tuple[float, ...]] = option(
        dict,
        "the same for time constants of decays in milliseconds, such as { beta = [30, 200], rho = [150, 1000] }",
        above=0,
    )
    tau_ms: float = option(0.0, "time constant of the membrane, milliseconds, instead of beta; 0: beta", low=0)
    tau_syn_ms: float = option(
        0.0,
        "time constant of the synaptic current, milliseconds, instead of alpha; 0: alpha",
        low=0,
    )
    readout_tau_ms: float = option(
        0.0, "time constant of the readout, milliseconds, instead of readout_beta; 0: readout_beta", low=0
    )
    readout: dict[str, Any] = spread(_readout, prefix="readout_")
    populations: dict[str, Any] = option(dict, "by name, in the form of Network.to_dict")
    connections: tuple[dict[str, Any], ...] = option((), "in the form of Network.to_dict")

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, unit in (("tau_range", "steps"), ("tau_range_ms", "milliseconds")):
            taus = getattr(self, name)
            if taus and not (len(taus) == 2 and taus[0] <= taus[1]):
                raise ConfigError(
                    f"net.{name}: is {list(taus)}; give two time constants in {unit}, [low, high], or [] for none"
                )
        for name in ("initial", "initial_tau_ms"):
            for parameter, span in getattr(self, name).items():
                if len(span) != 2 or span[0] > span[1]:
                    raise ConfigError(f"net.{name}.{parameter}: is {list(span)}; give the lowest and the highest value")
        if twice := set(self.initial) & set(self.initial_tau_ms):
            raise ConfigError(f"net.initial and net.initial_tau_ms: both have {min(twice)}; remove it from one of them")
        self._check_one_of("tau_range", "tau_range_ms", "tau_ms")
        self._check_one_of("delay", "delays", "delays_ms")
        self._check_one_of("recurrent_delays", "recurrent_delays_ms")
        self._check_one_of("axonal_delays", "axonal_delays_ms")
        self._check_one_of("recurrent_axonal_delays", "recurrent_axonal_delays_ms")
        for name, decay, given, known in (
            ("tau_ms", "beta", self.neurons, _neurons({})),
            ("tau_range_ms", "beta", self.neurons, _neurons({})),
            ("tau_syn_ms", "alpha", self.neurons, _neurons({})),
            ("readout_tau_ms", "beta", self.readout, _readout({})),
        ):
            if getattr(self, name) and given.get(decay, known[decay].default) != known[decay].default:
                key = f"readout_{decay}" if name.startswith("readout") else decay
                raise ConfigError(
                    f"net.{name}: is {getattr(self, name)!r}, but net.{key} is {given[decay]!r} as well; remove one of them"
                )

    def _check_one_of(self, *names: str) -> None:
        given = [name for name in names if getattr(self, name)]
        if len(given) > 1:
            raise ConfigError(f"net: {' and '.join(given)} are given; give one of {', '.join(names)}")

    def network(
        self, n_neurons: int, n_classes: int, dt_ms: float | None = None, shape: Shape | None = None
    ) -> Network:
        """The network for data with `n_neurons` input neurons and `n_classes` classes.

        Args:
            dt_ms: width of a step of the data, milliseconds; None if steps have no width.
            shape: height, width and channels of the data's images, whose neurons are in the order [channels, height, width];
                None if it has no images.

        Errors: `ConfigError` if the text or a population is invalid, the sizes do not fit the data, or time constants are in
        milliseconds and `dt_ms` is None.
        """
        in_ms = (
            "tau_range_ms",
            "tau_ms",
            "tau_syn_ms",
            "readout_tau_ms",
            "delays_ms",
            "recurrent_delays_ms",
            "axonal_delays_ms",
            "recurrent_axonal_delays_ms",
            "initial_tau_ms",
        )
        if dt_ms is None and (given := [name for name in in_ms if getattr(self, name)]):
            raise ConfigError(
                f"net.{given[0]}: is {getattr(self, given[0])!r}, but the steps of this data have no width in milliseconds; "
                "give decays per step (beta, alpha, readout_beta), or tau_range or delays in steps"
            )
        try:
            network = self._described() if self.populations else self._parsed(n_neurons, n_classes, dt_ms or 1.0, shape)
        except DescriptionError as error:
            message = str(error)
            raise ConfigError(message if message.startswith("net") else f"net: {message}") from None
        source, last = network.populations[network.inputs[0]], network.populations[network.output]
        if source.n != n_neurons or last.n % n_classes:
            raise ConfigError(self._misfit(network, source.n, last.n, n_neurons, n_classes))
        reads, first = network.shape(network.inputs[0]), getattr(source, "channels_first", False)
        if reads is not None and shape is not None and (reads != shape or not (first or shape[2] == 1)):
            raise ConfigError(
                f"net: the input has the shape {reads} with channels {'first' if first else 'last'}, but the "
                f"data has images of {shape} (height, width, channels) with channels first; write --net "
                f"{self._head(shape)}…, or shape = {list(shape)} and channels_first = true"
            )
        return network

    def _head(self, shape: Shape) -> str:
        """The beginning of a text with convolutions."""
        return f"{shape[2]}x{shape[0]}x{shape[1]}:"

    def _described(self) -> Network:
        return Network.from_dict({"populations": self.populations, "connections": list(self.connections)})

    def _parsed(self, n_neurons: int, n_classes: int, dt_ms: float, shape: Shape | None) -> Network:
        parts = self.text.strip().split("-")
        if parts[0].startswith(f"{AUTO}:"):
            if shape is None:
                raise ConfigError(
                    f"net.text: is {self.text!r}, but the data has no images; give channels, height and width of the input, "
                    "such as 2x34x34:3C8-10"
                )
            parts[0] = self._head(shape) + parts[0][len(AUTO) + 1 :]
        if parts[0] == AUTO:
            parts[0] = str(n_neurons)
        if len(parts) > 1 and re.fullmatch(f"{AUTO}s?", parts[-1]):
            parts[-1] = parts[-1].replace(AUTO, str(n_classes))
        neurons, readout = dict(self.neurons), dict(self.readout)
        if neurons["capacity"] == AUTO:
            neurons["capacity"] = None
        for name, arguments, decay in (
            ("tau_ms", neurons, "beta"),
            ("tau_syn_ms", neurons, "alpha"),
            ("readout_tau_ms", readout, "beta"),
        ):
            if tau_ms := getattr(self, name):
                arguments[decay] = decay_of(tau_ms, dt_ms, "net", name)
        own: dict[str, Any] = {}
        if self.neuron:
            own = {"neuron": self.neuron, "neuron_options": self._own_options(neurons)}
        elif self.neuron_options:
            raise ConfigError(
                f"net.neuron_options: is {self.neuron_options!r}, but net.neuron is empty; give the class"
            )
        network = parse_net("-".join(parts), **own, **neurons)
        if tau_range := self.tau_range or [tau / dt_ms for tau in self.tau_range_ms]:
            for name, population in network.populations.items():
                if fires(population):
                    network = network.with_population(name, beta=decays(tau_range, population.n))
        network = self._spread(network, dt_ms)
        if isinstance(network.populations[network.output], LI):
            network = network.with_population(network.output, **readout)
        return self._delayed(network.with_delay(self.delay), dt_ms)

    def _own_options(self, neurons: Mapping[str, Any]) -> dict[str, Any]:
        """Arguments of the class `neuron`: those in `neuron_options`, and of this section's those that it has and that are set."""
        try:
            known, has = _neurons({}), {f.name for f in fields(find_model(self.neuron))}
        except DescriptionError as error:
            raise ConfigError(f"net.neuron: {error}") from None
        given = {k: v for k, v in neurons.items() if k in has and v is not None and v != known[k].default}
        if twice := set(given) & set(self.neuron_options):
            raise ConfigError(
                f"net.{min(twice)} and net.neuron_options.{min(twice)}: both are given; remove one of them"
            )
        return {**given, **self.neuron_options}

    def _spread(self, network: Network, dt_ms: float) -> Network:
        """The network with different initial parameters of hidden neurons, as far as their model has these."""
        unread = {**self.initial, **self.initial_tau_ms}
        for name in list(network.populations)[1:-1]:
            population, changes = network.populations[name], {}
            for parameter, (low, high) in {**self.initial, **self.initial_tau_ms}.items():
                if not hasattr(population, parameter):
                    continue
                values = [low + (high - low) * (k + 0.5) / population.n for k in range(population.n)]
                random.Random(f"{name}.{parameter}").shuffle(
                    values
                )  # the same in every run: the description has no seed
                is_tau = parameter in self.initial_tau_ms
                changes[parameter] = [decay_of(value, dt_ms) for value in values] if is_tau else values
                unread.pop(parameter, None)
            network = network.with_population(name, **changes)
        if unread:
            raise ConfigError(
                f"net.initial{'' if min(unread) in self.initial else '_tau_ms'}: {min(unread)!r} is not a parameter of the hidden "
                f"neurons of {self.text!r}; remove it, or choose another neuron model"
            )
        return network

    def _delayed(self, network: Network, dt_ms: float) -> Network:
        """The network with a copy of its connections for each delay."""
        for name, recurrent in (("delays", False), ("recurrent_delays", True)):
            steps, in_ms = getattr(self, name), getattr(self, f"{name}_ms")
            given = f"{name}_ms" if in_ms else name
            delays = [round(delay / dt_ms) for delay in in_ms] or list(steps)
            if not delays:
                continue
            if len(set(delays)) < len(delays):
                raise ConfigError(
                    f"net.{given}: is {list(in_ms or steps)}, which is {delays} in steps; give delays that differ by a step or more"
                )
            self._check_hidden(network, given, list(in_ms or steps), recurrent)
            network = network.with_delays(delays, recurrent=recurrent)
        for name, recurrent in (("axonal_delays", False), ("recurrent_axonal_delays", True)):
            if longest := round(getattr(self, f"{name}_ms") / dt_ms) or getattr(self, name):
                self._check_hidden(network, name, longest, recurrent)
                network = network.with_axonal_delays(longest, learn=self.learn_axonal_delays, recurrent=recurrent)
        return network

    def _check_hidden(self, network: Network, name: str, value: Any, recurrent: bool) -> None:
        """`ConfigError` if the network has no connection that an option applies to."""
        if not any(c.is_recurrent == recurrent and c.post != network.output for c in network.connections):
            raise ConfigError(
                f"net.{name}: is {value}, but {self.text!r} has no {'recurrent' if recurrent else 'hidden'} population; remove it, or "
                "write " + ("r after a size" if recurrent else "a size between the first and the last")
            )

    def _misfit(self, network: Network, n_in: int, n_out: int, n_neurons: int, n_classes: int) -> str:
        has = f"the data has {n_neurons} neurons and {n_classes} classes"
        mismatch = f"net: {n_in} input and {n_out} output neurons, but {has}"
        if self.populations:
            return (
                f"{mismatch}; set n = {n_neurons} for {network.inputs[0]!r} and n = {n_classes} for {network.output!r}"
            )
        parts = self.text.strip().split("-")
        fitting = f"{n_classes}s" if parts[-1].endswith("s") else str(n_classes)
        if ":" in self.text:
            return f"{mismatch}; write --net with {n_neurons} neurons before the colon, and {fitting} at the end"
        return f"{mismatch}; write --net {'-'.join([str(n_neurons), *parts[1:-1], fitting])}"
