"""Quick checks: the version, the changelog, the state of the clone, and the preparations by a person."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from datetime import date
from pathlib import Path

from release.project import ROOT, ReleaseError, pyproject, run, say

#: headings in RELEASE.md: steps before the first release, and after each one
BEFORE, AFTER = "Before the first release", "After `./dev release` has passed"
#: files at fixed places that may hold example.org; workflows and issue forms are searched as well
PLACEHOLDERS = (
    "pyproject.toml",
    "CITATION.cff",
    "SECURITY.md",
    "CODE_OF_CONDUCT.md",
    "mkdocs.yml",
    "docs/site_hooks.py",
)


def problems_of(version: str, root: Path) -> list[str]:
    """The problems of a clone, one sentence each."""
    return [*versions(version, root), *changelog(version, root), *clone(version, root), *people(root)]


def versions(version: str, root: Path) -> Iterator[str]:
    """Every file that holds the version, or is of its form."""
    if not re.fullmatch(r"\d+\.\d+\.\d+((a|b|rc)\d+)?", version):
        yield f"the version is '{version}'; allowed: major.minor.patch, with a1, b1 or rc1 behind it for a preview"
    found = pyproject(root)["project"]["version"]
    if found != version:
        yield f"pyproject.toml: version is '{found}', not '{version}'; change one of them"
    cited = re.search(r"^version: (.+)$", (root / "CITATION.cff").read_text(), re.M)
    if not cited or cited[1] != version:
        yield f"CITATION.cff: version is '{cited[1] if cited else ''}', not '{version}'"


def changelog(version: str, root: Path) -> Iterator[str]:
    """The top section is that of the version, has a date, and is not empty."""
    sections = re.split(r"^## ", (root / "CHANGELOG.md").read_text(), flags=re.M)
    title, _, text = sections[1].partition("\n") if len(sections) > 1 else ("", "", "")
    wanted = f"## {version} ({date.today().isoformat()})"
    match = re.fullmatch(r"(\S+) \((\d{4}-\d\d-\d\d)\)", title)
    if not match or match[1] != version:
        yield f"CHANGELOG.md: the top section is '## {title}'; write '{wanted}'"
    if not re.search(r"^- ", text, re.M):
        yield f"CHANGELOG.md: the section '## {title}' lists no change"
    released = re.search(r"^date-released: (.+)$", (root / "CITATION.cff").read_text(), re.M)
    if match and (not released or released[1].strip("'\"") != match[2]):
        yield f"CITATION.cff: date-released is '{released[1] if released else ''}'; CHANGELOG.md has {match[2]}"


def clone(version: str, root: Path) -> Iterator[str]:
    """No uncommitted changes, and a free tag: packages are built from the commit."""
    changed = run("git", "status", "--porcelain", cwd=root).splitlines()
    if changed:
        yield f"the clone has {len(changed)} uncommitted changes ({changed[0].strip()}, …); commit them, or use a fresh clone"
    tagged = run("git", "tag", "--list", f"v{version}", cwd=root).strip()
    if tagged and run("git", "rev-list", "-n1", tagged, cwd=root) != run("git", "rev-parse", "HEAD", cwd=root):
        yield f"the tag v{version} exists and names another commit; a released version is not released again"


def people(root: Path) -> Iterator[str]:
    """Unticked boxes of RELEASE.md, and the placeholders that they speak of."""
    text = section((root / "RELEASE.md").read_text(), BEFORE)
    for item in re.findall(r"^- \[ \] ((?:.|\n(?!- |\n))+)", text, re.M):
        yield f"RELEASE.md: not done yet: {' '.join(item.split())}"
    files = [*PLACEHOLDERS, *sorted(str(path.relative_to(root)) for path in (root / ".github").rglob("*.yml"))]
    named = [name for name in files if "example.org" in (root / name).read_text()]
    if named:
        yield f"example.org stands in {', '.join(named)}; put the project's own addresses there"


def section(text: str, title: str) -> str:
    """The lines below a heading of the second level, up to the next one.

    Raises:
        ReleaseError: There is no such heading.
    """
    found = re.search(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", text, re.M | re.S)
    if not found:
        raise ReleaseError(f"RELEASE.md has no section '## {title}'")
    return found[1].strip()


def steps_for_a_person(text: str, version: str) -> str:
    return f"Now a person takes these steps (RELEASE.md):\n\n{section(text, AFTER).replace('VERSION', version)}"


def run_checks(options: argparse.Namespace) -> None:
    """The step `checks`.

    Raises:
        ReleaseError: A check failed, and this is not a rehearsal.
    """
    problems = problems_of(options.version, ROOT)
    if problems and not options.rehearse:
        raise ReleaseError("\n  ".join([f"{len(problems)} things are in the way of a release:", *problems]))
    for text in problems:
        say(f"a release would be refused: {text}")
