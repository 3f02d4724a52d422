"""Networks of other libraries, run by the engine: `sparsesnn.convert(module, example)`.

`trace.py` runs a user's `forward` once and follows its tensors, `wiring.py` finds populations and connections, `build.py` makes a model of
the same parameters, `module.py` runs it in the user's `forward`. `libraries/` has a file for each library's neurons.
"""

from sparsesnn.conversion.module import Converted, convert

__all__ = ["Converted", "convert"]
