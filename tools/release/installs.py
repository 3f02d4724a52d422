"""Installs each wheel as a user does, in an environment without a compiler, and uses it; then upgrades, uninstalls, compares.

The environment's PATH holds its own programs only, and pip may not build anything (`--only-binary :all:`), so that a wheel which
lacks a file, or needs a compiler, fails here.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import json
import os
import shlex
import shutil
import zipfile
from pathlib import Path

from release.project import WORK, ReleaseError, environment, interpreters, pyproject, run, say

#: a short version of `./dev demo`
DEMO = ("train", "digits", "--epochs", "3", "--threads", "1", "--quiet")


def run_installs(options: argparse.Namespace) -> None:
    """The step `installs`.

    Raises:
        ReleaseError: A wheel cannot be installed or used, or leaves files behind.
    """
    results = {}
    pythons = interpreters(options, tried=True)
    for version, interpreter in pythons.items():
        wheel = wheel_for(version, options.dist)
        if wheel is None:
            say(f"no wheel for Python {version}: its interpreter was not available")
            continue
        say(f"{wheel.name} with Python {version}, without a compiler")
        python = bare_environment(interpreter, WORK / f"bare-{version}", wheel, options.torch)
        results[version] = use(python, options.version)
    if not results:
        raise ReleaseError(f"{options.dist} has no wheel for any of Python {', '.join(pythons)}")
    side_by_side(results)
    version = next(iter(results))
    replace(WORK / f"bare-{version}" / "bin" / "python", wheel_for(version, options.dist), options.version)


def wheel_for(version: str, dist: Path) -> Path | None:
    """The wheel that pip takes for a version of Python: its own, or that of the stable ABI."""
    minor = int(version.removeprefix("3."))
    for wheel in dist.glob("*.whl"):
        python, abi = wheel.stem.split("-")[2:4]
        if python == f"cp3{minor}" or (abi == "abi3" and int(python.removeprefix("cp3")) <= minor):
            return wheel
    return None


def bare_environment(interpreter: Path, folder: Path, wheel: Path, torch: str) -> Path:
    """A new environment with the wheel, its dependencies and those of the demo; returns its Python."""
    python = environment(interpreter, folder)
    pip = (python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--only-binary", ":all:")
    if torch.startswith(("http://", "https://")):
        run(*pip, "--index-url", torch, "torch", cwd=folder, env=bare(python))
    elif torch:
        run(*pip, torch, cwd=folder, env=bare(python))
    run(*pip, f"{wheel}[digits,plot]", cwd=folder, env=bare(python))
    return python


def bare(python: Path) -> dict[str, str]:
    """The environment's variables: no compiler, no module from elsewhere, a separate home folder."""
    home = python.parents[1] / "home"
    home.mkdir(exist_ok=True)
    # How pip reaches its index is the machine's business.
    kept = {name: value for name, value in os.environ.items() if name.startswith(("PIP_", "SSL_", "HTTPS_", "https_"))}
    path = str(python.parent)
    if found := [name for name in ("cc", "c++", "gcc", "g++", "clang") if shutil.which(name, path=path)]:
        raise ReleaseError(f"{path} holds a compiler ({found[0]}): nothing is shown by an installation there")
    return kept | {"PATH": path, "HOME": str(home), "CC": "/none", "CXX": "/none", "LANG": "C.UTF-8"}


def use(python: Path, version: str) -> dict[str, str]:
    """Runs the smoke test of cibuildwheel, the version and the demo; returns the demo's weights, and the versions in use."""
    folder, env = python.parents[1], bare(python)
    program = python.with_name("sparsesnn")
    smoke = shlex.split(pyproject()["tool"]["cibuildwheel"]["test-command"])
    run(python, *smoke[1:], cwd=folder, env=env)
    said = run(program, "--version", cwd=folder, env=env).split()
    if said != ["sparsesnn", version]:
        raise ReleaseError(f"sparsesnn --version says {said}")
    out = folder / "home" / "digits"
    shutil.rmtree(out, ignore_errors=True)
    run(program, *DEMO, "--out", out, cwd=folder, env=env)
    result = json.loads((out / "result.json").read_text())
    code = "import numpy, torch; print(numpy.__version__, torch.__version__)"
    numpy, torch = run(python, "-c", code, cwd=folder, env=env).split()
    print(f"  demo: test accuracy {result['test_accuracy']:.3f}, NumPy {numpy}, PyTorch {torch}")
    return {"weights": result["weights_sha256"], "torch": torch}


def side_by_side(results: dict[str, dict[str, str]]) -> None:
    """Environments of different Pythons have trained the same weights, if they have the same PyTorch."""
    by_torch: dict[str, set[str]] = {}
    for result in results.values():
        by_torch.setdefault(result["torch"], set()).add(result["weights"])
    for torch, weights in by_torch.items():
        if len(weights) > 1:
            raise ReleaseError(f"the same demo with PyTorch {torch} gave other weights under another Python: {results}")
    if len(results) > 1:
        print(f"Python {', '.join(results)}, installed side by side: the same weights for the same PyTorch")


def replace(python: Path, wheel: Path | None, version: str) -> None:
    """Upgrades from an older version, and uninstalls: nothing of the older one is left, then nothing at all."""
    folder, env = python.parents[1], bare(python)
    pip = (python, "-m", "pip", "--quiet", "--disable-pip-version-check")
    site = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=folder).strip())
    old = older_wheel(folder / "home")
    run(*pip, "uninstall", "--yes", "sparsesnn", cwd=folder, env=env)
    run(*pip, "install", "--no-deps", old, cwd=folder, env=env)
    if not (site / "sparsesnn" / "removed.py").exists():
        raise ReleaseError(f"{old} was not installed")
    run(*pip, "install", "--no-deps", "--upgrade", str(wheel), cwd=folder, env=env)
    if (site / "sparsesnn" / "removed.py").exists():
        raise ReleaseError("an upgrade left a file of the older version: sparsesnn/removed.py")
    use(python, version)
    run(*pip, "uninstall", "--yes", "sparsesnn", cwd=folder, env=env)
    left = [path for path in site.glob("sparsesnn*") if path.is_file() or any(p.is_file() for p in path.rglob("*"))]
    if left or python.with_name("sparsesnn").exists():
        raise ReleaseError(f"an uninstallation left files: {left or python.with_name('sparsesnn')}")
    print("upgraded from an older version and uninstalled: no file is left")


def older_wheel(folder: Path) -> Path:
    """A wheel of version 0.0.1 with a module that later versions lack, in place of an earlier release."""
    info = "sparsesnn-0.0.1.dist-info"
    content = {
        "sparsesnn/__init__.py": '__version__ = "0.0.1"\n',
        "sparsesnn/removed.py": "",
        f"{info}/METADATA": "Metadata-Version: 2.1\nName: sparsesnn\nVersion: 0.0.1\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: release\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = []
    for name, text in content.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
        record.append(f"{name},sha256={digest},{len(text)}\n")
    content[f"{info}/RECORD"] = "".join([*record, f"{info}/RECORD,,\n"])
    path = folder / "sparsesnn-0.0.1-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        for name, text in content.items():
            wheel.writestr(name, text)
    return path
