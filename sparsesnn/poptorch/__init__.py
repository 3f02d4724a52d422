"""Event-sparse layers inside PopTorch models on Graphcore IPUs; the same model trains on a CPU.

    import poptorch
    from sparsesnn import poptorch as spt

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.hidden = spt.Layer(LIF(1000, beta=0.9), n_pre=784)
            self.out = spt.Layer(LIF(10, beta=0.9, grad_threshold=-math.inf), n_pre=1000)

        def forward(self, lists, labels):  # int32[B, T, 2 + K], int64[B]
            counts = self.out(self.hidden(spt.from_data(lists, 784))).counts()
            return counts, poptorch.identity_loss(functional.cross_entropy(counts, labels), reduction="none")

`Layer` is one custom op a population, `Model` one for a whole `Network`. docs/ipu-first-hour.md documents inputs and outputs. This
package runs under Python 3.8 with torch 2.0.1, for which the last PopTorch (3.3, 3.4) is built; the CPU engine does not.
The ops have been checked on an emulated machine and against the public headers of PopART; **they have not yet run on an
IPU.** If you have one: `python -m sparsesnn.poptorch.selftest`.
"""

from __future__ import annotations

from sparsesnn.poptorch.modules import Layer, Model, Output
from sparsesnn.poptorch.spikes import Spikes, from_data, pack, pack_dense

__all__ = ["Layer", "Model", "Output", "Spikes", "from_data", "pack", "pack_dense"]
