"""Kinds of synapses: one file each. A connection has one kind; parameters, initial weights, shards and plans ask it."""

from sparsesnn.synapses.base import Synapses, synapses_from_dict
from sparsesnn.synapses.dense import Dense
from sparsesnn.synapses.sparse import Sparse

__all__ = ["Dense", "Sparse", "Synapses", "synapses_from_dict"]
