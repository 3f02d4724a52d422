"""Kinds of synapses: one file each. A connection has one kind, which parameters, initial weights, shards and plans query."""

from sparsesnn.synapses.base import Shape, Synapses, described_synapses, synapses_from_dict
from sparsesnn.synapses.conv1d import Conv1d
from sparsesnn.synapses.conv2d import Conv2d
from sparsesnn.synapses.dense import Dense
from sparsesnn.synapses.one_to_one import OneToOne
from sparsesnn.synapses.pool import Pool
from sparsesnn.synapses.series import Series
from sparsesnn.synapses.sparse import Sparse

__all__ = [
    "Conv1d",
    "Conv2d",
    "Dense",
    "OneToOne",
    "Pool",
    "Series",
    "Shape",
    "Sparse",
    "Synapses",
    "described_synapses",
    "synapses_from_dict",
]
