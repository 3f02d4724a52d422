"""Checks the content of packages: metadata, sizes, files, no path of this machine, no secret; and the glibc that a wheel needs."""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from email.parser import HeaderParser
from pathlib import Path

from release.project import ROOT, ReleaseError, pyproject, run

#: bytes; the Python Package Index refuses larger files unless it is asked
MAX_BYTES = 100 * 2**20
SECRETS = {
    "a private key": rb"-----BEGIN [A-Z ]*PRIVATE KEY-----",
    "a token of GitHub": rb"\b(?:gh[pousr]_[A-Za-z0-9]{36}|github_pat_[A-Za-z0-9_]{50})",
    "a token of an index of Python packages": rb"\bpypi-AgE[A-Za-z0-9_-]{50}",
    "a key of Amazon": rb"\bAKIA[A-Z0-9]{16}\b",
    "a password in an address": rb"://[^\s/:@'\"{}<>]+:[^\s/:@'\"{}<>]{3,}@[\w.-]+",
}


def run_contents(options: argparse.Namespace) -> None:
    """The step `contents`.

    Raises:
        ReleaseError: Something is in a package that should not be, or is missing.
    """
    packages = sorted([*options.dist.glob("*.tar.gz"), *options.dist.glob("*.whl")])
    if not packages:
        raise ReleaseError(f"{options.dist} holds no packages; take the step build first")
    problems = [text for path in packages for text in problems_of(path, options.version)]
    if problems:
        raise ReleaseError("\n  ".join(["", *problems]))
    print(run(sys.executable, "-m", "twine", "check", "--strict", *packages), end="")
    for path in packages:
        print(f"{path.name}: {path.stat().st_size / 1e6:.1f} MB, {len(files(path))} files")
    for path in options.dist.glob("*.whl"):
        print(f"{path.name}: {glibc_line(path)}")


def problems_of(package: Path, version: str) -> Iterator[str]:
    """The problems of a wheel or a source distribution."""
    content = files(package)
    if package.stat().st_size > MAX_BYTES:
        yield f"{package.name}: {package.stat().st_size / 1e6:.0f} MB; allowed: {MAX_BYTES / 1e6:.0f} MB"
    yield from _metadata(package, content, version)
    names = set(content)
    if package.suffix == ".whl":
        for name in sorted(names):
            if not name.startswith(("sparsesnn/", "sparsesnn-")):
                yield f"{package.name}: {name} lies outside the package"
        if not any(re.fullmatch(r"sparsesnn/_core\..*so", name) for name in names):
            yield f"{package.name}: the compiled engine (sparsesnn/_core*.so) is missing"
    elif compiled := sorted(name for name in names if name.endswith((".so", ".pyc", ".o"))):
        yield f"{package.name}: compiled files, such as {compiled[0]}"
    for name, data in content.items():
        yield from (f"{package.name}: {name}: {text}" for text in leaks(data))


def leaks(data: bytes) -> Iterator[str]:
    """Paths of this machine and secrets in the bytes of a file."""
    for place in sorted({str(ROOT), str(Path.home())}, key=len, reverse=True):  # one may lie within the other
        found = re.search(re.escape(place.encode()) + rb"/[\w./-]*", data)
        if len(place) > 1 and found:
            yield f"holds a path of this machine, {found[0].decode()}"
            break
    for meaning, pattern in SECRETS.items():
        for found in re.finditer(pattern, data):
            if not re.search(rb"user|name|example", found[0]):
                yield f"holds {meaning}"
                break


def files(package: Path) -> dict[str, bytes]:
    """The regular files of a wheel, or of a source distribution without its folder, by name."""
    if package.suffix == ".whl":
        with zipfile.ZipFile(package) as wheel:
            return {name: wheel.read(name) for name in wheel.namelist() if not name.endswith("/")}
    with tarfile.open(package) as sdist:
        read = {}
        for member in sdist.getmembers():
            file = sdist.extractfile(member) if member.isfile() else None
            if file:
                read[member.name.split("/", 1)[1]] = file.read()
        return read


def _metadata(package: Path, content: dict[str, bytes], version: str) -> Iterator[str]:
    names = [name for name in content if re.fullmatch(r"PKG-INFO|[^/]+\.dist-info/METADATA", name)]
    if len(names) != 1:
        yield f"{package.name}: {len(names)} files of metadata; one is expected"
        return
    found, project = HeaderParser().parsestr(content[names[0]].decode()), pyproject()["project"]
    expected = {
        "Name": project["name"],
        "Version": version,
        "Summary": project["description"],
        "License-Expression": project["license"],
        "Requires-Python": project["requires-python"],
    }
    for field, value in expected.items():
        if found[field] != value:
            yield f"{package.name}: {field} is '{found[field]}', not '{value}'"
    required = [text for text in found.get_all("Requires-Dist", []) if "extra ==" not in text]
    if len(required) != len(project["dependencies"]):
        yield f"{package.name}: requires {required}, pyproject.toml {project['dependencies']}"
    if not any(name.rpartition("/")[2] == "LICENSE" for name in content):
        yield f"{package.name}: LICENSE is missing"


def glibc_line(wheel: Path) -> str:
    """The tag that auditwheel finds, next to the one that docs/versions.md promises."""
    shown = subprocess.run(
        [sys.executable, "-m", "auditwheel", "show", wheel], capture_output=True, text=True, check=False
    )
    tags = re.findall(r'"(manylinux_(\d+)_(\d+)_\w+)"', shown.stdout)
    if shown.returncode or not tags:
        return f"auditwheel finds no manylinux tag: {' '.join((shown.stdout + shown.stderr).split())[-300:]}"
    tag, *found = tags[0]
    promised = re.search(r"glibc (\d+)\.(\d+) or newer", (ROOT / "docs" / "versions.md").read_text())
    if promised and tuple(map(int, found)) <= tuple(map(int, promised.groups())):
        return f"auditwheel says {tag}, which docs/versions.md promises"
    return f"auditwheel says {tag}, newer than docs/versions.md promises: for this machine only; publish those of wheels.yml"
