"""The card of a saved model: a README.md in Markdown, whose head Hugging Face's hub reads.

The head is YAML; its values are written as JSON, which is YAML too.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from sparsesnn.errors import DescriptionError
from sparsesnn.network import Network, gives_currents
from sparsesnn.options import number
from sparsesnn.wording import printable


@dataclass(frozen=True)
class ModelCard:
    """The content of a model's README.md besides its network; everything may be left out.

    Args:
        name: title; "": the folder's name.
        dataset: name of the data that it was trained on, on the hub its identifier.
        scores: results on the test part of the data, such as {"accuracy": 0.93}; names are those of the hub's metrics.
        activity: spikes per neuron and step, by population.
        command: how it was trained.
        license: such as "apache-2.0".
        text: more, in Markdown.
    """

    name: str = ""
    dataset: str = ""
    scores: Mapping[str, float] = field(default_factory=dict)
    activity: Mapping[str, float] = field(default_factory=dict)
    command: str = ""
    license: str = ""
    text: str = ""

    def __post_init__(self) -> None:
        for name in ("name", "dataset", "command", "license", "text"):
            if not isinstance(value := getattr(self, name), str):
                raise DescriptionError(f"ModelCard: {name} is {value!r}; give a text")
        for name in ("scores", "activity"):
            given = getattr(self, name)
            if not isinstance(given, Mapping) or any(number(x) is None for x in given.values()):
                raise DescriptionError(f"ModelCard: {name} is {given!r}; give numbers by name")


def card_text(card: ModelCard, name: str, network: Network, version: str) -> str:
    """The content of README.md.

    Args:
        name: of the folder.
        version: of sparsesnn.
    """
    return "\n".join([*_head(card, card.name or name), "", *_body(card, card.name or name, network, version), ""])


def _head(card: ModelCard, title: str) -> Iterator[str]:
    head: dict[str, Any] = {"library_name": "sparsesnn", "tags": ["spiking-neural-network", "neuromorphic", "pytorch"]}
    if card.license:
        head["license"] = card.license
    if card.dataset:
        head["datasets"] = [card.dataset]
    if card.scores:
        head["metrics"] = list(card.scores)
    if card.scores and card.dataset:
        result = {
            "task": {"type": "other"},
            "dataset": {"name": card.dataset, "type": card.dataset},
            "metrics": [{"type": metric, "value": float(value)} for metric, value in card.scores.items()],
        }
        head["model-index"] = [{"name": title, "results": [result]}]
    yield "---"
    for key, value in head.items():
        yield f"{key}: {json.dumps(value, allow_nan=False)}"
    yield "---"


def _body(card: ModelCard, title: str, network: Network, version: str) -> Iterator[str]:
    n_inputs = network.populations[network.inputs[0]].n
    yield f"# {_line(title)}"
    yield ""
    yield f"A spiking neural network with {network.n_weights():,} weights, saved by sparsesnn {version}."
    yield ""
    yield "```python"
    yield "import sparsesnn as ss"
    yield ""
    yield 'model = ss.Model.load("FOLDER")  # this folder; from the hub: ss.Model.from_pretrained("NAME/MODEL")'
    if gives_currents(network):
        yield f"output = model(currents)  # a tensor [T, B, {n_inputs}]"
    else:
        yield f"output = model(ss.SpikeBatch.from_dense(spikes))  # a tensor [T, B, {n_inputs}] of 0 and 1"
    yield "```"
    yield ""
    yield from _table(
        ("population", "neuron", "neurons", "activity"),
        [
            (name, type(p).__name__, f"{p.n:,}", _share(card.activity.get(name)))
            for name, p in network.populations.items()
        ],
    )
    yield from _table(
        ("connection", "synapses", "weights", "delay"),
        [
            (
                c.name,
                "recurrent " * c.is_recurrent + type(c.synapses).__name__,
                f"{network.n_weights_of(c):,}",
                _delay(c),
            )
            for c in network.connections
        ],
    )
    if card.activity:
        yield "Activity: spikes per neuron and step."
        yield ""
    if card.dataset:
        yield f"Data: {_line(card.dataset)}."
        yield ""
    if card.scores:
        yield from _table(("measure", "value"), [(_line(k), f"{v:.6g}") for k, v in card.scores.items()])
    if card.command:
        yield "Trained by:"
        yield ""
        yield from (f"    {_line(line)}" for line in card.command.splitlines())
        yield ""
    if card.text:
        yield card.text


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> Iterator[str]:
    yield f"| {' | '.join(head)} |"
    yield f"|{'---|' * len(head)}"
    yield from (f"| {' | '.join(row)} |" for row in rows)
    yield ""


def _line(text: str) -> str:
    """Foreign text in one line of Markdown."""
    return printable(text).replace("|", "\\|").replace("<", "&lt;")


def _share(activity: float | None) -> str:
    return "" if activity is None else f"{activity:.4f}"


def _delay(c: Any) -> str:
    return f"{c.delay} to {c.reach}, one per sender" if c.axonal else str(c.delay)
