"""What pyproject.toml says, the interpreters of this machine, and running a command."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sparsesnn.config.tables import read_toml

ROOT = Path(__file__).resolve().parents[2]
WORK = ROOT / "build" / "release"


class ReleaseError(Exception):
    """A reason not to release; its text says what to change."""


def say(text: str) -> None:
    print(f"==> {text}", file=sys.stderr, flush=True)


def pyproject(tree: Path = ROOT) -> dict[str, Any]:
    return read_toml((tree / "pyproject.toml").read_text(encoding="utf-8"), "pyproject.toml")


def run(*command: str | Path, cwd: Path = ROOT, env: Mapping[str, str] | None = None) -> str:
    """The standard output of a command.

    Raises:
        ReleaseError: It failed; the message holds the end of its output.
    """
    result = subprocess.run(
        [str(part) for part in command], cwd=cwd, env=env, capture_output=True, text=True, check=False
    )
    if result.returncode:
        words = " ".join(str(part) for part in command)
        raise ReleaseError(f"{words}: exit status {result.returncode}\n{result.stdout[-2000:]}{result.stderr[-4000:]}")
    return result.stdout


def minor_versions(*, tried: bool) -> list[str]:
    """The versions of Python with a separate wheel; with `tried`, also those that share the last one (the stable ABI)."""
    project = pyproject()
    first = int(project["project"]["requires-python"].removeprefix(">=3."))
    stable = int(project["tool"]["scikit-build"]["wheel"]["py-api"].removeprefix("cp3"))
    built = re.findall(r"cp3(\d+)-\*", project["tool"]["cibuildwheel"]["build"])
    last = max(map(int, built)) if tried else stable
    return [f"3.{minor}" for minor in range(first, last + 1)]


def interpreter(version: str) -> Path | None:
    """The newest Python of a minor version, on PATH or of pyenv, that can make virtual environments and has its headers."""
    code = "import ensurepip, venv, os, sysconfig; os.stat(os.path.join(sysconfig.get_path('include'), 'Python.h'))"
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    found = [shutil.which(f"python{version}"), *sorted(pyenv.glob(f"{version}.*/bin/python"), reverse=True)]
    for python in found:
        if python and subprocess.run([python, "-c", code], capture_output=True, check=False).returncode == 0:
            real = run(python, "-c", "import sys; print(sys.executable)").strip()  # not pyenv's script of that name
            return Path(real)
    return None


def interpreters(options: Any, *, tried: bool) -> dict[str, Path]:
    """The interpreters that are used, by version; prints which ones are not available.

    Raises:
        ReleaseError: There is none.
    """
    chosen = options.pythons or minor_versions(tried=tried)
    found = {version: interpreter(version) for version in minor_versions(tried=tried) if version in chosen}
    for version in [version for version, python in found.items() if python is None]:
        say(f"no Python {version} on this machine: it is left out")
    at_hand = {version: python for version, python in found.items() if python is not None}
    if not at_hand:
        raise ReleaseError(f"no Python {' or '.join(chosen)} with venv and headers on PATH or in ~/.pyenv; install one")
    return at_hand


def environment(python: Path, folder: Path) -> Path:
    """Makes a new virtual environment; returns its Python."""
    shutil.rmtree(folder, ignore_errors=True)
    run(python, "-m", "venv", folder)
    return folder / "bin" / "python"
