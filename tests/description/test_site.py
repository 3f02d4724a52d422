"""The documentation site has every public name, with a docstring that explains its arguments; its links lead somewhere."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import json
import re
import shlex
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

import sparsesnn as ss
from sparsesnn.cli import _parser

ROOT = Path(__file__).resolve().parents[2]
REFERENCE = "\n".join(path.read_text() for path in sorted((ROOT / "docs" / "reference").glob("*.md")))
NAMES = re.findall(r"^::: (\S+)$", REFERENCE, re.MULTILINE)


def load(name: str) -> Any:
    """The object of a dotted name."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        module, _, rest = name.rpartition(".")
        return getattr(importlib.import_module(module), rest)


def test_every_public_name_has_a_place() -> None:
    shown = {name.rpartition(".")[2] for name in NAMES}
    missing = [name for name in ss.__all__ if name not in shown and name != "__version__"]
    assert missing == []


@pytest.mark.parametrize("name", NAMES)
def test_every_name_exists_and_says_what_it_takes(name: str) -> None:
    found = load(name)
    text = inspect.getdoc(found) or ""
    assert text, f"{name} has no docstring"
    if not inspect.isfunction(found):
        return
    arguments = [a for a in inspect.signature(found).parameters if a not in ("self", "defaults")]
    missing = [a for a in arguments if not re.search(rf"`?\b{a}\b", text)]
    assert missing == [], f"{name} says nothing of {missing}"


def test_links_of_the_pages_lead_to_files() -> None:
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        text = re.sub(r"```.*?```|`[^`\n]*`", "", page.read_text(), flags=re.DOTALL)
        for target in re.findall(r"\]\(([^)\s#]+)[^)]*\)", text):
            made = target.startswith(("gallery/", "notebooks/")) or "://" in target
            assert made or not re.match(r"[\w./-]+\.\w+$", target) or (page.parent / target).exists(), (
                f"{page.name}: {target}"
            )


def test_links_lead_to_headings() -> None:
    """As the site's build names them."""
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
        for target, anchor in re.findall(r"\]\(([\w./-]*\.md)?#([^)\s]+)\)", text):
            found = (page.parent / target if target else page).read_text()
            headings = re.findall(r"^#+ (.+)$", re.sub(r"```.*?```", "", found, flags=re.DOTALL), re.MULTILINE)
            named = {re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", x).strip().lower()) for x in headings}
            assert anchor in named, f"{page.name}: {target}#{anchor}"


def test_the_lab_book_lists_its_entries() -> None:
    lab = ROOT / "docs" / "lab"
    rows = re.findall(r"^\| (\S+) \| \[.+\]\((\S+)\) \|", (lab / "index.md").read_text(), re.MULTILINE)
    assert sorted(name for _, name in rows) == sorted(path.name for path in lab.glob("*.md") if path.stem != "index")
    for date, name in rows:
        assert re.fullmatch(r"\d{4}-\d\d-\d\d", date)
        assert name.startswith(f"{date}-")
        assert (lab / name).read_text().startswith(f"# {date}: ")


def site_hooks() -> Any:
    """docs/site_hooks.py, which mkdocs loads."""
    sys.path.insert(0, str(ROOT / "docs"))  # as mkdocs does
    spec = importlib.util.spec_from_file_location("site_hooks", ROOT / "docs" / "site_hooks.py")
    assert spec is not None
    assert spec.loader is not None
    hooks = importlib.util.module_from_spec(spec)
    sys.modules["site_hooks"] = hooks
    spec.loader.exec_module(hooks)
    sys.path.remove(str(ROOT / "docs"))
    return hooks


def test_the_tutorial_is_a_notebook() -> None:
    text = (ROOT / "docs" / "tutorial.md").read_text()
    made = site_hooks().cells.from_page(text)
    code = ["".join(cell["source"]) for cell in made["cells"] if cell["cell_type"] == "code"]
    assert code == [block.strip("\n") for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL)]
    words = "".join("".join(cell["source"]) for cell in made["cells"] if cell["cell_type"] == "markdown")
    assert words.startswith("# Tutorial")
    assert "```python" not in words
    nbformat = pytest.importorskip("nbformat", reason="nbformat is optional")
    nbformat.validate(made)


def pages() -> dict[str, str]:
    """The written pages of the manual's four groups."""
    groups = re.findall(
        r"^  - (Tutorials|How-to|Reference|Explanation):\n((?:      - .+\n)+)",
        (ROOT / "mkdocs.yml").read_text(),
        re.MULTILINE,
    )
    assert [name for name, _ in groups] == ["Tutorials", "How-to", "Reference", "Explanation"]
    names = [name for _, rows in groups for name in re.findall(r"- (\S+\.md)", rows)]
    return {name: (ROOT / "docs" / name).read_text() for name in names if (ROOT / "docs" / name).exists()}


def test_the_manual_is_short() -> None:
    found = pages()
    assert 10 < len(found) <= 20
    for name, text in found.items():
        assert len(text.splitlines()) <= 200, name
        head, first = text.split("\n\n", 2)[:2]
        assert head.startswith("# "), name
        assert first.startswith("This page "), f"{name}: the first sentence names the purpose"
        for part in re.sub(r"```.*?```", "", text, flags=re.DOTALL).split("\n\n"):
            for paragraph in re.split(r"\n(?=[-*] |\d+\. )", part):
                lines = [x for x in paragraph.splitlines() if not x.startswith(("|", "    ", ":::", "<!--"))]
                assert len(lines) <= 6, f"{name}: {paragraph[:60]!r} has {len(lines)} lines"
                assert all(len(x) <= 120 or "](" in x for x in lines), f"{name}: a long line in {paragraph[:60]!r}"


