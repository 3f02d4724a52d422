"""Notebooks of the documentation: made from a page, run, and shown as a page with their outputs.

python docs/cells.py                  runs docs/notebooks/*.ipynb and stores their outputs
python docs/cells.py speech.ipynb     this one
"""

from __future__ import annotations

import ast
import base64
import contextlib
import io
import json
import re
import sys
from pathlib import Path
from typing import Any
from unittest import mock

NOTEBOOKS = Path(__file__).resolve().parent / "notebooks"
HEAD = {
    "metadata": {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    },
    "nbformat": 4,
    "nbformat_minor": 4,
}


def from_page(text: str) -> dict[str, Any]:
    """A page as a Jupyter notebook (format 4.4): a cell for each block of Python and for the text between two of them."""
    cells: list[dict[str, Any]] = []
    for k, part in enumerate(re.split(r"^```python\n(.*?)^```\n", text, flags=re.DOTALL | re.MULTILINE)):
        lines = part.strip("\n").splitlines(keepends=True)
        code: dict[str, Any] = {
            "cell_type": "code",
            "execution_count": None,
            "metadata": {},
            "outputs": [],
            "source": lines,
        }
        if lines:
            cells.append(code if k % 2 else {"cell_type": "markdown", "metadata": {}, "source": lines})
    return {"cells": cells, **HEAD}


def code_cells(notebook: dict[str, Any]) -> list[dict[str, Any]]:
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def run(notebook: dict[str, Any], name: str) -> list[list[dict[str, Any]]]:
    """The outputs of each code cell: text, the value of a last expression, and a picture for each `plt.show()`."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    session: dict[str, Any] = {"__name__": "__main__"}
    outputs: list[dict[str, Any]] = []

    def show() -> None:
        for number in pyplot.get_fignums():
            data = io.BytesIO()
            pyplot.figure(number).savefig(data, format="png", dpi=80, bbox_inches="tight")
            picture = base64.b64encode(data.getvalue()).decode()
            outputs.append({"data": {"image/png": picture}, "metadata": {}, "output_type": "display_data"})
        pyplot.close("all")

    results = []
    with mock.patch.object(pyplot, "show", show):
        for count, cell in enumerate(code_cells(notebook), start=1):
            outputs.clear()
            printed = io.StringIO()
            with contextlib.redirect_stdout(printed):
                value = _execute("".join(cell["source"]), f"{name}, cell {count}", session)
            found = list(outputs)
            if printed.getvalue():
                lines = printed.getvalue().splitlines(keepends=True)
                found.insert(0, {"name": "stdout", "output_type": "stream", "text": lines})
            if value is not None:
                data = {"text/plain": repr(value).splitlines(keepends=True)}
                found.append({"data": data, "execution_count": count, "metadata": {}, "output_type": "execute_result"})
            results.append(found)
    pyplot.close("all")
    return results


def _execute(source: str, name: str, session: dict[str, Any]) -> Any:
    """The value of the last statement, if it is an expression."""
    tree = ast.parse(source, name)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, name, "exec", dont_inherit=True), session)
    if isinstance(last, ast.Expr):
        return eval(compile(ast.Expression(last.value), name, "eval", dont_inherit=True), session)
    return None


def page(notebook: dict[str, Any], name: str) -> tuple[str, dict[str, bytes]]:
    """The notebook as Markdown with its outputs, and the pictures by their names."""
    parts: list[str] = []
    pictures: dict[str, bytes] = {}
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
            continue
        parts.append(f"```python\n{source}\n```")
        for output in cell["outputs"]:
            data = output.get("data", {})
            if "image/png" in data:
                picture = f"{name}-{len(pictures) + 1}.png"
                pictures[picture] = base64.b64decode(data["image/png"])
                parts.append(f"![The picture that the cell above draws]({picture})")
            else:
                text = "".join(output.get("text") or data["text/plain"]).rstrip()
                parts.append(f"```text\n{text}\n```")
    parts.insert(1, f"This page is a notebook, with the outputs of its last run: [download it]({name}.ipynb).")
    return "\n\n".join(parts) + "\n", pictures


def main(names: list[str]) -> None:
    for path in [NOTEBOOKS / name for name in names] or sorted(NOTEBOOKS.glob("*.ipynb")):
        notebook = json.loads(path.read_text(encoding="utf-8"))
        for count, (cell, outputs) in enumerate(
            zip(code_cells(notebook), run(notebook, path.name), strict=True), start=1
        ):
            cell["execution_count"], cell["outputs"] = count, outputs
        path.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
