"""The weights of a network on a device, with their gradients, moments and averages, all packed (codelets/gpu/layout.h)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sparsesnn.engines.gpu.arguments import make
from sparsesnn.engines.gpu.device import Device
from sparsesnn.engines.gpu.layers import GpuLayer
from sparsesnn.engines.gpu.layout import LANES, pack, unpack
from sparsesnn.engines.optimizers import Updates

_BLOCK = 256
#: what optimizers keep for a weight, besides the number of steps
_STATE = ("exp_avg", "exp_avg_sq", "momentum_buffer")


@dataclass
class Matrix:
    """One weight.

    Args:
        name: of the parameter in the model, layers.hidden.input->hidden.
        n_pre, n: [M, N].
        width: neurons of a tile.
        learns: whether it has a gradient.
        at: addresses by their content: weight, gradient, average, the optimizer's state (`_STATE`); and rounded, the weight as bfloat16, if
            passes read that.
        steps: of the optimizer.
    """

    name: str
    n_pre: int
    n: int
    width: int
    learns: bool
    at: dict[str, int] = field(default_factory=dict)
    steps: float = 0.0

    @property
    def read(self) -> int:
        """The address of the weight that passes read."""
        return self.at.get("rounded", self.at["weight"])

    @property
    def n_tiles(self) -> int:
        return -(-self.n // self.width)

    @property
    def shape(self) -> tuple[int, int, int, int]:
        return self.n_pre, self.n_tiles, LANES, self.width // LANES

    @property
    def size(self) -> int:
        """Numbers, with padding."""
        return math.prod(self.shape)


class DeviceWeights:
    """The weights of all connections.

    A gradient has slots for the sums of leaves (`Wave`), as many as the largest batch needs; the first one is the gradient.

    Attributes:
        n_rooms: counts the times that gradients moved to other addresses.
    """

    def __init__(self, device: Device, layers: Mapping[str, GpuLayer]) -> None:
        self.device = device
        self.matrices: dict[tuple[str, str], Matrix] = {}
        self._n_slots = 0
        self.n_rooms = 0
        self._kernels = device.compile("update.cu", {}, ["column_squares", "adam", "sgd", "average", "round_weights"])
        for layer in layers.values():
            for link, learns in zip(layer.links, layer.trained, strict=False):  # the bias comes last
                name = f"layers.{layer.name}.{link.name}"
                matrix = Matrix(name, link.n_pre, layer.n, layer.width, learns)
                self.matrices[layer.name, link.name] = matrix
                self._allocate(matrix, "weight")
                if layer.rounds_weights:
                    self._allocate(matrix, "rounded")
        n = sum(matrix.n_tiles * matrix.width for matrix in self.learning)
        self._squares_at, self._squares = (
            device.allocate(8 * n, "squares of gradients"),
            device.pinned(8 * n).view(np.float64),
        )
        self._squares_of: dict[str, npt.NDArray[np.float64]] = {}
        # numbers of each matrix's optimizer, then the decay of averages
        n_bytes = 4 * 8 * (len(self.learning) + 1)
        self._numbers_at = device.allocate(n_bytes, "numbers of the optimizer")
        self._numbers = device.pinned(n_bytes).view(np.float32).reshape(-1, 8)
        self._numbers[:] = 0
        self._updates: dict[tuple[str, bool, bool, bool], Callable[[], None]] = {}

    def _allocate(self, of: Matrix, what: str, n_times: int = 1) -> None:
        n_bytes = (2 if what == "rounded" else 4) * of.size * n_times
        of.at[what] = self.device.allocate(n_bytes, f"{of.name}, {what}")
        self.device.fill(of.at[what], n_bytes)

    def close(self) -> None:
        """Frees all of it."""
        for matrix in self.matrices.values():
            for address in matrix.at.values():
                self.device.free(address)
            matrix.at = {}
        self.device.free(self._squares_at)
        self.device.free(self._numbers_at)

    @property
    def learning(self) -> list[Matrix]:
        return [matrix for matrix in self.matrices.values() if matrix.learns]

    def n_bytes(self, n_slots: int, n_moments: int) -> int:
        """Bytes of weights, gradients and moments."""
        return sum(
            m.size * (4 + 2 * ("rounded" in m.at) + 4 * m.learns * (n_slots + n_moments))
            for m in self.matrices.values()
        )

    # ---- weights ---------------------------------------------------------------------------------------------------

    def put(self, tensors: Mapping[str, Tensor]) -> None:
        """Copies weights [M, N], by their names, to the device."""
        for matrix in self.matrices.values():
            self._put(matrix, "weight", tensors[matrix.name])

    def put_one(self, layer: str, name: str, x: Tensor) -> None:
        """The same for one weight."""
        self._put(self.matrices[layer, name], "weight", x)

    def _put(self, matrix: Matrix, what: str, x: Tensor) -> None:
        array = x.detach().to("cpu", torch.float32).contiguous().numpy()
        packed = pack(array, matrix.width)
        self.device.upload(matrix.at[what], packed)
        if what == "weight":
            self._launch_round(matrix)
        self.device.synchronize()  # the packed copy must live until it is on the device

    def _launch_round(self, matrix: Matrix) -> None:
        """Starts the rounding of a weight, if passes read it rounded."""
        if "rounded" in matrix.at:
            at, n = matrix.at, matrix.size
            arguments = make("update.cu", "RoundArgs", w=at["weight"], rounded=at["rounded"], n=n)
            self.device.launch(self._kernels["round_weights"], -(-n // _BLOCK), _BLOCK, 0, arguments, matrix.name)

    def get(self, matrix: Matrix, what: str = "weight") -> Tensor:
        """[M, N], from the device."""
        packed = np.empty(matrix.shape, np.float32)
        self.device.download(matrix.at[what], packed)
        return torch.from_numpy(unpack(packed, matrix.n))

    # ---- gradients -------------------------------------------------------------------------------------------------

    def room_for_gradients(self, n_slots: int) -> None:
        """Makes room for `n_slots` sums of leaves."""
        if n_slots <= self._n_slots:
            return
        for matrix in self.learning:
            if "gradient" in matrix.at:
                self.device.free(matrix.at["gradient"])
            self._allocate(matrix, "gradient", n_slots)
        self._n_slots, self._updates, self.n_rooms = n_slots, {}, self.n_rooms + 1

    def launch_squares(self) -> None:
        """Starts the sums of squares of all gradients, and their way to the host."""
        first = 0
        for matrix in self.learning:
            n = matrix.n_tiles * matrix.width
            arguments = make(
                "update.cu", "SquaresArgs", x=matrix.at["gradient"], squares=self._squares_at + 8 * first, n_pre=matrix.n_pre,
                n_tiles=matrix.n_tiles, columns=matrix.width // LANES,
            )  # fmt: skip
            self.device.launch(self._kernels["column_squares"], -(-n // 64), 64, 0, arguments, matrix.name)
            self._squares_of[matrix.name] = self._squares[first : first + matrix.n]
            first += n
        if first:
            self.device.download_later(self._squares_at, self._squares[:first])

    def squares(self, matrix: Matrix) -> npt.NDArray[np.float64]:
        """float64[N], the sum of the squares of a gradient for each receiving neuron; after `synchronize`."""
        return self._squares_of[matrix.name]

    # ---- optimizer -------------------------------------------------------------------------------------------------

    def update(
        self,
        groups: Iterable[Mapping[str, Any]],
        parameters: Mapping[str, Tensor],
        *,
        updates: Updates,
        scale: float = 1.0,
        decay: float | None = None,
        begins: bool = False,
    ) -> None:
        """One step of the optimizer, and of the moving averages.

        Args:
            groups: `param_groups` of the host's optimizer.
            parameters: the model's, by name.
            updates: the optimizer's kind.
            scale: factor on gradients, of clipping; 1: none.
            decay: of the averages; None: there are none.
            begins: the averages become the weights.
        """
        is_sgd = updates.name == "sgd"
        group_of = {id(p): group for group in groups for p in group["params"]}
        for matrix, numbers in zip(self.learning, self._numbers, strict=False):
            matrix.steps += 1.0
            group = group_of[id(parameters[matrix.name])]
            numbers[:] = sgd_numbers(group, scale) if is_sgd else adam_numbers(group, matrix.steps, scale)
            for what in (*sorted(updates.state_keys - {"step"}), *(["average"] if decay is not None else [])):
                if what not in matrix.at:
                    self._allocate(matrix, what)
                    self._updates = {}
        if decay is not None:
            self._numbers[-1, :2] = decay, 1 - decay
        self.device.upload(self._numbers_at, self._numbers)
        key = updates.name, scale != 1.0, decay is not None, begins
        if key not in self._updates:
            self._updates[key] = self.device.record(lambda: self._launch_update(*key))
        self._updates[key]()

    def _launch_update(self, optimizer: str, clips: bool, averages: bool, begins: bool) -> None:
        for k, matrix in enumerate(self.learning):
            grid, at = -(-matrix.size // _BLOCK), matrix.at
            common = {
                "w": at["weight"], "d": at["gradient"], "numbers": self._numbers_at + 4 * 8 * k, "n": matrix.size, "clips": int(clips)
            }  # fmt: skip
            if optimizer == "sgd":
                arguments = make("update.cu", "SgdArgs", **common, m=at.get("momentum_buffer", 0))
                self.device.launch(self._kernels["sgd"], grid, _BLOCK, 0, arguments, matrix.name)
            else:
                decoupled = int(optimizer == "adamw")
                arguments = make(
                    "update.cu", "AdamArgs", **common, m=at["exp_avg"], s=at["exp_avg_sq"], decoupled=decoupled
                )
                self.device.launch(self._kernels["adam"], grid, _BLOCK, 0, arguments, matrix.name)
            self._launch_round(matrix)
            if averages and begins:
                self.device.copy(at["average"], at["weight"], 4 * matrix.size)
            elif averages:
                numbers = self._numbers_at + 4 * 8 * (len(self._numbers) - 1)
                arguments = make(
                    "update.cu", "AverageArgs", average=at["average"], w=at["weight"], numbers=numbers, n=matrix.size
                )
                self.device.launch(self._kernels["average"], grid, _BLOCK, 0, arguments, matrix.name)

    def save_optimizer(self, optimizer: torch.optim.Optimizer, parameters: Mapping[str, Tensor]) -> None:
        """Copies moments and numbers of steps into the state of the host's optimizer."""
        for matrix in self.learning:
            kept = [what for what in _STATE if what in matrix.at] if matrix.steps else []
            for what in kept:
                optimizer.state[parameters[matrix.name]][what] = self.get(matrix, what)
            if "exp_avg" in kept:
                optimizer.state[parameters[matrix.name]]["step"] = torch.tensor(matrix.steps, dtype=torch.float32)

    def load_optimizer(self, optimizer: torch.optim.Optimizer, parameters: Mapping[str, Tensor]) -> None:
        """The inverse of `save_optimizer`."""
        for matrix in self.learning:
            state = optimizer.state.get(parameters[matrix.name], {})
            matrix.steps = float(state.get("step", 0.0))
            for what in _STATE:
                if what in state and what not in matrix.at:
                    self._allocate(matrix, what)
                if what in state:
                    self._put(matrix, what, state[what])
                elif what in matrix.at:
                    self.device.fill(matrix.at[what], 4 * matrix.size)

    def put_averages(self, values: Mapping[str, Tensor]) -> None:
        for matrix in self.learning:
            if matrix.name in values:
                if "average" not in matrix.at:
                    self._allocate(matrix, "average")
                self._put(matrix, "average", values[matrix.name])


def adam_numbers(group: Mapping[str, Any], step: float, scale: float) -> npt.NDArray[np.float32]:
    """The numbers of a step of Adam (`AdamArgs` of codelets/gpu/update.cu), rounded as those of the engine `cpu`."""
    (beta1, beta2), lr = group["betas"], float(group["lr"])
    root = math.sqrt(1.0 - math.pow(beta2, step))
    return np.array(
        [
            lr, 1.0 - beta1, beta2, 1.0 - beta2, root * group["eps"], group["weight_decay"],
            root * lr / (1.0 - math.pow(beta1, step)), scale,
        ],
        np.float32,
    )  # fmt: skip


def sgd_numbers(group: Mapping[str, Any], scale: float) -> npt.NDArray[np.float32]:
    """The numbers of a step of SGD (`SgdArgs` of codelets/gpu/update.cu), likewise in eight places."""
    numbers = np.zeros(8, np.float32)
    numbers[:4] = float(group["lr"]), group["momentum"], group["weight_decay"], scale
    return numbers
