"""The command line: help that teaches, exit codes, precedence, and messages instead of tracebacks."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import sparsesnn
from sparsesnn import datasets
from sparsesnn.cli import main
from sparsesnn.config.tables import read_toml
from sparsesnn.train import Config

SMALL = """\
[data]
name = "synthetic"
n_neurons = 17
n_classes = 3
n_steps = 11
n_samples = 40
activity = 0.2
[net]
text = "auto-9r-auto"
[init]
activity = 0.1
tolerance = 0.5
[train]
epochs = 1
batch = 8
tensorboard = false
plots = false
"""


@pytest.fixture
def small(tmp_path: Path) -> Path:
    path = tmp_path / "small.toml"
    path.write_text(SMALL)
    return path


def run(*arguments: object) -> int:
    return main([str(a) for a in arguments])


def printed_config(capsys: pytest.CaptureFixture[str], *arguments: object) -> dict[str, Any]:
    assert run("train", *arguments, "--print-config") == 0
    return read_toml(capsys.readouterr().out, "printed")


@pytest.mark.parametrize("command", [[], ["train"], ["eval"], ["info"]])
def test_help(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        run(*command, "--help")
    assert caught.value.code == 0
    out = capsys.readouterr().out
    assert "usage: sparsesnn" in out
    if command == ["train"]:
        assert "--net 700-256r-20" in out
        assert "speakers:0,1" in out
        assert "--resume" in out
        options = set(re.findall(r"^  (--[a-z-]+)", out, re.MULTILINE))
        assert {
            "--config",
            "--data",
            "--net",
            "--valid",
            "--backend",
            "--epochs",
            "--seed",
            "--seeds",
            "--out",
        } <= options


def test_help_answers_without_importing_training() -> None:
    code = "import sys, sparsesnn.cli as c; c._parser(); print('sparsesnn.train' in sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd="/")
    assert out.stdout.strip() == "False"


@pytest.mark.parametrize("program", [["-m", "sparsesnn"], [str(Path(sys.executable).with_name("sparsesnn"))]])
def test_ctrl_c_while_pytorch_is_imported(program: list[str], tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("import os, signal, time\nos.kill(os.getpid(), signal.SIGINT)\ntime.sleep(600)")
    found = subprocess.run(
        [sys.executable, *program, "train", "digits"],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a shell ignores it in the background
    )
    assert (found.returncode, found.stdout, found.stderr) == (130, "", "sparsesnn: stopped by Ctrl-C\n")


def test_ctrl_c_while_a_program_imports_the_package(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("import os, signal, time\nos.kill(os.getpid(), signal.SIGINT)\ntime.sleep(600)")
    code = "try:\n  import sparsesnn\nexcept KeyboardInterrupt:\n  print('ours')"
    found = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert (found.returncode, found.stdout, found.stderr) == (0, "ours\n", "")


def test_ctrl_c_while_a_command_runs(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def stopped(*_: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr("sparsesnn.cli._run", stopped)
    assert run("info") == 130
    assert capsys.readouterr() == ("", "sparsesnn: stopped by Ctrl-C\n")


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_help_in_an_encoding_that_lacks_its_characters(encoding: str) -> None:
    for command in ([], ["train"], ["nir"], ["launch"], ["plan"]):
        found = subprocess.run(
            [sys.executable, "-m", "sparsesnn", *command, "--help"],
            capture_output=True,
            check=False,
            env={**os.environ, "PYTHONIOENCODING": encoding},
        )
        assert (found.returncode, found.stderr) == (0, b"")
        assert found.stdout.decode(encoding).startswith("usage: sparsesnn")


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        run("--version")
    assert caught.value.code == 0
    assert capsys.readouterr().out == f"sparsesnn {sparsesnn.__version__}\n"


def test_no_command_prints_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert run() == 2
    assert "usage: sparsesnn" in capsys.readouterr().out


def test_info(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("info", "--json") == 0
    info = json.loads(capsys.readouterr().out)
    assert info == {**{key: info[key] for key in ("python", "pytorch", "gpu")}, **sparsesnn.build_info()}
    assert info["pytorch"] == torch.__version__
    assert run("info") == 0
    lines = capsys.readouterr().out.splitlines()
    assert f"version        {sparsesnn.__version__}" in lines


def test_the_file_overrides_the_data_set_and_options_override_the_file(
    small: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = printed_config(
        capsys, "--config", small, "--epochs", 7, "--lr", 0.5, "--net", "17-4-3", "--valid", "none", "--seed", 3,
        "--batch", 5, "--backend", "dense", "--data", "/d", "--threads", 2, "--no-tensorboard", "--no-plots",
        "--set", "net.surrogate.slope=25", "--set", "net.reset=zero", "--set", "init.activity=0.2",
    )  # fmt: skip
    assert table["net"]["text"] == "17-4-3"
    assert (table["net"]["surrogate"]["slope"], table["net"]["reset"]) == (25.0, "zero")
    assert (table["data"]["n_neurons"], table["data"]["dir"], table["data"]["valid"]) == (17, "/d", "none")
    assert table["init"]["activity"] == 0.2
    assert table["optim"]["lr"] == 0.5
    wanted = {
        "epochs": 7,
        "seed": 3,
        "batch": 5,
        "backend": "dense",
        "threads": 2,
        "tensorboard": False,
        "plots": False,
    }
    assert wanted.items() <= table["train"].items()


@pytest.mark.parametrize("name", ["digits", "shd", "ssc", "synthetic"])
def test_the_printed_configuration_is_whole_and_means_the_same(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("train", name, "--print-config") == 0
    text = capsys.readouterr().out
    assert Config.from_toml(text) == Config.resolve({"data": {"name": name}})
    assert Config.from_toml(text).to_toml() == text


def test_train_print_rerun_and_eval(small: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("train", "--config", small, "--out", tmp_path / "a", "--seed", 5) == 0
    shown = capsys.readouterr()
    assert shown.out == "", "progress goes to standard error"
    assert "epoch   1" in shown.err
    first = json.loads((tmp_path / "a" / "result.json").read_text())
    assert run("train", "--config", tmp_path / "a" / "config.toml", "--out", tmp_path / "b", "--quiet") == 0
    assert capsys.readouterr() == ("", "")
    assert json.loads((tmp_path / "b" / "result.json").read_text())["weights_sha256"] == first["weights_sha256"]
    assert run("eval", tmp_path / "a", "--json") == 0
    assert json.loads(capsys.readouterr().out)["accuracy"] == first["test_accuracy"]
    assert run("eval", tmp_path / "a", "--split", "valid", "--threads", 1) == 0
    assert f"valid accuracy {100 * first['valid_accuracy']:.2f} %" in capsys.readouterr().out
    assert run("train", "--config", small, "--out", tmp_path / "a") == 2
    assert "sparsesnn: error: out:" in capsys.readouterr().err
    assert run("train", "--resume", "--out", tmp_path / "a") == 0, "the configuration comes from the folder"
    assert "the run is finished" in capsys.readouterr().err
    assert run("train", "--resume", "--out", tmp_path / "a", "--lr", 0.5) == 1
    assert "optim.lr: 0.005 → 0.5" in capsys.readouterr().err


def test_seeds(small: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "three"
    for more in ([], ["--resume"]):
        assert run("train", "--config", small, "--out", out, "--seeds", "0,3", *more) == 0
    results = [json.loads((out / f"seed-{seed}" / "result.json").read_text()) for seed in (0, 3)]
    assert [r["config"]["train"]["seed"] for r in results] == [0, 3]
    summary = json.loads((out / "summary.json").read_text())
    assert summary["seeds"] == [0, 3]
    assert summary["test_accuracy"]["values"] == [r["test_accuracy"] for r in results]
    assert "(2 seeds, mean ± sd)" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["train"], 2, f"the data set is missing; give one of {', '.join(datasets.NAMES)}"),
        (["train", "configs/digits.toml"], 2, "yin_yang; a file is given as --config configs/digits.toml"),
        (
            ["train", "nmnits"],
            2,
            f"data.name: is 'nmnits'; did you mean 'nmnist'? allowed: {', '.join(datasets.NAMES)}",
        ),
        (["train", "digits", "--set", "optim.learning=1"], 2, "optim: unknown key 'learning'"),
        (["train", "digits", "--set", "lr=1"], 2, "write section.key=value"),
        (["train", "digits", "--epochs", "many"], 2, "train.epochs: is 'many'; allowed: whole numbers, 1 to 1000000"),
        (["train", "digits", "--net.beta", "[0.5, 2]"], 2, "net.beta: is 2; allowed: 0 to 1, or a list of them"),
        (["train", "digits", "--backend", "tpu"], 2, "train.backend: is 'tpu'; allowed: cpu, gpu, dense"),
        (
            ["train", "digits", "--net", "128-x-10", "--out", "OUT"],
            2,
            "net '128-x-10': 'x' is not a size; write sizes joined by",
        ),
        (["train", "digits", "--net", "100-9-10", "--out", "OUT"], 2, "write --net 128-9-10"),
        (["train", "digits", "--resume"], 2, "--resume: the run is missing"),
        (["train", "--resume", "--out", "OUT"], 2, "holds no run"),
        (["train", "digits", "--seeds", "a,b"], 2, "--seeds: is 'a,b'"),
        (["train", "digits", "--seeds", "1,1"], 2, "names a seed twice"),
        (["train", "digits", "--seeds", "1,2", "--seed", "1"], 2, "give one of them"),
        (["train", "--config", "OUT/absent.toml"], 2, "--config: OUT/absent.toml cannot be read"),
        (["train", "shd", "--data", "OUT", "--out", "OUT/run"], 1, "OUT"),
        (["eval", "OUT"], 1, "has no checkpoint.json; give the folder of a run"),
    ],
)
def test_errors_are_one_line_and_say_what_to_do(
    arguments: list[str], code: int, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if "shd" in arguments:
        pytest.importorskip("tonic", reason="Tonic is optional")
    if "--net" in arguments:  # sizes are compared with the data
        pytest.importorskip("sklearn", reason="scikit-learn is optional")
    assert run(*(a.replace("OUT", str(tmp_path)) for a in arguments)) == code
    shown = capsys.readouterr()
    last = shown.err.strip().splitlines()[-1]
    assert last.startswith("sparsesnn: error: ")
    assert message.replace("OUT", str(tmp_path)) in last
    assert "Traceback" not in shown.err


def test_a_config_that_is_not_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "binary.toml"
    path.write_bytes(b"\xff\xfe\x00")
    assert run("train", "--config", path) == 2
    assert "binary.toml is UTF-16 with a byte order mark" in capsys.readouterr().err


def test_as_a_module() -> None:
    command = [sys.executable, "-m", "sparsesnn", "--version"]
    out = subprocess.run(command, capture_output=True, text=True, check=True, cwd="/")
    assert out.stdout == f"sparsesnn {sparsesnn.__version__}\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["train", "digits", "--bogus"],
            "sparsesnn train: error: '--bogus' is unknown; `sparsesnn train --help` lists",
        ),
        (
            ["train", "digits", "--treads=2"],
            "sparsesnn train: error: '--treads=2' is unknown; did you mean --threads? `sp",
        ),
        (
            ["train", "digits", "--net.surrogate.kind", "boxcar"],
            "sparsesnn train: error: '--net.surrogate.kind' is unknown; give --set net.surrogate.kind=VALUE; ",
        ),
        (
            ["bench", "step", "--bach", "3"],
            "sparsesnn bench step: error: '--bach' is unknown; did you mean --batch? `sp",
        ),
        (["info", "me"], "sparsesnn info: error: 'me' is unknown; `sparsesnn info --help` lists its arguments"),
        (
            ["train", "digits", "--learning-rate", "1"],
            "sparsesnn train: error: '--learning-rate' is unknown; did you mean --lr? `",
        ),
        (["--bogus"], "sparsesnn: error: '--bogus' is unknown; `sparsesnn --help` lists its arguments"),
    ],
)
def test_an_unknown_option_names_the_command(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*arguments) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith(message)
    assert len(said.err.splitlines()) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["bench"],
            "sparsesnn bench: error: give WHAT, one of step, activity, baselines, ipu-model; `sparsesnn bench --help`",
        ),
        (["eval"], "sparsesnn eval: error: give RUN, a run folder"),
        (["trian"], "sparsesnn: error: COMMAND: is 'trian'; did you mean 'train'. allowed: train, eval"),
        (["nir", "sow"], "sparsesnn nir: error: WHAT: is 'sow'; did you mean 'show'. allowed: export, show, import"),
        (["eval", "run", "--threads", "two"], "sparsesnn eval: error: --threads: is 'two'; allowed: whole numbers"),
        (["eval", "run", "--split", "tets"], "--split: is 'tets'; did you mean 'test'. allowed: test, valid, train"),
    ],
)
def test_what_a_command_lacks_in_one_line(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        run(*arguments)
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert re.search(message, said)
    assert len(said.splitlines()) == 1


def test_flags_are_added_where_they_are_read() -> None:
    """Without the compiled engine, `sparsesnn plan` works; the flags of `train` come from modules that need it."""
    code = "import sys, sparsesnn.cli as c; c._parser(); print('sparsesnn.config' in sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd="/")
    assert out.stdout.strip() == "False"


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (
            MemoryError("Unable to allocate 8.00 TiB"),
            r"memory ran out \(Unable to allocate 8\.00 TiB\); use less of it",
        ),
        (MemoryError(), "memory ran out; use less"),
        (
            RuntimeError("[enforce fail at alloc_cpu.cpp:127] err == 0. you tried to allocate 9 bytes"),
            "memory ran out; use",
        ),
        (OSError(28, "No space left on device", "runs/a"), "runs/a: No space left on device"),
    ],
)
def test_what_the_machine_refuses_is_one_line(
    error: Exception, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_: object) -> Any:
        raise error

    monkeypatch.setattr("sparsesnn.commands.train.resolve", refuse)
    assert run("train", "digits") == 1
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert re.match(rf"sparsesnn: error: {said}", lines[0])
