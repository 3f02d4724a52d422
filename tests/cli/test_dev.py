"""What `./dev` says about a machine that lacks something: one sentence, before anything is downloaded or written."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
#: programs of every Linux; Python, compiler and df are for the tests to choose
ORDINARY = "awk bash cat cp dirname env find grep head ls mkdir nproc rm sed seq sha256sum sort tail tee tr uname xargs"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """What `./dev` reads before it installs, and a folder `bin` with the programs that it finds."""
    for name in ("dev", "pyproject.toml", "CMakeLists.txt"):
        shutil.copy(ROOT / name, tmp_path)
    for name in ("tools", "cmake", ".ci"):
        shutil.copytree(ROOT / name, tmp_path / name)
    for name in ("host/src", "codelets", "tests/cpp", "datasets", "launch", "sparsesnn"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "bin").mkdir()
    for name in ORDINARY.split():
        found = shutil.which(name)
        assert found, f"the test needs {name}"
        (tmp_path / "bin" / name).symlink_to(found)
    program(tmp_path, "df", 'echo Filesystem; echo "disk 1 1 100000 1% /"')
    program(tmp_path, "c++", "cat >/dev/null")
    python(tmp_path)
    return tmp_path


def program(tree: Path, name: str, text: str) -> None:
    (tree / "bin" / name).unlink(missing_ok=True)
    (tree / "bin" / name).write_text(f"#!/bin/sh\n{text}\n")
    (tree / "bin" / name).chmod(0o755)


def python(tree: Path, *, version: str = "", lacks: str = "") -> None:
    """python3 is this interpreter; or says an old `version`; or fails for a line that contains `lacks`. It makes no environment."""
    old = f'[ "$1" = --version ] && echo "Python {version}" && exit; case "$2" in *version_info*) exit 1 ;; esac'
    without = f'case "$2" in *"{lacks}"*) exit 1 ;; esac'
    stop = 'case "$*" in "-m venv"*) echo "makes the environment" >&2; exit 9 ;; esac'
    text = "\n".join([old if version else ":", without if lacks else ":", stop, f'exec "{sys.executable}" "$@"'])
    program(tree, "python3", text)


def dev(tree: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [tree / "dev", *arguments],
        env={"PATH": str(tree / "bin"), "HOME": str(tree), **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def refusal(tree: Path, *arguments: str, **environment: str) -> str:
    """The one line of a call that is refused, and that has written nothing."""
    before = sorted(tree.rglob("*"))
    found = dev(tree, *arguments, **environment)
    assert found.returncode == 1
    assert found.stdout == ""
    assert found.stderr.startswith("dev: ")
    assert found.stderr.count("\n") == 1
    assert sorted(tree.rglob("*")) == before
    return found.stderr


@pytest.mark.parametrize("command", ["demo", "test"])
def test_no_python(tree: Path, command: str) -> None:
    (tree / "bin" / "python3").unlink()
    assert "python3 is not installed; on Debian: apt-get install python3-dev" in refusal(tree, command)


def test_an_old_python_and_a_newer_one(tree: Path) -> None:
    python(tree, version="3.8.18")
    assert "python3 is Python 3.8.18, sparsesnn needs Python 3.10 or newer; install one" in refusal(tree, "demo")
    program(tree, "python3.12", f'exec "{sys.executable}" "$@"')
    assert "python3.12 is here: PYTHON=python3.12 ./dev" in refusal(tree, "demo")


@pytest.mark.parametrize(
    ("lacks", "message"),
    [
        ("ensurepip", "python3 cannot make virtual environments; on Debian: apt-get install python3-venv"),
        ("Python.h", r"the headers of python3 (Python.h) are missing; on Debian: apt-get install python3-dev"),
        ("sys.maxsize", "python3 is not a 64-bit CPython"),
    ],
)
def test_an_incomplete_python(tree: Path, lacks: str, message: str) -> None:
    python(tree, lacks=lacks)
    assert message in refusal(tree, "demo")


def test_no_compiler_and_an_old_one(tree: Path) -> None:
    (tree / "bin" / "c++").unlink()
    assert "there is no C++ compiler (c++, g++ or clang++); on Debian: apt-get install g++" in refusal(tree, "demo")
    program(tree, "g++", '[ "$1" = --version ] && echo "GCC 9.1"; exit 1')
    assert "g++ (GCC 9.1) does not compile C++20; install GCC 12 or Clang 15" in refusal(tree, "demo")


def test_a_full_disk(tree: Path) -> None:
    program(tree, "df", 'echo Filesystem; echo "disk 1 1 5000 1% /"')
    assert "4 GB of free space, PyTorch with CUDA needs 9 GB" in refusal(tree, "demo")
    assert "makes the environment" in dev(tree, "--torch", "torch", "demo").stderr
    program(tree, "df", 'echo Filesystem; echo "disk 1 1 1200 1% /"')
    assert "1 GB of free space, the installation needs 2 GB" in refusal(tree, "--torch", "torch", "demo")


def test_the_size_of_pytorch_is_said_before_the_download(tree: Path) -> None:
    program(tree, "uname", "echo x86_64")
    if Path("/dev/nvidiactl").exists():
        pytest.skip("this machine has a GPU, for which the build with CUDA is right")
    text = dev(tree, "demo").stderr
    assert "3.0 GB to download" in text
    assert "./dev --torch https://download.pytorch.org/whl/cpu demo" in text
    assert text.index("3.0 GB") < text.index("makes the environment")
    assert "GB to download" not in dev(tree, "--torch", "torch", "demo").stderr


def test_a_gpu_needs_no_advice(tree: Path) -> None:
    program(tree, "nvidia-smi", "exit 0")
    assert "GB to download" not in dev(tree, "demo").stderr


def test_the_place_of_pytorch_is_checked(tree: Path) -> None:
    assert "--torch no.whl: there is no such file" in refusal(tree, "--torch", "no.whl", "demo")
    assert "--torch needs the URL of an index, a wheel, or a requirement" in refusal(tree, "--torch")


@pytest.mark.parametrize(("which", "cameras"), [("newest", True), ("oldest", False)])
def test_the_packages_of_a_set_of_versions(tree: Path, which: str, cameras: bool) -> None:
    folder = tree / f".venv-{which}" / "bin"
    folder.mkdir(parents=True)
    for name in ("python", "uv"):
        program(tree, name, f'echo "{name} $*" >>"{tree}/calls"')
        (tree / "bin" / name).rename(folder / name)
    found = dev(tree, "versions", which, "tests/some.py")
    assert found.returncode == 0, found.stderr
    calls = (tree / "calls").read_text()
    assert ("--extra cameras" in calls) == cameras
    assert "--extra data --extra digits --extra nir --extra plot --extra tensorboard --extra mpi --extra test" in calls
    assert "python -m pytest tests/some.py" in calls


def test_the_extras_of_all_must_be_found(tree: Path) -> None:
    text = (tree / "pyproject.toml").read_text()
    (tree / "pyproject.toml").write_text(text.replace('all = ["sparsesnn[', 'all = ["other['))
    folder = tree / ".venv-oldest" / "bin"
    folder.mkdir(parents=True)
    program(tree, "python", "exit 0")
    (tree / "bin" / "python").rename(folder / "python")
    found = dev(tree, "versions", "oldest")
    assert found.returncode == 1
    assert "pyproject.toml has no line of the form: all = [" in found.stderr
