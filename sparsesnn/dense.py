"""The dense baseline; see `sparsesnn.engines.dense`."""

from sparsesnn.engines.dense import *  # noqa: F403
from sparsesnn.engines.dense import __all__ as __all__
