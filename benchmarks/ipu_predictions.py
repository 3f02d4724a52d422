"""Updates the tables and plots of benchmarks/results/ipu-predictions.md from the cost model in sparsesnn/partition.

    ./dev bench ipu-predictions            rewrites the tables between the markers, and the PNGs
    ./dev bench ipu-predictions --check    exits with 1 if a table differs from the current model

Takes a few minutes; needs no IPU and no data, and measures nothing.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from sparsesnn.partition.ipu import sweep_tables, sweeps
from sparsesnn.whole_file import write_atomically

RESULTS = Path(__file__).resolve().parent / "results"
PAGE = RESULTS / "ipu-predictions.md"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare the tables without writing them")
    options = parser.parse_args(arguments)
    in_turn, at_once = (list(sweeps.activity_sweep(delay=delay)) for delay in (0, 1))
    scaling = list(sweeps.weak_scaling((1, 2, 4, 8, 16, 64)))
    tables = {
        "activity, delay 0": sweep_tables.activity_table(in_turn),
        "activity, delay 1": sweep_tables.activity_table(at_once),
        "weak-scaling": sweep_tables.scaling_table(scaling),
        "sensitivity": sweep_tables.sensitivity_table(*sweeps.sensitivity(delay=1)),
        "assumptions": sweep_tables.assumptions_table(),
    }
    old = PAGE.read_text(encoding="utf-8")
    new = old
    for name, table in tables.items():
        new = fill(new, name, table)
    if options.check:
        print("the page is up to date" if new == old else "the page differs from the model; run this without --check")
        return int(new != old)
    write_atomically(PAGE, new.encode())
    sweep_tables.plot_activity(at_once, RESULTS / "ipu-predictions-activity.png")
    sweep_tables.plot_scaling(scaling, RESULTS / "ipu-predictions-weak-scaling.png")
    return 0


def fill(page: str, name: str, table: str) -> str:
    """Replaces the text between the two markers of a table."""
    pattern = re.compile(rf"(<!-- table: {name} -->\n).*?(<!-- end: {name} -->)", re.DOTALL)
    page, n = pattern.subn(lambda m: f"{m[1]}\n{table}\n\n{m[2]}", page)
    if n != 1:
        raise SystemExit(f"{PAGE}: has {n} places for the table '{name}'; it needs one")
    return page


if __name__ == "__main__":
    sys.exit(main())
