"""Options declare themselves: types, bounds, choices and their messages."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import IntEnum
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch

from sparsesnn.errors import ConfigError
from sparsesnn.layers import LI, LIF, CubaLIF
from sparsesnn.layers.checks import PerNeuron
from sparsesnn.options import check, number, option, options_of, whole
from sparsesnn.surrogate import Surrogate


@dataclass(frozen=True)
class Section:
    rate: float = option(0.5, "a rate", low=0, below=1)
    limit: float = option(1.0, "a limit", above=0, high=math.inf)
    number: int = option(3, "a number", low=1, high=9)
    kind: str = option("auto", "a kind", choices=lambda: ("auto", "fast"))
    switch: bool = option(False, "a switch")
    decay: PerNeuron = option(0.9, "a decay", low=0, high=1)
    room: int | None = option(None, "a limit", low=1, none=0)
    pair: tuple[float, ...] = option((), "two numbers", above=0)
    parts: dict[str, float] = option(dict, "some parts", low=0)
    shape: Surrogate = option(Surrogate, "a shape")

    def __post_init__(self) -> None:
        check(self, "part.{}:", ConfigError)


def test_values_take_the_declared_type() -> None:
    section = Section(rate=0, limit=math.inf, decay=[1, 0.5], room=7, pair=[3, 4.5], parts={"a": 1})  # type: ignore[arg-type]
    assert (type(section.rate), section.limit) == (float, math.inf)
    assert (section.decay, section.pair, section.parts, section.room) == ((1.0, 0.5), (3.0, 4.5), {"a": 1.0}, 7)


class Index:
    """A number of some other library."""

    def __index__(self) -> int:
        return 4


@pytest.mark.parametrize(
    "value",
    [
        4,
        np.int64(4),
        np.uint8(4),
        np.array(4),
        np.array(np.int16(4), object),
        torch.tensor(4),
        Index(),
        IntEnum("Four", {"four": 4}).four,
    ],  # type: ignore[attr-defined]
)
def test_whole_numbers(value: Any) -> None:
    assert (whole(value), number(value)) == (4, 4.0)
    assert (type(whole(value)), type(number(value))) == (int, float)
    section = Section(number=value, limit=value, room=value, pair=[value], parts={"a": value})  # type: ignore[arg-type]
    assert (section.number, section.limit, section.room, section.pair, section.parts) == (4, 4.0, 4, (4.0,), {"a": 4.0})


@pytest.mark.parametrize(
    "value", [0.5, np.float64(0.5), np.float32(0.5), np.float16(0.5), np.array(0.5), torch.tensor(0.5), Fraction(1, 2)]
)
def test_numbers(value: Any) -> None:
    assert (whole(value), number(value)) == (None, 0.5)
    section = Section(rate=value, limit=value, pair=[value], parts={"a": value})  # type: ignore[arg-type]
    assert (section.rate, section.limit, section.pair, section.parts) == (0.5, 0.5, (0.5,), {"a": 0.5})
    with pytest.raises(ConfigError, match=r"part.number: is .*; allowed: whole numbers, 1 to 9"):
        Section(number=value)


@pytest.mark.parametrize(
    "value",
    [True, np.bool_(True), torch.tensor(True), "4", b"4", None, [4], np.array([4]), torch.tensor([4]), 1j, object()],
)
def test_what_is_no_number(value: Any) -> None:
    assert (whole(value), number(value)) == (None, None)


def test_numbers_at_the_edges() -> None:
    assert [whole(x) for x in (4.0, np.float32(4), torch.tensor(4.0))] == [None] * 3  # a float is none
    assert (whole(1 << 100), number(10**400)) == (1 << 100, None)
    assert math.isnan(number(math.nan) or 0.0)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"rate": 1.0}, r"part\.rate: is 1\.0; allowed: 0 to below 1"),
        ({"rate": math.nan}, "part.rate: is nan"),
        ({"rate": True}, r"part.rate: is True; allowed: 0 to below 1"),
        ({"limit": 0}, r"part.limit: is 0; allowed: above 0 to inf"),
        ({"number": 2.0}, r"part.number: is 2\.0; allowed: whole numbers, 1 to 9"),
        ({"number": 10}, "part.number: is 10; allowed: whole numbers, 1 to 9"),
        ({"kind": "slow"}, "part.kind: is 'slow'; allowed: auto, fast"),
        ({"switch": 1}, r"part.switch: is 1; allowed: true or false"),
        ({"decay": (0.1, 7.0)}, r"part.decay: is 7\.0; allowed: 0 to 1, or a list of them"),
        ({"decay": None}, "part.decay: is None"),
        ({"room": 0}, "part.room: is 0; allowed: whole numbers, 1 or more"),
        ({"pair": (1.0, -math.inf)}, "part.pair: is -inf; allowed: a list, each above 0"),
        ({"parts": {"a": -1.0}}, "part.parts.a: is -1.0; allowed: a table, each 0 or more"),
        ({"shape": "atan"}, r"part.shape: is 'atan'; allowed: a Surrogate \(kind, slope\)"),
    ],
)
def test_what_is_wrong_is_named(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Section(**values)


def test_options_come_in_order_with_their_defaults() -> None:
    assert list(options_of(Section)) == list(Section.__dataclass_fields__)
    assert options_of(Section)["shape"].default == Surrogate()
    assert all(known.help and "\n" not in known.help for known in options_of(Section).values())


def test_an_argument_has_one_default_in_all_neuron_models() -> None:
    """A text such as "700-256r-256c-20" takes one value of an argument for all its populations."""
    defaults: dict[str, Any] = {}
    for model in (LIF, CubaLIF):
        for name, known in options_of(model).items():
            assert defaults.setdefault(name, known.default) == known.default, (model, name)
    assert {"beta", "gain"} <= set(options_of(LI))
