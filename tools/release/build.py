"""Builds the source distribution and the wheels of the committed state, and builds them again to compare the bytes.

Files come from `git archive`, so nothing uncommitted gets in. Wheels are built from the source distribution, one for each Python that
needs its own wheel. Their time stamps are the commit's (SOURCE_DATE_EPOCH). A compiler cache speeds this up: CMAKE_CXX_COMPILER_LAUNCHER=ccache.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import tarfile
from pathlib import Path

from release.project import ROOT, WORK, ReleaseError, environment, interpreters, pyproject, run, say


def run_build(options: argparse.Namespace) -> None:
    """The step `build`: fills dist/VERSION, with SHA256SUMS, and COMMIT, from which the packages are built."""
    shutil.rmtree(options.dist, ignore_errors=True)
    commit = run("git", "rev-parse", "HEAD").strip()
    build_all(options, commit, options.dist, WORK / "first")
    (options.dist / "COMMIT").write_text(f"{commit}\n")
    sums = checksums(options.dist)
    (options.dist / "SHA256SUMS").write_text("".join(f"{digest}  {name}\n" for name, digest in sums.items()))
    print((options.dist / "SHA256SUMS").read_text(), end="")


def run_again(options: argparse.Namespace) -> None:
    """The step `same-bytes`.

    Raises:
        ReleaseError: A second build, in folders of other names, has other bytes.
    """
    again = WORK / "again"
    if not (options.dist / "COMMIT").exists():
        raise ReleaseError(f"{options.dist} holds no packages to compare with; take the step build first")
    build_all(
        options, (options.dist / "COMMIT").read_text().strip(), again / "dist", again / "in-a-folder-with-a-longer-name"
    )
    first, second = checksums(options.dist), checksums(again / "dist")
    if first != second:
        differ = sorted(name for name in first | second if first.get(name) != second.get(name))
        raise ReleaseError(
            f"built twice, these differ: {', '.join(differ)}; compare {options.dist} with {again / 'dist'} (diffoscope shows where)"
        )
    print(f"{len(first)} files, built twice in different folders: the same bytes")


def build_all(options: argparse.Namespace, commit: str, dist: Path, work: Path) -> None:
    """Writes the source distribution of a commit, and a wheel for each interpreter, into `dist`."""
    shutil.rmtree(work, ignore_errors=True)
    shutil.rmtree(dist, ignore_errors=True)
    work.mkdir(parents=True)
    dist.mkdir(parents=True)
    tree = work / "tree"
    tree.mkdir()
    run("git", "archive", "--output", work / "tree.tar", commit)
    with tarfile.open(work / "tree.tar") as archive:
        archive.extractall(tree, filter="data")
    # The environment's compiler and cache remain; its paths of Python modules do not.
    env = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
    env["SOURCE_DATE_EPOCH"] = run("git", "log", "-1", "--format=%ct", commit).strip()
    source = None
    for version, python in interpreters(options, tried=False).items():
        builder = build_environment(python, WORK / f"build-{version}")
        if source is None:
            code = f"import scikit_build_core.build as b; b.build_sdist({str(dist)!r})"
            run(builder, "-c", code, cwd=tree, env=env)
            (sdist,) = dist.glob("*.tar.gz")
            with tarfile.open(sdist) as archive:
                archive.extractall(work, filter="data")
            source = work / sdist.name.removesuffix(".tar.gz")
        say(f"wheel for Python {version}")
        options_of_pip = ("--no-deps", "--no-build-isolation", "--no-cache-dir", "--wheel-dir", dist)
        run(builder, "-m", "pip", "wheel", *options_of_pip, source, cwd=work, env=env)


def build_environment(python: Path, folder: Path) -> Path:
    """An environment with the build tools, in the versions that pyproject.toml pins; returns its Python. It is kept."""
    builder = folder / "bin" / "python"
    if not builder.exists():
        builder = environment(python, folder)
    pinned = [text for text in pyproject()["project"]["optional-dependencies"]["dev"] if text.startswith("nanobind==")]
    tools = [*pinned, *(text for text in pyproject()["build-system"]["requires"] if "nanobind" not in text)]
    run(builder, "-m", "pip", "install", "--quiet", *tools, "ninja>=1.11", "cmake>=3.20", cwd=ROOT)
    return builder


def checksums(folder: Path) -> dict[str, str]:
    """SHA-256 by name of the packages in a folder."""
    packages = sorted([*folder.glob("*.tar.gz"), *folder.glob("*.whl")])
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in packages}
