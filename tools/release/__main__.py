"""./dev release VERSION: everything that a release needs and that a machine can do.

Quick checks come first, and all their problems are printed together. Then each step stops at its first problem. Nothing is published:
the last lines name the steps for a person, from RELEASE.md. Packages are in dist/VERSION, work files in build/release.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Callable

from release import build, checks, contents, installs
from release.project import ROOT, ReleaseError, minor_versions, say

Step = Callable[[argparse.Namespace], None]


def command(*words: str) -> Step:
    """A step that runs a command of ./dev."""

    def step(_: argparse.Namespace) -> None:
        if subprocess.run([ROOT / "dev", *words], check=False).returncode:
            raise ReleaseError(f"./dev {' '.join(words)} failed; see its output above")

    return step


STEPS: dict[str, Step] = {
    "checks": checks.run_checks,
    "lint": command("lint"),
    "tests": command("test", "--all"),
    "documents": command("docs"),
    "build": build.run_build,
    "same-bytes": build.run_again,
    "contents": contents.run_contents,
    "installs": installs.run_installs,
}


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="./dev release", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("version", help="as in pyproject.toml, such as 0.1.0")
    parser.add_argument(
        "--rehearse", action="store_true", help="print the problems of the quick checks, and continue anyway"
    )
    parser.add_argument(
        "--only", nargs="+", choices=STEPS, metavar="STEP", help=f"only these steps; a rehearsal: {', '.join(STEPS)}"
    )
    parser.add_argument(
        "--pythons", nargs="+", metavar="3.N", help="only these interpreters; a rehearsal (all that are found)"
    )
    parser.add_argument(
        "--torch", default="", help="where the tried installations take PyTorch from: see ./dev --torch"
    )
    options = parser.parse_args(arguments)
    for text in options.pythons or []:
        if text not in minor_versions(tried=True):
            parser.error(f"--pythons {text}; allowed: {', '.join(minor_versions(tried=True))}")
    options.rehearse = bool(options.rehearse or options.only or options.pythons)
    options.dist = ROOT / "dist" / options.version
    return options


def main(arguments: list[str] | None = None) -> int:
    """0 if every step passed."""
    options = parse(arguments)
    for name in options.only or STEPS:
        say(f"{name}")
        start = time.monotonic()
        try:
            STEPS[name](options)
        except ReleaseError as problem:
            print(f"release: {name}: {problem}", file=sys.stderr)
            return 1
        say(f"{name}: passed in {time.monotonic() - start:.0f} s")
    if options.rehearse:
        print("A rehearsal ends here. A release takes every step, with every interpreter, and without --rehearse.")
    else:
        print(checks.steps_for_a_person((ROOT / "RELEASE.md").read_text(), options.version))
    return 0


if __name__ == "__main__":
    sys.exit(main())
