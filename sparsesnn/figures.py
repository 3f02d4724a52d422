"""Matplotlib figures: no global state, no window, and files that are written whole or not at all."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from sparsesnn.errors import ConfigError, MissingDependencyError, PictureError, SparseSnnError
from sparsesnn.whole_file import whole_file
from sparsesnn.wording import printable

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# colors that are distinguishable with any color vision (Okabe & Ito 2008)
BLUE, ORANGE, GREEN, RED, GRAY = "#0072b2", "#e69f00", "#009e73", "#d55e00", "#999999"
CYCLE = (BLUE, ORANGE, GREEN, "#cc79a7", "#56b4e9", RED, "#f0e442", "#000000")


#: most characters of a name in a picture
_MOST_CHARACTERS = 60


def import_matplotlib() -> None:
    """Imports matplotlib, also if MPLBACKEND names a missing backend: figures in files need none.

    Jupyter sets MPLBACKEND for the kernel's child processes as well, whose Python may lack that package.

    Errors: `MissingDependencyError` without matplotlib; `PictureError` if its import fails.
    """
    is_new = "matplotlib" not in sys.modules
    try:
        try:
            import matplotlib.figure
        except ImportError:
            raise
        except Exception:
            if not is_new or "MPLBACKEND" not in os.environ:
                raise
            backend = os.environ.pop("MPLBACKEND")
            for name in [name for name in sys.modules if name.partition(".")[0] == "matplotlib"]:
                del sys.modules[name]  # partially imported
            try:
                import matplotlib.figure  # noqa: F401
            finally:
                os.environ["MPLBACKEND"] = backend
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "matplotlib":
            raise PictureError(f"matplotlib: cannot be imported: {one_line(error)}; install it again") from error
        raise MissingDependencyError("matplotlib", "plot", "drawing plots") from error
    except Exception as error:
        raise PictureError(f"matplotlib: cannot be imported: {one_line(error)}; install it again") from error


def new_figure(width: float, height: float) -> Figure:
    """An empty figure; its size is in inches."""
    import_matplotlib()
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def shown(name: object) -> str:
    """A class's or population's name as a label: without control characters, shortened, and never hidden.

    Matplotlib omits labels that begin with `_` from legends, so they get a leading space.
    """
    text = printable(name)
    text = text if len(text) <= _MOST_CHARACTERS else f"{text[: _MOST_CHARACTERS - 1]}…"
    return f" {text}" if text.startswith("_") else text


def save(figure: Figure, path: Path, title: str) -> None:
    """Writes the figure in the format that the suffix names: png, svg or pdf. No text in it is markup.

    Errors: `ConfigError` for another suffix, `OSError` if the file cannot be written, `PictureError` for other failures.
    """
    kind = path.suffix[1:].lower()
    if kind not in ("png", "svg", "pdf"):
        raise ConfigError(f"{path} ends in {path.suffix!r}; end its name in .png, .svg or .pdf")
    from matplotlib import rc_context

    with drawing(path), whole_file(path) as temporary, warnings.catch_warnings():
        # warnings about appearance, which is visible anyway: boxes for missing characters, no room for long texts
        warnings.simplefilter("ignore", UserWarning)
        figure.suptitle(title, fontsize=10)
        _as_it_is(figure)
        with rc_context({"text.usetex": False}):  # for labels created while drawing
            figure.savefig(temporary, dpi=120, format=kind)


@contextmanager
def drawing(path: Path) -> Iterator[None]:
    """Turns errors of libraries while they draw `path` into a `PictureError`; a full disk stays an `OSError`."""
    try:
        yield
    except (SparseSnnError, OSError, MemoryError):
        raise
    except Exception as error:
        raise PictureError(f"{path}: cannot be drawn: {one_line(error)}") from error


def one_line(error: BaseException) -> str:
    """The text of an error in one line, with its type unless it is ours."""
    text = " ".join(str(error).split())
    if isinstance(error, SparseSnnError):
        return text
    return f"{type(error).__name__}{': ' * bool(text)}{text[:300]}"


def _as_it_is(figure: Figure) -> None:
    """Disables markup: names of classes, populations and files such as `$a_$` are not formulas. Powers on axes stay formulas."""
    from matplotlib.text import Text
    from matplotlib.ticker import LogFormatter, ScalarFormatter

    numbers: set[Text] = set()
    for axes in figure.axes:
        for axis in (axes.xaxis, axes.yaxis):
            numbers.add(axis.offsetText)
            for formatter, ticks in (
                (axis.get_major_formatter(), axis.get_major_ticks()),
                (axis.get_minor_formatter(), axis.get_minor_ticks()),
            ):
                if isinstance(formatter, (ScalarFormatter, LogFormatter)):
                    numbers.update(label for tick in ticks for label in (tick.label1, tick.label2))
    for text in figure.findobj(Text):
        text.set_usetex(False)
        if text not in numbers:
            text.set_parse_math(False)
            text.set_text(printable(text.get_text(), keep="\n"))
