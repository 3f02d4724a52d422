"""Names of files that are not UTF-8, terminals that lack characters, and files in other encodings."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from sparsesnn import integers
from sparsesnn.cli import main
from sparsesnn.config import Config
from sparsesnn.errors import ConfigError
from sparsesnn.host.comm import Local
from sparsesnn.utf8 import RAW_NAMES, from_bytes, read_text, to_bytes, to_file
from sparsesnn.wording import printable

RAW = os.fsdecode(b"d\xe4t")
CONFIG = """\
[data]
name = "synthetic"
n_neurons = 17
n_classes = 3
n_steps = 11
n_samples = 40
activity = 0.2
[net]
text = "auto-9r-auto"
[train]
epochs = 1
batch = 8
"""


def run(*arguments: object) -> int:
    return main([str(a) for a in arguments])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder whose name is not UTF-8, with a configuration and events in it."""
    made = tmp_path / RAW
    try:
        made.mkdir()
    except OSError as error:
        pytest.skip(f"this file system takes no such names: {error}")
    (made / "a.toml").write_text(CONFIG)
    rng, n = np.random.default_rng(0), 20
    np.savez(
        made / f"{RAW}.npz",
        t_us=np.sort(rng.uniform(0, 2e4, (n, 50))).ravel(),
        unit=rng.integers(0, 5, 50 * n),
        sample=np.repeat(np.arange(n), 50),
        label=np.arange(n) % 2,
    )
    return made


def test_texts_and_bytes() -> None:
    assert to_bytes(RAW) == b"d\xe4t"
    assert from_bytes(b"d\xe4t") == RAW
    assert printable(RAW) == "d\\udce4t"
    assert to_file("a") == b"a"
    assert to_file(f"dir = {RAW!r}".replace("\\udce4", "\udce4")).startswith(RAW_NAMES.encode())
    assert Local().all_texts(RAW + "ä") == [RAW + "ä"]


@pytest.mark.parametrize(
    ("data", "fact"),
    [
        (b"a = 1\n# f\xfcr\n", "is not UTF-8: byte 0xfc in line 2; save it as UTF-8"),
        (b"\xef\xbb\xbfa = 1", "is UTF-8 with a byte order mark; save it as UTF-8 without one"),
        ("a = 1".encode("utf-16"), "is UTF-16 with a byte order mark"),
    ],
)
def test_files_in_another_encoding_are_refused(
    data: bytes, fact: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "a.toml"
    path.write_bytes(data)
    with pytest.raises(ConfigError, match=f"--config: {path} {fact}"):
        read_text(path, "--config", "a TOML file")
    for option, command in (
        ("--config", ["train", "--config", path]),
        ("--config", ["data", "build", "--config", path]),
        ("--network", ["plan", "--network", path]),
    ):
        assert run(*command) == 2
        assert f"error: {option}: {path} {fact}" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:TensorBoard")  # its library writes no such names: the run continues without it
def test_a_run_in_such_a_folder(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    out = folder / "run"
    events = folder / f"{RAW}.npz"
    given = ("--data", events, "--data.test=random:0.25", "--data.valid=none", "--epochs", 1)
    assert run("train", "events", *given, "--out", out) == 0
    assert "d\\udce4t/run/result.json" in printable(capsys.readouterr().err)
    assert json.loads((out / "result.json").read_text())["config"]["data"]["dir"] == str(events)
    assert Config.from_toml(read_text(out / "config.toml", "--config", "")).data.dir == str(events)
    assert {"curves.png", "activity.png", "checkpoint.json"} <= {path.name for path in out.iterdir()}
    assert run("train", "--resume", "--out", out, "--epochs", 2, "--quiet") == 0
    assert run("train", "--config", out / "config.toml", "--out", folder / "again", "--quiet") == 0
    capsys.readouterr()
    assert run("eval", out, "--predictions", folder / "p.csv") == 0
    assert run("show", out) == 0
    assert run("quantize", out, folder / "q.safetensors") == 0
    assert integers.load(folder / "q.safetensors").network.populations["input"].n > 0
    assert run("data", "check", events, "--out", folder / "c.png") == 0
    assert run("data", "show", events, "--out", folder / "s.png") == 0


def test_a_printed_configuration_is_a_file(folder: Path, capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    assert run("train", "events", "--data", folder / f"{RAW}.npz", "--print-config") == 0
    printed = folder / "printed.toml"
    printed.write_bytes(capsysbinary.readouterr().out)
    assert Config.from_toml(read_text(printed, "--config", "")).data.dir == str(folder / f"{RAW}.npz")


def test_a_launch_script_holds_the_names(folder: Path, capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    pieces = ("--template", "slurm", "--ranks", 2, "--threads", 1, "--ranks-per-host", 2)
    assert run("launch", *pieces, "--", "train", "--config", folder / "a.toml", "--out", folder / "run") == 0
    assert os.fsencode(folder / "a.toml") in capsysbinary.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize(
    "environment",
    [{"LC_ALL": "C", "PYTHONUTF8": "0"}, {"PYTHONIOENCODING": "ascii"}, {"PYTHONIOENCODING": "latin-1"}],
)
def test_a_run_where_terminals_lack_characters(environment: dict[str, str], folder: Path) -> None:
    events = folder / "ä.npz"
    (folder / f"{RAW}.npz").rename(events)
    config = folder / "ä.toml"
    config.write_text(f'# …\n[data]\nname = "events"\ndir = "{events.parent.parent}/ä.npz"\ntest = "random:0.25"\n')
    events.rename(folder.parent / "ä.npz")
    for command in (["train", "--config", config, "--epochs", "1", "--out", folder / "ä"], ["eval", folder / "ä"]):
        found = subprocess.run(
            [sys.executable, "-m", "sparsesnn", *map(str, command)],
            env={**os.environ, **environment},
            capture_output=True,
            check=False,
        )
        assert found.returncode == 0, found.stderr
        assert b"Traceback" not in found.stderr
