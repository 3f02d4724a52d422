"""Data sets as spike lists: read once, binned, cached, and handed out in batches.

`load(name, split=...)` returns an `EventSet`. Packages that read files (Tonic, h5py, scikit-learn) are imported when
a data set that needs them is loaded, never here.
"""

from __future__ import annotations

if not __name__.startswith("sparsesnn."):
    raise ImportError(
        f"these are sparsesnn's data sets, imported as '{__name__}'; import sparsesnn.datasets instead "
        "(the folder lies next to the package in the source tree and is installed inside it)"
    )

from sparsesnn.datasets.augment import Augment
from sparsesnn.datasets.binning import bin_events
from sparsesnn.datasets.event_set import EventSet
from sparsesnn.datasets.file_steps import file_steps
from sparsesnn.datasets.loading import NAMES, about, defaults, load, options, recipe, split_names
from sparsesnn.datasets.splits import overrates, split_validation

__all__ = [
    "NAMES",
    "Augment",
    "EventSet",
    "about",
    "bin_events",
    "defaults",
    "file_steps",
    "load",
    "options",
    "recipe",
    "split_names",
    "overrates",
    "split_validation",
]
