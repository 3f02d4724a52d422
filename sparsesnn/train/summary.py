"""Several seeds of one configuration: mean and spread."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sparsesnn.json_file import strict_json
from sparsesnn.train.metrics import Result
from sparsesnn.whole_file import write_atomically
from sparsesnn.wording import count

SUMMARY = "summary.json"


def spread(values: Sequence[float]) -> dict[str, float | None]:
    """Mean and sample standard deviation (n - 1); the latter is None for a single value."""
    return {"mean": statistics.fmean(values), "sd": statistics.stdev(values) if len(values) > 1 else None}


def write_summary(folder: Path, seeds: Sequence[int], results: Sequence[Result]) -> list[str]:
    """Writes `summary.json`; returns the same as lines of text."""
    summary: dict[str, Any] = {"seeds": list(seeds)}
    scores = (
        "test_accuracy",
        "test_accuracy_last",
        "valid_accuracy",
        "test_rmse",
        "test_rmse_last",
        "test_r2",
        "valid_rmse",
    )
    for name in (*scores, "samples_per_s", "seconds"):
        values = [getattr(result, name) for result in results]
        if all(value is not None for value in values):
            summary[name] = {**spread(values), "values": values}
    write_atomically(folder / SUMMARY, (strict_json(summary, indent=2) + "\n").encode())
    lines = []
    for name in ("test_accuracy", "valid_accuracy", "test_rmse", "valid_rmse"):
        if name in summary:
            scale, form, unit = (100, ".2f", " %") if name.endswith("accuracy") else (1, ".4g", "")
            mean, sd = summary[name]["mean"], summary[name]["sd"] or 0.0
            several = len(seeds) > 1
            tail, of = (f" ± {scale * sd:{form}}", ", mean ± sd") if several else ("", "")
            shown = name.replace("_", " ").replace("rmse", "RMSE")
            lines.append(f"{shown} {scale * mean:{form}}{tail}{unit} ({count(len(seeds), 'seed')}{of})")
    return lines
