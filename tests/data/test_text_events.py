"""Events as text: separators, headers, units that are certain and those that are not, and lines that are not events."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from sparsesnn.datasets import text_events
from sparsesnn.datasets.event_files import read_events
from sparsesnn.errors import DataError

ROWS = ((5, 3, 1, 1), (1_000_007, 0, 2, 0), (90_000_000, 9, 0, 1))


def write(path: Path, text: str | bytes) -> Path:
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


@pytest.mark.parametrize("separator", [" ", ",", "\t", ", ", "   "])
@pytest.mark.parametrize("ending", ["\n", "\r\n"])
@pytest.mark.parametrize(
    "head", ["", "t_us x y p", "# t_us x y p", "% a comment\n# t_us x y p", "12 10", "12 10\nt_us x y p"]
)
@pytest.mark.parametrize("last", ["", "\n", "\n\n# the end\n"])
def test_forms(tmp_path: Path, separator: str, ending: str, head: str, last: str) -> None:
    lines = [*head.splitlines(), *(" ".join(map(str, row)) for row in ROWS)]
    text = ending.join(line.replace(" ", separator) for line in lines) + last
    found = read_events(write(tmp_path / "a.csv", text))
    assert list(zip(*(column.tolist() for column in found[:4]), strict=True)) == list(ROWS)
    assert found.sensor == ((12, 10) if head.startswith("12") else None)


def test_columns_by_name_and_both_signs(tmp_path: Path) -> None:
    found = read_events(write(tmp_path / "a.txt", "X,Y,polarity,timestamp_ms\n3,4,-1,0.25\n5,6,1,1.5\n"))
    assert [column.tolist() for column in found[:4]] == [[250, 1500], [3, 5], [4, 6], [0, 1]]


@pytest.mark.parametrize("block", [64, 1000, 1 << 20])
def test_blocks_of_any_size_give_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: int) -> None:
    rng = np.random.default_rng(0)
    t = np.sort(rng.integers(0, 10**8, 2003))
    table = np.stack(
        [t, rng.integers(0, 640, t.size), rng.integers(0, 480, t.size), rng.integers(0, 2, t.size)], axis=1
    )
    monkeypatch.setattr(text_events, "_BLOCK_BYTES", block)
    np.savetxt(tmp_path / "a.txt", table, fmt="%d")
    found = read_events(tmp_path / "a.txt")
    assert np.array_equal(np.stack(found[:4], axis=1), table)


@pytest.mark.parametrize("unit", ["us", "ms", "s"])
@pytest.mark.parametrize("how", ["header", "argument"])
def test_a_named_unit(tmp_path: Path, unit: str, how: str) -> None:
    """Every microsecond is exact in every unit."""
    t, scale = np.array([0, 1, 1_001_000, 1_700_000_123_456_789 % 10**13]), {"us": 1, "ms": 10**3, "s": 10**6}[unit]
    lines = [
        f"{k // scale}.{k % scale:0{len(str(scale)) - 1}d} 1 2 0" if scale > 1 else f"{k} 1 2 0" for k in t.tolist()
    ]
    head = f"t_{unit} x y p\n" if how == "header" else ""
    path = write(tmp_path / "a.txt", head + "\n".join(lines))
    assert read_events(path, unit if how == "argument" else "").t_us.tolist() == t.tolist()


@pytest.mark.parametrize(
    ("times", "t_us"),
    [
        (("0.000100", "0.000350"), [100, 350]),
        (("1.5", "2.0007"), [1_500_000, 2_000_700]),
        (("1700000000.123456", "1700000001.000000"), [1_700_000_000_123_456, 1_700_000_001_000_000]),
        (("3", "90000000"), [3, 90_000_000]),
    ],
)
def test_a_certain_unit(tmp_path: Path, times: tuple[str, str], t_us: list[int]) -> None:
    path = write(tmp_path / "a.txt", "".join(f"{t} 1 2 0\n" for t in times))
    assert read_events(path).t_us.tolist() == t_us


@pytest.mark.parametrize(
    "times",
    [
        ("0", "86399999"),
        ("0.5", "1.25"),
        ("10.000000", "99999.000000"),
        ("1.0000e+06", "1.2345678e+06"),
        ("0.00001", "86401"),
    ],
)
def test_an_uncertain_unit_is_asked_for(tmp_path: Path, times: tuple[str, str]) -> None:
    path = write(tmp_path / "a.txt", "".join(f"{t} 1 2 0\n" for t in times))
    with pytest.raises(
        DataError, match=rf"a\.txt: the unit .* {re.escape(times[0])} to .*, is not certain; .*t_us x y p .*time_unit"
    ):
        read_events(path)
    assert read_events(path, "ms").t_us.tolist() == [round(float(t) * 1e3, 6) for t in times]


@pytest.mark.parametrize(
    ("text", "facts"),
    [
        ("t_us x y p\n1 2 3 1\n1 2 3\n", r"line 3 is '1 2 3'; allowed: four numbers"),
        ("t_us x y p\n1 2 3 1\n1 2 three 1\n", "line 3 is '1 2 three 1'"),
        ("t_us x y p\n1 2 3 1 4\n", "line 2 is '1 2 3 1 4'"),
        ("t_us x y\n1 2 3\n", "line 1 names the columns t_us, x, y; give t_us"),
        ("t_us x y p z\n", "line 1 names the columns"),
        ("t_us t_ms x y\n", "line 1 names the columns"),
        ("t_us x y p\n1 2 -3 1\n", "y is -3 in the event at 1; allowed: whole numbers from 0"),
        ("t_us x y p\n1 2.5 3 1\n", r"x is 2\.5"),
        ("t_us x y p\n1 10000 3 1\n", r"x is 10000 in the event at 1; .* 9,999"),
        ("t_us x y p\n1 nan 3 1\n", "x is nan"),
        ("t_us x y p\ninf 1 3 1\n", "the time inf"),
        ("t_us x y p\n1 1 3 2\n", "p holds 2 to 2; allowed: 0 and 1, or -1 and 1; if the columns are not t x y p"),
        ("t_us x y p\n1 1 3 0\n2 1 3 -1\n", "p holds -1 to 0"),
        ("12 10\nt_us x y p\n1 12 3 1\n", "x = 12; allowed: 0 to 11"),
        ("0 10\nt_us x y p\n", "its sensor is 0 x 10"),
        ("", "holds no events"),
        ("t_us x y p\n", "holds no events"),
        ("\n\n# nothing\n", "holds no events"),
        ("t_us x y p\n5000000 1 3 1\n1 1 3 1\n", "time goes back by 5 s at event 1"),
        (b"\xff\xfe\x00\x01" * 99, "line 1 is"),
        (b"\x00" * 4000, "line 1 is"),
        (b"t_us x y p\n1 2 3 1\n\x80\x81\n", "line 3 is"),
        (b"1" * (3 << 20), "a line of more than 1,048,576 bytes"),
    ],
)
def test_lines_that_are_no_events(tmp_path: Path, text: str | bytes, facts: str) -> None:
    with pytest.raises(DataError, match=rf"a\.txt: .*{facts}") as caught:
        read_events(write(tmp_path / "a.txt", text))
    assert len(str(caught.value)) < 600


def test_a_unit_that_contradicts(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", "t_us x y p\n1 2 3 1\n")
    with pytest.raises(DataError, match="its header names the unit us, time_unit is 'ms'"):
        read_events(path, "ms")
    with pytest.raises(DataError, match="time_unit is 'min'; allowed: us, ms, s"):
        read_events(path, "min")
