"""Additions of the documentation site to the pages in docs/: the files at the top of the source tree, the reference of commands and
options, pictures that the commands and examples themselves draw, and notebooks. A figure that its entry of the lab book does not have
ends the build.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import logging
import posixpath
import re
import runpy
import shutil
import sys
from pathlib import Path
from typing import Any

import cells  # next to this file

LOG = logging.getLogger("mkdocs.plugins.sparsesnn")
ROOT = Path(__file__).resolve().parent.parent
PICTURES = ROOT / "build" / "gallery"
#: pages that are made of files elsewhere
PAGES = {
    "index.md": "README.md",
    "architecture.md": "ARCHITECTURE.md",
    "contributing.md": "CONTRIBUTING.md",
    "changelog.md": "CHANGELOG.md",
    "security.md": "SECURITY.md",
    "roadmap.md": "ROADMAP.md",
    "release.md": "RELEASE.md",
    "conduct.md": "CODE_OF_CONDUCT.md",
    "rivals.md": "benchmarks/results/rivals.md",
    "ipu-predictions.md": "benchmarks/results/ipu-predictions.md",
}
#: what draws the pictures; OUT is their folder, NEURON the example of a neuron model
COMMANDS = [
    "sparsesnn train digits --epochs 8 --out OUT/run --threads 1 --no-tensorboard --quiet",
    "sparsesnn show OUT/run --sample 3",
    "sparsesnn show OUT/run --sample 5 --neurons 0 --out OUT/spikes.png",
    "sparsesnn train digits --neuron NEURON --net-neuron ALIF --epochs 8 --out OUT/own --threads 1 --no-tensorboard --quiet",
    "sparsesnn show OUT/own --neuron NEURON --sample 3",
    "sparsesnn data show digits --split test --sample 3 --out OUT/data.png",
    "examples/camera_events.py OUT/bars.npz",
    "sparsesnn data show OUT/bars.npz --sample 1 --out OUT/bars.png",
    "sparsesnn data show OUT/bars.npz --sample 1 --out OUT/bars.gif",
    "sparsesnn train events --data OUT/bars.npz --out OUT/bars --epochs 8 --threads 1 --no-tensorboard --quiet",
]
#: the pictures by their names on the site
SHOWN = {
    **{f"{name}.png": f"run/{name}.png" for name in ("sample-3", "curves", "activity", "confusion")},
    **{name: name for name in ("spikes.png", "data.png", "bars.png", "bars.gif")},
    "bars-confusion.png": "bars/confusion.png",
    "own.png": "own/sample-3.png",
}
NOTEBOOK = "notebooks/tutorial.ipynb"


def on_pre_build(config: Any) -> None:
    """Checks figures, and draws the pictures that are not there yet."""
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").glob("**/*.md"))]:
        if path.parent.name != "lab":
            for complaint in unproved_figures(path.read_text(encoding="utf-8"), path.parent):
                LOG.warning("%s: %s", path.name, complaint)
    if all((PICTURES / name).exists() for name in SHOWN.values()):
        return
    shutil.rmtree(PICTURES, ignore_errors=True)
    PICTURES.mkdir(parents=True)
    for command in COMMANDS:
        _start(command.replace("OUT", str(PICTURES)).replace("NEURON", f"{ROOT}/examples/own_neuron.py:ALIF").split())


def _start(words: list[str]) -> None:
    """Runs a command in this process, where PyTorch and Matplotlib are imported once."""
    from sparsesnn.cli import main

    before = sys.argv
    with contextlib.redirect_stdout(io.StringIO()):
        if words[0].endswith(".py"):
            sys.argv = words
            runpy.run_path(str(ROOT / words[0]), run_name="__main__")
        elif main(words[1:]) != 0:
            raise RuntimeError(f"{' '.join(words)}: ended with an error")
    sys.argv = before


def on_files(files: Any, config: Any) -> Any:
    """Adds the pages and pictures that are not in docs/."""
    from mkdocs.structure.files import File

    for name, source in PAGES.items():
        text = (ROOT / source).read_text(encoding="utf-8")
        files.append(File.generated(config, name, content=_moved(text, Path(source).parent)))
    files.append(File.generated(config, "reference/commands.md", content=f"{_commands()}\n\n{_options()}\n"))
    for name, source in SHOWN.items():
        files.append(File.generated(config, f"gallery/{name}", abs_src_path=str(PICTURES / source)))
    tutorial = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")
    files.append(File.generated(config, NOTEBOOK, content=json.dumps(cells.from_page(tutorial), indent=1)))
    for path in sorted(cells.NOTEBOOKS.glob("*.ipynb")):
        text, pictures = cells.page(json.loads(path.read_text(encoding="utf-8")), path.stem)
        files.append(File.generated(config, f"notebooks/{path.stem}.md", content=text))
        for name, picture in pictures.items():
            files.append(File.generated(config, f"notebooks/{name}", content=picture))
    for plot in sorted((ROOT / "benchmarks" / "results").glob("*.png")):
        files.append(File.generated(config, plot.name, abs_src_path=str(plot)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Links out of docs/ lead to the page that is made of a file, or to the source."""
    markdown = re.sub(r"<!-- arguments of (\w+) -->", lambda match: _arguments(match[1]), markdown)
    source = Path(page.file.src_uri)
    return markdown if page.file.src_uri in PAGES else _moved(markdown, "docs" / source.parent, source.parent)


