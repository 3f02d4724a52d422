"""The contestants' virtual environments, made once, separate from sparsesnn's own."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path

from rivals.catalog import Rival

#: the oldest Python for brainevent, and so for the newest JAX
JAX_PYTHON = (3, 12)


@dataclass(frozen=True)
class Environment:
    """The environment of some contestants.

    Args:
        python: its interpreter; None if it could not be made.
        missing: package → why it is missing; "" stands for the environment itself.
    """

    python: Path | None
    missing: Mapping[str, str] = field(default_factory=dict)

    def lacks(self, rival: Rival) -> str | None:
        """Why this contestant cannot run here; None if it can."""
        return self.missing.get("") or (self.missing.get(rival.package) if rival.package else None)


def own() -> Environment:
    """The environment of sparsesnn, which is this one."""
    try:
        metadata.version("sparsesnn")
    except metadata.PackageNotFoundError:
        return Environment(None, {"": f"sparsesnn is not installed for {sys.executable}; run ./dev bench rivals"})
    return Environment(Path(sys.executable))


def prepare(name: str, rivals: Sequence[Rival], folder: Path, *, fresh: bool = False) -> Environment:
    """Makes the environment `name` with the newest versions that fit together, or finds that of an earlier call.

    Args:
        rivals: all contestants of this environment, even those that do not take part.
        folder: contains a folder for each environment.
        fresh: makes it again.
    """
    packages = {rival.package: rival.requires or rival.package for rival in rivals if rival.package}
    if name == "own":
        return own()
    if name == "torch":
        # sparsesnn's own version of PyTorch, so that all use the same products
        python, base = Path(sys.executable), ["torch==" + metadata.version("torch").partition("+")[0]]
    else:
        python, base = find_python(JAX_PYTHON) or Path(sys.executable), ["jax", "optax"]
    packages = {package: requirement for package, requirement in packages.items() if package not in base}
    wanted = hashlib.sha256(json.dumps([version_of(python), base, packages]).encode()).hexdigest()
    place = folder / name
    ready = place / "ready.json"
    if not fresh and ready.exists():
        found = json.loads(ready.read_text())
        if found["wanted"] == wanted:
            return Environment(place / "bin" / "python", found["missing"])
    print(
        f"==> making the environment of the {name} contestants: {', '.join(packages)} (minutes, once)", file=sys.stderr
    )
    shutil.rmtree(place, ignore_errors=True)
    try:
        _run([str(python), "-m", "venv", str(place)])
        missing = _install(place / "bin" / "python", base, packages)
    except subprocess.CalledProcessError as error:
        return Environment(None, {"": f"its environment could not be made: {reason(error.stdout)}"})
    if version_of(python) < JAX_PYTHON and "brainevent" in missing:
        missing["brainevent"] = f"needs Python {'.'.join(map(str, JAX_PYTHON))} or newer, and none was found"
    if not missing:  # an incomplete environment is tried again next time: the network may be back
        ready.write_text(json.dumps({"wanted": wanted, "missing": missing}))
    return Environment(place / "bin" / "python", missing)


def _install(python: Path, base: list[str], packages: Mapping[str, str]) -> dict[str, str]:
    """Package → why it could not be installed. Installs all at once, so that versions match; if that fails, one by one, so that only failing ones are missing."""
    pip = [str(python), "-m", "pip", "install", "--disable-pip-version-check", "--quiet"]
    try:
        _run([*pip, *base, *packages.values()])
    except subprocess.CalledProcessError:
        _run([*pip, *base])
        missing = {}
        for package, requirement in packages.items():
            try:
                _run([*pip, requirement])
            except subprocess.CalledProcessError as error:
                missing[package] = f"pip: {reason(error.stdout)}"
        return missing
    return {}


def _run(command: list[str]) -> None:
    subprocess.run(command, check=True, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def reason(output: str | None) -> str:
    """The reason in pip's output: its last error, else its last line."""
    lines = [line.strip() for line in (output or "").splitlines() if line.strip()]
    errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR:")]
    return (errors or lines or ["no output"])[-1]


def find_python(least: tuple[int, int]) -> Path | None:
    """The newest Python of at least this version: this one, those on PATH, and pyenv's."""
    names = [f"python3.{minor}" for minor in range(least[1], least[1] + 8)]
    root = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    candidates = [Path(sys.executable), *(Path(p) for name in names if (p := shutil.which(name)))]
    candidates += root.glob("versions/*/bin/python3")
    versions = {path: version_of(path) for path in candidates}
    able = [path for path, version in versions.items() if version >= least]
    return max(able, key=lambda path: versions[path], default=None)


def version_of(python: Path) -> tuple[int, int]:
    """(major, minor); (0, 0) if it does not run."""
    code = "import sys; print(sys.version_info.major, sys.version_info.minor)"
    try:
        done = subprocess.run([str(python), "-c", code], check=True, capture_output=True, text=True, timeout=60)
        major, minor = done.stdout.split()
    except (OSError, subprocess.SubprocessError, ValueError):
        return (0, 0)
    return int(major), int(minor)
