"""The section [net]: the network as a text with arguments for its populations, or population by population."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sparsesnn.config.sections import AUTO, Section
from sparsesnn.config.tables import Table, spread
from sparsesnn.errors import ConfigError, DescriptionError
from sparsesnn.layers import LI, Population, decays
from sparsesnn.network import Network, neuron_options, parse_net
from sparsesnn.options import Option, option, options_of


def _neurons(table: Table) -> dict[str, Option]:
    """Arguments of the hidden populations: those of every neuron model but what the text says by letters."""
    return {name: known for name, known in neuron_options().items() if name != "recurrent"}


def _readout(table: Table) -> Mapping[str, Option]:
    return options_of(LI)


@dataclass(frozen=True)
class NetConfig(Section, name="net"):
    """The network; `populations` and `connections` describe it whole, then no other key may be given."""

    text: str = option(
        "auto-128r-auto",
        "sizes joined by '-', such as 700-256r-20; after a size r: recurrent, c: current-based (CubaLIF); the last is the "
        "readout, with s a spiking one; auto as first or last size is that of the data",
        flag="net",
        metavar="TEXT",
    )
    delay: int = option(0, "of all connections, steps", low=0)
    neurons: dict[str, Any] = spread(_neurons)
    tau_range: tuple[float, ...] = option(
        (),
        "[low, high]: time constants in steps, spread evenly on a logarithmic scale over the neurons of a population, in "
        "place of beta; empty: every neuron has beta",
        above=0,
    )
    readout: dict[str, Any] = spread(_readout, prefix="readout_")
    populations: dict[str, Any] = option(dict, "by name, in the form of Network.to_dict")
    connections: tuple[dict[str, Any], ...] = option((), "in the form of Network.to_dict")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.tau_range and not (len(self.tau_range) == 2 and self.tau_range[0] <= self.tau_range[1]):
            raise ConfigError(
                f"net.tau_range: is {list(self.tau_range)}; give two time constants in steps, [low, high], or [] for none"
            )

    def network(self, n_neurons: int, n_classes: int) -> Network:
        """The network for data with that many input neurons and classes.

        Errors: `ConfigError` if the text or a population is invalid, or the sizes do not fit the data.
        """
        try:
            network = self._described() if self.populations else self._parsed(n_neurons, n_classes)
        except DescriptionError as error:
            message = str(error)
            raise ConfigError(message if message.startswith("net") else f"net: {message}") from None
        source, last = network.populations[network.inputs[0]], network.populations[network.output]
        if source.n != n_neurons or last.n % n_classes:
            raise ConfigError(self._misfit(network, source.n, last.n, n_neurons, n_classes))
        return network

    def _described(self) -> Network:
        return Network.from_dict({"populations": self.populations, "connections": list(self.connections)})

    def _parsed(self, n_neurons: int, n_classes: int) -> Network:
        parts = self.text.strip().split("-")
        if parts[0] == AUTO:
            parts[0] = str(n_neurons)
        if len(parts) > 1 and re.fullmatch(f"{AUTO}s?", parts[-1]):
            parts[-1] = parts[-1].replace(AUTO, str(n_classes))
        network = parse_net("-".join(parts), **self.neurons)
        if self.tau_range:
            for name, population in network.populations.items():
                if isinstance(population, Population):
                    network = network.with_population(name, beta=decays(self.tau_range, population.n))
        if isinstance(network.populations[network.output], LI):
            network = network.with_population(network.output, **self.readout)
        return network.with_delay(self.delay)

    def _misfit(self, network: Network, n_in: int, n_out: int, n_neurons: int, n_classes: int) -> str:
        has = f"the data has {n_neurons} neurons and {n_classes} classes"
        arrived = f"net: {n_in} input and {n_out} output neurons, but {has}"
        if self.populations:
            return (
                f"{arrived}; set n = {n_neurons} for {network.inputs[0]!r} and n = {n_classes} for {network.output!r}"
            )
        parts = self.text.strip().split("-")
        fitting = f"{n_classes}s" if parts[-1].endswith("s") else str(n_classes)
        return f"{arrived}; write --net {'-'.join([str(n_neurons), *parts[1:-1], fitting])}"