def on_page_content(html: str, page: Any, config: Any, files: Any) -> str:
    """A public name without its documentation ends the build."""
    for name in re.findall(r"::: ([\w.]+)", html):
        LOG.warning("%s: '::: %s' is shown as text; leave an empty line before it", page.file.src_uri, name)
    return html


def unproved_figures(markdown: str, folder: Path) -> list[str]:
    """Figures of a page in `folder` that the entry of the lab book, or the results, to which they are linked does not have.

    A link to a measurement vouches for the figures in its text, and in a table for those of its row.
    """
    complaints = []
    for block in re.split(r"\n(?=\|)|\n\n", re.sub(r"```.*?```", "", markdown, flags=re.DOTALL)):
        links = re.findall(r"\[([^\]]+)\]\(([^)#\s]*(?:lab/\d{4}-|benchmarks/results/)[\w/-]+\.md)[^)]*\)", block)
        known = {
            name: _figures((folder / name).read_text(encoding="utf-8")) for _, name in links if (folder / name).exists()
        }
        claims = [(block, set(known))] if block.startswith("|") and links else [(text, {name}) for text, name in links]
        for text, names in claims:
            missing = _figures(text) - {figure for name in names for figure in known.get(name, ())}
            if missing:
                complaints.append(f"{', '.join(sorted(names))}: not there: {', '.join(sorted(missing))}")
    return complaints


def _figures(text: str) -> set[str]:
    """The numbers of a text, without those of code, links and networks such as 700-256-20."""
    text = re.sub(r"`[^`]*`|\]\([^)]*\)|\b\w+(?:-\w+)*-\d+\b", " ", text)
    return {figure.replace(",", "") for figure in re.findall(r"(?<![\w.])\d[\d,]*(?:\.\d+)?", text)}


def _moved(text: str, folder: Path, site_folder: Path = Path()) -> str:
    """Relative links of a file in `folder` of the source tree as links of a page in `site_folder` of the site."""
    pages = {source: page for page, source in PAGES.items()}

    def link(match: re.Match[str]) -> str:
        target, _, anchor = match[2].partition("#")
        if not target or "://" in target or target.startswith("mailto:"):
            return match[0]
        path = (ROOT / folder / target).resolve().relative_to(ROOT).as_posix()
        if path in pages:
            place = pages[path]
        elif path.endswith(".ipynb") and (ROOT / path).exists() and site_folder.name != "notebooks":
            place = path.removeprefix("docs/").replace(".ipynb", ".md")
        elif path.startswith("docs/"):
            place = path.removeprefix("docs/")
        elif path.startswith("benchmarks/results/") and path.endswith(".png"):
            place = path.rpartition("/")[2]
        else:
            place = f"https://example.org/sparsesnn/source/{path}"
        if "://" not in place:
            place = posixpath.relpath(place, site_folder)
        return f"{match[1]}({place}{f'#{anchor}' if anchor else ''})"

    # no links within code
    parts = re.split(r"(```.*?```|`[^`\n]*`)", text, flags=re.DOTALL)
    parts[::2] = [re.sub(r"(\])\(([^)\s]+)\)", link, part) for part in parts[::2]]
    return "".join(parts) if len(parts) > 1 else parts[0]


def _arguments(model: str) -> str:
    """The arguments of a neuron model, which its options declare and its source does not spell out."""
    import sparsesnn
    from sparsesnn.options import options_of

    rows = [
        f"| `{name}` | {known.meaning} | `{known.default!r}` |"
        for name, known in options_of(getattr(sparsesnn, model)).items()
    ]
    head = f"Arguments of `{model}`; the first is `n`, the number of neurons."
    return "\n".join([head, "", "| Argument | Meaning | Default |", "|---|---|---|", *rows])


def _options() -> str:
    """Every option of a configuration: section.key, meaning, default."""
    from sparsesnn.config.run import all_options

    rows = [
        f"| `{name}` | {known.meaning} | `{known.default!r}` |".replace("\n", " ")
        for name, known in all_options().items()
    ]
    return "\n".join(
        [
            "## Options of a run",
            "",
            "Each is a flag, `--section.key VALUE`, and a key of a TOML file; `sparsesnn train NAME --print-config` prints those of a data set.",
            "",
            "| Option | Meaning | Default |",
            "|---|---|---|",
            *rows,
        ]
    )


def _commands() -> str:
    """The help of every command."""
    from sparsesnn.cli import _parser

    parts = [
        "# Commands and options",
        "",
        "This page has the help of every command, and every [option of a run](#options-of-a-run). Exit codes: 0 done, 1 an error, 2 a wrong",
        "option or configuration, 128 + signal when stopped.",
        "",
    ]

    def add(parser: argparse.ArgumentParser) -> None:
        parser.parse_known_args([]) if getattr(parser, "fill", None) else None
        parts.extend([f"## {parser.prog}", "", "```text", parser.format_help().rstrip(), "```", ""])
        for action in parser._actions:
            if isinstance(action, argparse._SubParsersAction):
                for below in action.choices.values():
                    add(below)

    add(_parser())
    return "\n".join(parts)
