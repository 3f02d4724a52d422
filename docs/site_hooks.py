"""What the documentation site has beyond the pages in docs/: the files at the top of the source tree, the reference of options and
commands, the pictures of the gallery, which the commands and examples themselves draw, and the tutorial as a notebook.
"""

from __future__ import annotations

import argparse
import json
import posixpath
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

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
    """Draws the pictures that are not there yet."""
    if all((PICTURES / name).exists() for name in SHOWN.values()):
        return
    subprocess.run(["rm", "-rf", str(PICTURES)], check=True)
    PICTURES.mkdir(parents=True)
    for command in COMMANDS:
        words = command.replace("OUT", str(PICTURES)).replace("NEURON", f"{ROOT}/examples/own_neuron.py:ALIF").split()
        start = [str(ROOT / words[0])] if words[0].endswith(".py") else ["-m", words[0]]
        subprocess.run([sys.executable, *start, *words[1:]], check=True, stdout=subprocess.DEVNULL)


def on_files(files: Any, config: Any) -> Any:
    """Adds the pages and pictures that are not in docs/."""
    from mkdocs.structure.files import File

    for name, source in PAGES.items():
        text = (ROOT / source).read_text(encoding="utf-8")
        files.append(File.generated(config, name, content=_moved(text, Path(source).parent)))
    files.append(File.generated(config, "reference/options.md", content=_options()))
    files.append(File.generated(config, "reference/commands.md", content=_commands()))
    for name, source in SHOWN.items():
        files.append(File.generated(config, f"gallery/{name}", abs_src_path=str(PICTURES / source)))
    tutorial = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")
    files.append(File.generated(config, NOTEBOOK, content=json.dumps(notebook(tutorial), indent=1)))
    for picture in sorted((ROOT / "benchmarks" / "results").glob("*.png")):
        files.append(File.generated(config, picture.name, abs_src_path=str(picture)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Links out of docs/ lead to the page that is made of a file, or to the source."""
    markdown = re.sub(r"<!-- arguments of (\w+) -->", lambda match: _arguments(match[1]), markdown)
    source = Path(page.file.src_uri)
    return markdown if page.file.src_uri in PAGES else _moved(markdown, "docs" / source.parent, source.parent)


def notebook(text: str) -> dict[str, Any]:
    """A page as a Jupyter notebook (format 4.4): a cell for each block of Python and for the text between two of them."""
    cells: list[dict[str, Any]] = []
    for k, part in enumerate(re.split(r"^```python\n(.*?)^```\n", text, flags=re.DOTALL | re.MULTILINE)):
        lines = part.strip("\n").splitlines(keepends=True)
        code = {"cell_type": "code", "execution_count": None, "metadata": {}, "outputs": [], "source": lines}
        if lines:
            cells.append(code if k % 2 else {"cell_type": "markdown", "metadata": {}, "source": lines})
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    metadata = {"kernelspec": kernel, "language_info": {"name": "python"}}
    return {"cells": cells, "metadata": metadata, "nbformat": 4, "nbformat_minor": 4}


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
            "# Options of a run",
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
        "# Commands",
        "",
        "Exit codes: 0 done, 1 an error, 2 a wrong option or configuration, 128 + signal when stopped.",
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
