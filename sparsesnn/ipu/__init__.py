"""The IPU program from Python: whole training steps, with loss and optimizer, on an emulated IPU or a real one.

The same C++ graph and the same codelets run on both (`host/src/ipu`, `codelets/ipu`). `ipu-model` needs only
this package; `ipu` needs the Poplar SDK. The program has been checked on the emulated machine, and its calls against
public programs that use Poplar; it has not been compiled with the SDK, and has not yet run on an IPU.

`sparsesnn.engines.ipu` trains with it (`sparsesnn train --backend ipu-model`).

| file | holds |
|---|---|
| `program.py` | `IpuProgram`: a compiled plan, loading, training steps, inference, saving |
| `planned.py` | the plan of a network, and a program for it |
| `settings.py` | `Optimizer` and `Regularizer`, which run on the device |
| `spec.py` | the input of the graph builder, and networks without a codelet |
| `backends.py` | the machines: emulated, the SDK's model, hardware |
| `arrays.py` | the layout of arrays in the program's streams |
| `report.py` | the emulated machine's counts |
| `selftest.py` | `python -m sparsesnn.ipu.selftest`: does the program compute the right numbers here? Its cases: `sparsesnn/selftest.py` |
"""

from sparsesnn.ipu.backends import CHECKS
from sparsesnn.ipu.program import IpuProgram, Trained
from sparsesnn.ipu.report import MachineReport
from sparsesnn.ipu.settings import Optimizer, Regularizer

__all__ = ["IpuProgram", "Trained", "Optimizer", "Regularizer", "MachineReport", "CHECKS"]
