"""Names of weights: of the connection, with its delay only where two connections join the same populations."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
import torch

from sparsesnn import LI, LIF, Connection, Input, LayerState, Model, Network, SpikeBatch
from sparsesnn.engines.tensors import model_tensors, restore_model, weights_sha256
from sparsesnn.errors import ShapeError


def network_of(delay: int, *more: Connection) -> Network:
    populations = {"i": Input(7), "h": LIF(5), "o": LI(3)}
    return Network(populations, (Connection("i", "h", delay), *more, Connection("h", "o", 1)))


def test_networks_that_differ_in_a_delay_read_one_another() -> None:
    late, soon = Model(network_of(4), seed=1), Model(network_of(0), seed=2)
    assert "layers.h.i->h" in late.state_dict()
    soon.load_state_dict(late.state_dict())
    restore_model(soon, model_tensors(late), "here")
    assert weights_sha256(soon) == weights_sha256(late)


def test_files_with_delays_in_names_are_read() -> None:
    model, other = Model(network_of(4), seed=1), Model(network_of(4), seed=2)
    before = {name.replace("->h", "->h@4").replace("h->o", "h->o@1"): x for name, x in model.state_dict().items()}
    assert {"layers.h.i->h@4", "layers.o.h->o@1"} <= set(before)
    other.load_state_dict(before)
    assert weights_sha256(other) == weights_sha256(model)
    restore_model(Model(network_of(4)), {f"model/{name}": x for name, x in before.items()}, "here")


def test_parallel_connections_say_their_delay() -> None:
    network = network_of(0, Connection("i", "h", 3))
    assert [c.name for c in network.connections] == ["i->h", "i->h@3", "h->o"]
    assert [c.name for c in replace(network, connections=network.connections[1:]).connections] == ["i->h", "h->o"]
    assert Network.from_json(network.to_json()) == network


def test_a_state_holds_what_its_model_has_by_name() -> None:
    model = Model(network_of(0))
    state = model(SpikeBatch.from_dense(torch.zeros(2, 3, 7))).state["h"]
    assert list(state.states) == ["v"]
    assert state.v is state.states["v"]
    with pytest.raises(AttributeError, match=re.escape("'i_syn'; it has the states ['v']")):
        _ = state.i_syn
    with pytest.raises(ShapeError, match=r"\['w'\].*\['v'\]"):
        model.layers["h"](SpikeBatch.from_dense(torch.zeros(2, 3, 7)), LayerState({"w": state.v}))