def test_every_page_is_in_the_navigation() -> None:
    shown = re.findall(r"^ +- (?:[\w ]+: )?(\S+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    written = {p.relative_to(ROOT / "docs").as_posix() for p in (ROOT / "docs").rglob("*.md") if p.parent.name != "lab"}
    assert written <= set(shown)
    for name in set(shown) - written - set(site_hooks().PAGES) - {"lab/index.md", "reference/commands.md"}:
        assert (ROOT / "docs" / name).with_suffix(".ipynb").exists(), name


def test_figures_are_those_of_their_entries() -> None:
    hooks = site_hooks()
    texts = {path: path.read_text() for path in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]}
    for path, text in texts.items():
        assert hooks.unproved_figures(text, path.parent) == [], path.name
    race = "docs/lab/2026-11-28-race.md"
    assert len(re.findall(r"3,221", texts[ROOT / "README.md"])) == 1
    assert hooks.unproved_figures(f"[3,222 samples/s]({race})", ROOT) == [f"{race}: not there: 3222"]
    assert hooks.unproved_figures(f"| [Zen 4]({race}) | 3,221 | 700-256-20 `9876` |", ROOT) == []
    assert hooks.unproved_figures(f"| [Zen 4]({race}) | 3,222 |", ROOT) == [f"{race}: not there: 3222"]
    assert (
        hooks.unproved_figures("[a third](lab/2026-01-01-missing.md)", ROOT) == []
    )  # a dead link ends the build itself


@pytest.mark.slow
@pytest.mark.parametrize("path", sorted((ROOT / "docs" / "notebooks").glob("*.ipynb")), ids=lambda path: path.stem)
def test_notebooks_run_as_they_stand(path: Path) -> None:
    """Their outputs are stored, of the kinds that a run has now. After a change: python docs/cells.py"""
    pytest.importorskip("matplotlib", reason="notebooks draw pictures")
    if path.stem == "snntorch":
        pytest.importorskip("snntorch", reason="the notebook converts a network of snnTorch")
    cells = site_hooks().cells
    notebook = json.loads(path.read_text(encoding="utf-8"))
    stored = [[(x["output_type"], sorted(x.get("data", ()))) for x in c["outputs"]] for c in cells.code_cells(notebook)]
    began = time.process_time()
    found = cells.run(notebook, path.name)
    assert time.process_time() - began < 60
    assert [[(x["output_type"], sorted(x.get("data", ()))) for x in outputs] for outputs in found] == stored
    assert any("image/png" in kinds for outputs in stored for _, kinds in outputs)
    text, pictures = cells.page(notebook, path.stem)
    assert text.startswith("# ")
    assert all(f"]({name})" in text and data.startswith(b"\x89PNG") for name, data in pictures.items())


def test_links_move_with_a_page() -> None:
    hooks = site_hooks()
    moved = hooks._moved("[a](docs/data.md#x) [b](CHANGELOG.md) [c](dev) [d](https://x.y) `[e](f.md)`", Path())
    assert moved == (
        "[a](data.md#x) [b](changelog.md) [c](https://example.org/sparsesnn/source/dev) [d](https://x.y) `[e](f.md)`"
    )
    assert hooks._moved("[a](../examples/loggers.py)", Path("docs")).endswith("source/examples/loggers.py)")
    entry = "[a](../speed.md) [b](index.md#x) [c](../../ARCHITECTURE.md) [d](../../benchmarks/README.md)"
    assert hooks._moved(entry, Path("docs/lab"), Path("lab")) == (
        "[a](../speed.md) [b](index.md#x) [c](../architecture.md) [d](https://example.org/sparsesnn/source/benchmarks/README.md)"
    )
    assert "| `optim.lr` |" in hooks._options()
    assert "--init-from" in hooks._commands()
    for model in re.findall(r"<!-- arguments of (\w+) -->", REFERENCE):
        assert "| `beta` |" in hooks._arguments(model)


def test_the_commands_of_the_readme_are_known() -> None:
    text = "\n".join(re.findall(r"```sh\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL))
    commands = re.findall(r"^(?:mpirun -n \d+ )?sparsesnn ([^#\n]+)", text, re.MULTILINE)
    assert len(commands) >= 7
    for command in commands:
        options, unknown = _parser().parse_known_args(shlex.split(command))
        assert (options.command, unknown) == (command.split()[0], [])
    scripts = re.findall(r"^\./dev (\w+) +#", text, re.MULTILINE)
    assert scripts == ["demo", "test"]
    known = (ROOT / "dev").read_text()
    assert all(re.search(rf"^  {script} ", known, re.MULTILINE) for script in scripts)


def test_every_benchmark_has_a_name() -> None:
    scripts = [path for path in ROOT.glob("benchmarks/*.py") if "__main__" in path.read_text()]
    names = {path.stem.replace("_", "-") for path in scripts} | {
        "rivals",
        "sweep",
        "convergence",
        "roofline",
        "loading",
    }
    refused = subprocess.run([ROOT / "dev", "bench", "nothing"], capture_output=True, text=True)
    assert refused.returncode == 1
    assert set(refused.stderr.split("allowed: ")[1].strip().split(", ")) == names
    text = subprocess.run([ROOT / "dev", "help"], capture_output=True, text=True, check=True).stdout
    readme = (ROOT / "benchmarks" / "README.md").read_text()
    for name in names:
        assert re.search(rf"\b{name}: ", text), name
        assert re.search(rf"^\./dev bench {name}\b", readme, re.MULTILINE), name


def test_the_code_of_the_readme_runs() -> None:
    text = (ROOT / "README.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    session: dict[str, object] = {"spikes": torch.zeros(3, 2, 700)}
    exec(code, session)
