"""Figures of matplotlib: no global state, no window, and a file that is whole or not there."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from sparsesnn.errors import ConfigError, MissingDependencyError
from sparsesnn.whole_file import whole_file

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# colours that people with any colour vision can tell apart (Okabe & Ito 2008)
BLUE, ORANGE, GREEN, RED, GREY = "#0072b2", "#e69f00", "#009e73", "#d55e00", "#999999"
CYCLE = (BLUE, ORANGE, GREEN, "#cc79a7", "#56b4e9", RED, "#f0e442", "#000000")


def new_figure(width: float, height: float) -> Figure:
    """An empty figure of so many inches."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingDependencyError("matplotlib", "plot", "drawing plots") from error
    return Figure(figsize=(width, height), layout="constrained")


def save(figure: Figure, path: Path, title: str) -> None:
    """Writes the figure in the format that the suffix names: png, svg or pdf."""
    kind = path.suffix[1:].lower()
    if kind not in ("png", "svg", "pdf"):
        raise ConfigError(f"plot: {path} ends in {path.suffix!r}; end its name in .png, .svg or .pdf")
    figure.suptitle(title, fontsize=10)
    with whole_file(path) as temporary:
        figure.savefig(temporary, dpi=120, format=kind)
