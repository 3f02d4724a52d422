"""The baseline: PyTorch computes every neuron in every step, with the engine's semantics, as fast as a dense engine can.

| mode | computation | kept for the backward pass, per neuron and step |
|---|---|---|
| `step` | plain autograd, one step at a time: the usual loop | the input, the potential, the spike, and more |
| `hoist` | input products over the whole sequence, autograd over the steps | the current, the potential, the spike, and more |
| `fused` | one autograd node per population; its dynamics in C++ or, on CUDA, Triton | the input current, and the spikes |

All three follow `sparsesnn.reference`, up to the order of sums in the matrix products. `auto` is `fused` if that can run,
else `hoist`, which supports autocast, bfloat16, CUDA without Triton, recurrent delays and recurrent maps.

    engine.py     training steps; replicas.py: over ranks of torchrun
    step_graph.py a training step on CUDA as one graph; parcel.py: the tensors that travel
    layer.py      reads and checks a call, chooses the mode; call.py: the input of a mode
    neuron.py     one step of a population with autograd; surrogate derivatives
    unrolled.py   step and hoist: one loop
    fused.py      fused
    on_cpu.py     its operations on a CPU: dynamics in C++, matrix products
    pieces.py     PyTorch's products on the engine's threads
    on_cuda.py    its operations on CUDA; triton_kernels.py, triton_ops.py: the dynamics; graphs.py: loops over steps as graphs
    spikes.py     spikes passed between fused populations
"""

from sparsesnn.engines.dense.layer import MODES, check_mode, choose_mode, run_layer
from sparsesnn.engines.dense.neuron import Spike, surrogate_derivative
from sparsesnn.engines.dense.on_cpu import products_are_ours
from sparsesnn.engines.dense.spikes import DenseSpikes, SpikesByName

__all__ = [
    "MODES",
    "DenseSpikes",
    "Spike",
    "SpikesByName",
    "check_mode",
    "choose_mode",
    "products_are_ours",
    "run_layer",
    "surrogate_derivative",
]
