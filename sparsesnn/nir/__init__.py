"""Exchange of networks with other libraries through NIR, the Neuromorphic Intermediate Representation (`pip install nir`).

    model = sparsesnn.nir.from_nir(graph, source="snntorch", reset="subtract")    # graph: the library's, or a file
    sparsesnn.nir.write("net.nir", sparsesnn.nir.to_nir(model, target="norse"))

NIR describes neurons in continuous time, without steps; each library has its own step, and some files leave out parts of
the model. `conventions` describes each library, docs/migrating.md has the table. If a graph has no equivalent here, the
error names the difference.
"""

from sparsesnn.nir.conventions import CONVENTIONS, Convention
from sparsesnn.nir.files import read, write
from sparsesnn.nir.reading import from_nir
from sparsesnn.nir.targets import READOUTS, TARGETS
from sparsesnn.nir.writing import readers, readers_text, to_nir

__all__ = [
    "from_nir",
    "to_nir",
    "read",
    "write",
    "CONVENTIONS",
    "Convention",
    "TARGETS",
    "READOUTS",
    "readers",
    "readers_text",
]
