"""Lists of numbers on the command line."""

from __future__ import annotations

from sparsesnn.errors import ConfigError


def integers(option: str, text: str, least: int = 1, most: int = 1_000_000) -> list[int]:
    """`"16,48"` → [16, 48]. Errors: `ConfigError` for anything that is not whole numbers from `least` to `most`."""
    try:
        values = [int(part) for part in text.split(",")]
    except ValueError:
        values = []
    if not values or min(values) < least or max(values) > most:
        raise ConfigError(
            f"{option}: is {text!r}; give whole numbers from {least} to {most:,}, joined by commas, such as 16,48"
        )
    return values


def floats(option: str, text: str, low: float, high: float) -> list[float]:
    """`"0.5,1"` → [0.5, 1.0]. Errors: `ConfigError` for anything that is not numbers above `low`, at most `high`."""
    try:
        values = [float(part) for part in text.split(",")]
    except ValueError:
        values = []
    if not values or not all(low < value <= high for value in values):
        raise ConfigError(
            f"{option}: is {text!r}; give numbers above {low:g}, at most {high:g}, joined by commas, such as {high:g}"
        )
    return values
