"""Networks from and to other libraries through NIR, the Neuromorphic Intermediate Representation (`pip install nir`).

    model = sparsesnn.nir.from_nir(graph, source="snntorch", reset="subtract")    # graph: of the library, or a file
    sparsesnn.nir.write("net.nir", sparsesnn.nir.to_nir(model, target="norse"))

NIR describes neurons in continuous time and says nothing of steps; each library has a step of its own, and some write less
than they run. `conventions` holds what each does, docs/migrating.md the table. Where a graph cannot mean the same here, the
error names the difference.
"""

from sparsesnn.nir.conventions import CONVENTIONS, Convention
from sparsesnn.nir.files import read, write
from sparsesnn.nir.reading import from_nir
from sparsesnn.nir.writing import READOUTS, TARGETS, readers, readers_text, to_nir

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
