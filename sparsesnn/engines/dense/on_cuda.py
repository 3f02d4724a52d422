"""The operations of the mode "fused" on a CUDA device: dynamics in Triton (`triton_kernels.py`), products by PyTorch.

Mixed precision follows `torch.autocast`: products, currents and their gradients use its dtype, state and trained weights
float32.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence

import torch
from torch import Tensor

from sparsesnn.engines.dense import triton_ops
from sparsesnn.engines.dense.dynamics import Dynamics, Numbers
from sparsesnn.engines.dense.graphs import Graphs
from sparsesnn.errors import DescriptionError
from sparsesnn.surrogate import KINDS

#: models and resets by their numbers in `triton_kernels`
MODELS = ("lif", "cuba_lif", "li")
RESETS = ("subtract", "subtract_decays", "zero", "none")
NO_RESET = RESETS.index("none")
#: arguments of the kernels with one row per step, and those with one more row, for the state before the first step
STEPS, STATES = ("out", "fired", "d_current"), ("v_rows", "i_syn_rows")

#: rows of a chunk: one chunk's potentials are kept in addition to the currents; each launch costs microseconds
ROWS = 16384
MIN_STEPS = 8
#: most steps in a chunk of a recurrent population: a graph of this many steps is kept, with its tensors
LOOP_STEPS = 32
#: most numbers in the largest maps, read or written by a convolution, of a chunk
MAP_NUMBERS = 1 << 26

_graphs = Graphs()


class Factor:
    """The right factor of products: a matrix [K, N], or with `transposed` the transpose of [N, K], in a dtype."""

    def __init__(self, matrix: Tensor, dtype: torch.dtype, *, transposed: bool = False) -> None:
        matrix = matrix.to(dtype)
        self.matrix = matrix.t() if transposed else matrix

    def product(self, a: Tensor, out: Tensor, *, accumulate: bool = False, bias: Tensor | None = None) -> None:
        """out ← a·b, added to `out` or to a bias [N]; a [.., K] bool or float, out [.., N]."""
        a, flat = _rows(a).to(self.matrix.dtype), _rows(out)
        if flat.dtype != self.matrix.dtype:
            product = a @ self.matrix
            flat.copy_(product if not accumulate else flat + product)
        elif accumulate:
            flat.addmm_(a, self.matrix)
        else:
            torch.mm(a, self.matrix, out=flat)
        if bias is not None:
            out += bias


def add_outer(out: Tensor, a: Tensor, b: Tensor, *, first: bool) -> None:
    """Adds aᵀ·b to `out` [M, N], or sets it if `first`; over the rows of a [.., M], bool or float, and b [.., N]."""
    product = _rows(a).to(b.dtype).t() @ _rows(b)
    if first:
        out.copy_(product)
    else:
        out += product


def forward(
    dynamics: Dynamics,
    neuron: Numbers,
    current: Tensor,
    *,
    state: Sequence[Tensor],
    rows: Sequence[Tensor] = (),
    fresh: bool = False,
    **arrays: Tensor | None,
) -> None:
    """Advances every neuron through the steps of `current` [T, B, N]; see `triton_kernels.forward_kernel`."""
    model, reset = _numbers_of(dynamics)
    parameters, n_steps = _parameters(dynamics, neuron), len(current)
    states = _by_state(dynamics, state, "{}") | _by_state(dynamics, rows, "{}_rows")
    given = {"out": None, "fired": None, **states, **arrays}
    for start, stop, without in _runs(n_steps, fresh and reset != NO_RESET):
        torch.ops.sparsesnn.dense_forward(
            current[start:stop],
            alpha=parameters["alpha"],
            beta=parameters["beta"],
            threshold=parameters["threshold"],
            **_part(given, start, stop),
            model=model,
            reset=NO_RESET if without else reset,
            gain=dynamics.constants[0],
        )


def backward(
    dynamics: Dynamics,
    neuron: Numbers,
    d_out: Tensor,
    *,
    rows: Sequence[Tensor],
    d_state: Sequence[Tensor],
    d_parameters: Sequence[Tensor | None] = (),
    fresh: bool = False,
    **arrays: Tensor | None,
) -> None:
    """The gradient of `forward`; see `triton_kernels.backward_kernel`."""
    model, reset = _numbers_of(dynamics)
    sums: dict[str, Tensor | None] = dict.fromkeys(("d_alpha", "d_beta", "d_threshold", "d_bias"))
    sums |= {f"d_{name}": x for name, x in zip(dynamics.parameters, d_parameters, strict=False)}
    gradients = _by_state(dynamics, d_state, "{}")
    given = {
        **_by_state(dynamics, rows, "{}_rows"),
        "delta": gradients["v"],
        "d_i": gradients["i_syn"],
        **sums,
        **arrays,
    }
    given.pop("current", None)  # no parameter's gradient needs it here
    parameters = _parameters(dynamics, neuron)
    for start, stop, without in reversed(_runs(len(d_out), fresh and reset != NO_RESET)):
        part = _part(given, start, stop)
        if without:
            # only ∂ρ/∂β and ∂ρ/∂θ read the state before, and both are 0 here: pass a potential that did not fire, and no d_beta
            v_rows, threshold = part["v_rows"], parameters["threshold"]
            assert v_rows is not None
            assert threshold is not None
            part |= {"d_beta": None, "v_rows": torch.cat([torch.minimum(v_rows[:1], threshold), v_rows[1:2]])}
        torch.ops.sparsesnn.dense_backward(
            d_out=d_out[start:stop],
            **parameters,
            **part,
            model=model,
            reset=reset,
            detach_reset=dynamics.detach_reset,
            surrogate=KINDS.index(dynamics.surrogate),
            slope=dynamics.slope,
            gain=dynamics.constants[0],
        )


def loop(
    work: Callable[..., None],
    name: Hashable,
    weight: Factor,
    read: Sequence[Tensor | None],
    written: Sequence[Tensor | None],
) -> None:
    """Runs `work(weight, read, written)`, a loop over steps, as a CUDA graph; `name` distinguishes loops on tensors of equal shapes."""

    def on(read: Sequence[Tensor | None], written: Sequence[Tensor | None]) -> None:
        matrix = read[0]
        assert matrix is not None
        work(Factor(matrix, matrix.dtype), read[1:], written)

    with triton_ops.device_of(weight.matrix):
        _graphs.run(on, name, [weight.matrix, *read], written)


def _numbers_of(dynamics: Dynamics) -> tuple[int, int]:
    """The numbers of model and reset in `triton_kernels`."""
    model, _, reset = dynamics.kernel.partition(".")
    if model not in MODELS:
        raise DescriptionError(
            f"dense_mode 'fused' on CUDA has no kernel of the neuron model {dynamics.kernel!r}; "
            f"it has {', '.join(MODELS)}; use dense_mode 'hoist'"
        )
    return MODELS.index(model), RESETS.index(reset) if reset else NO_RESET


def _parameters(dynamics: Dynamics, neuron: Numbers) -> dict[str, Tensor | None]:
    found: dict[str, Tensor | None] = dict.fromkeys(("alpha", "beta", "threshold"))
    return {**found, **dict(zip(dynamics.parameters, neuron.parameters, strict=True)), "grad_threshold": neuron[1]}


def _by_state(dynamics: Dynamics, arrays: Sequence[Tensor], name: str) -> dict[str, Tensor | None]:
    """Arrays of the states by the operators' argument names."""
    found: dict[str, Tensor | None] = {name.format("v"): None, name.format("i_syn"): None}
    return {**found, **{name.format(state): x for state, x in zip(dynamics.states, arrays, strict=False)}}


def _runs(n_steps: int, fresh: bool) -> list[tuple[int, int, bool]]:
    """Launches: first step, last + 1, and whether it is the first step of a sequence, which is launched separately."""
    runs = [(0, 1, True), (1, n_steps, False)] if fresh else [(0, n_steps, False)]
    return [run for run in runs if run[1] > run[0]] if n_steps else []


def _part(arrays: Mapping[str, Tensor | None], start: int, stop: int) -> dict[str, Tensor | None]:
    """The arguments for steps `start` to `stop` - 1; running sums, states and constants stay as they are."""
    ends = {**dict.fromkeys(STEPS, stop), **dict.fromkeys(STATES, stop + 1)}
    return {k: x[start : ends[k]] if x is not None and k in ends else x for k, x in arrays.items()}


def empty(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Uninitialized memory."""
    return torch.empty(shape, dtype=dtype, device=device)


def product_dtype(weight: Tensor) -> torch.dtype:
    """The dtype of products with a weight: autocast's if autocast is on, else its own."""
    kind = weight.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else weight.dtype


def _rows(x: Tensor) -> Tensor:
    return x.view(-1, x.shape[-1])


assert triton_ops.BLOCK > 0, "importing it registers the operators"
