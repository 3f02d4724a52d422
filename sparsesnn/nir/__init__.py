"""Exchange of networks with other libraries through NIR, the Neuromorphic Intermediate Representation (`pip install nir`).

    model = sparsesnn.nir.from_nir(graph, source="snntorch", reset="subtract")    # graph: the library's, or a file
    sparsesnn.nir.write("net.nir", sparsesnn.nir.to_nir(model, target="norse"))

    spikes = sparsesnn.nir.from_data(events, dt=1e-3)    # a SpikeBatch from NIR's events or grids; `to_data`: the inverse

NIR describes neurons in continuous time, without steps; each library has its own step, and some files leave out parts of
the model. `conventions` describes each library, docs/nir.md has the table. If a graph has no equivalent here, the
error names the difference.
"""

from sparsesnn.nir.conventions import CONVENTIONS, Convention
from sparsesnn.nir.data import from_data, output_data, to_data
from sparsesnn.nir.files import read, write
from sparsesnn.nir.reading import from_nir
from sparsesnn.nir.targets import READOUTS, TARGETS
from sparsesnn.nir.writing import readers, readers_text, to_nir

__all__ = [
    "from_nir",
    "to_nir",
    "from_data",
    "to_data",
    "output_data",
    "read",
    "write",
    "CONVENTIONS",
    "Convention",
    "TARGETS",
    "READOUTS",
    "readers",
    "readers_text",
]
