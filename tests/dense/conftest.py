"""The kernels of a GPU on any machine."""

from __future__ import annotations

import importlib
from types import ModuleType

import pytest
import torch


@pytest.fixture(scope="package")
def on_cuda() -> ModuleType:
    """The module whose kernels are compiled for a GPU, or interpreted; Triton decides that when they are defined."""
    pytest.importorskip("triton", minversion="3.4")
    interpreted = not torch.cuda.is_available()
    with pytest.MonkeyPatch.context() as patch:
        if interpreted:
            patch.setenv("TRITON_INTERPRET", "1")
        module = importlib.import_module("sparsesnn.engines.dense.on_cuda")
    from sparsesnn.engines.dense import triton_kernels

    if interpreted and type(triton_kernels.forward_kernel).__name__ != "InterpretedFunction":
        pytest.skip("the kernels were imported before, to be compiled")
    return module
