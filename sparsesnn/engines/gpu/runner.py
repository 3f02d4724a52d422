"""How `Model` runs on a GPU: its parameters are copied to the device before each pass, and their gradients back."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sparsesnn.currents import Currents
from sparsesnn.engines.gpu.choose import open_device
from sparsesnn.engines.gpu.layers import check_connections, check_network
from sparsesnn.engines.gpu.learn import learn
from sparsesnn.engines.gpu.program import Program
from sparsesnn.engines.registry import make_runner
from sparsesnn.engines.runner import NetworkRun, Runner, as_lists
from sparsesnn.errors import DescriptionError
from sparsesnn.first_order import first_order
from sparsesnn.network import Network
from sparsesnn.output import LayerState, Output
from sparsesnn.spikes import SpikeBatch

if TYPE_CHECKING:
    from sparsesnn.engines.dropout import Heard
    from sparsesnn.engines.module import Model


class GpuRunner(Runner):
    """Whole networks, from lists to lists; the parameters may lie on any device."""

    def __init__(self, name: str, options: Any, network: Network | None = None, grid: Any = None) -> None:
        super().__init__(name, options, network, grid)
        self._program: Program | None = None
        if network is None:
            raise DescriptionError(
                f"Layer: backend {name!r} runs whole networks; use a Model, or backend 'cpu' or 'dense'"
            )
        check_network(network, f"backend {name!r}")

    def __getstate__(self) -> dict[str, Any]:
        """For copies and pickles: a copy opens the device itself."""
        return {**self.__dict__, "_program": None}

    def check(self, connections: Iterable[Any]) -> None:
        check_connections(connections, f"backend {self.name!r}")

    def read(self, model: Model, spikes: Any) -> SpikeBatch | Currents:
        return spikes if isinstance(spikes, Currents) else as_lists(spikes, self.name)

    def readable(self, spikes: SpikeBatch) -> SpikeBatch:
        return spikes

    def still(self, model: Model) -> Model:
        """On the engine `cpu`, which has the same bits: the steps of a network that runs live have too little work for a GPU."""
        host = copy.deepcopy(model).cpu()
        host.backend = "cpu"
        host.runner = make_runner("cpu", {"weight_dtype": model.weight_dtype}, model.network)
        layers: Mapping[str, Any] = host.layers._modules
        for layer in layers.values():
            layer.backend, layer.runner = "cpu", host.runner
        return host.runner.still(host)  # type: ignore[no-any-return]

    # ---- passes ----------------------------------------------------------------------------------------------------

    def run_network(
        self,
        model: Model,
        data: Any,
        past: Mapping[str, LayerState],
        heard: Heard | None,
        first_sample: int,
        potentials: str,
    ) -> NetworkRun:
        program = self._ready(model, past, potentials)
        given = program.check(data)
        tensors = program.tensors()
        learnt = _learnt(program, tensors)
        if isinstance(given, Currents):
            learnt[program.source, ""] = given.values
        grad = torch.is_grad_enabled() and any(x.requires_grad for x in learnt.values())
        choices = program.choices(heard, given.n_samples, first_sample)
        this = _Pass(program, given, tensors, choices, list(learnt), saves=grad)
        outputs: dict[str, Any] = {model.source: data}
        if grad:
            made = dict(zip(program.layers, _Run.apply(this, *learnt.values()), strict=True))
            lists = {
                name: replace(found, values=made[name]) if name in this.passes.saving else found
                for name, found in this.lists.items()
            }
        else:
            made, lists = this.potentials(), this.lists
        outputs |= {name: lists.get(name, made.get(name)) for name in program.layers}

        def arrived(name: str) -> Any:
            raise DescriptionError(f"record: backend {self.name!r} records nothing; use backend 'cpu' or 'dense'")

        return NetworkRun(outputs, {name: LayerState() for name in outputs}, arrived)

    def learn(
        self,
        model: Model,
        spikes: Any,
        loss: Callable[[Output], Tensor],
        heard: Heard | None,
        first_sample: int,
        potentials: str,
    ) -> tuple[Tensor, Output] | None:
        if isinstance(spikes, Currents) and spikes.values.requires_grad and torch.is_grad_enabled():
            return None  # autograd continues to what made them
        program = self._ready(model, {}, potentials)
        if not any(layer.learns for layer in program.layers.values()):
            return None
        given = program.check(self.read(model, spikes))
        choices = program.choices(heard, given.n_samples, first_sample)
        value, output = learn(program, given, program.tensors(), choices, loss, model.network.output)
        for layer in program.layers.values():
            for link in layer.links:
                weight, matrix = layer.layer.tensor(link.name), program.weights.matrices[layer.name, link.name]
                if matrix.learns:
                    weight.backward(program.weights.get(matrix, "gradient").to(weight.device))
        return value, output

    def _ready(self, model: Model, past: Any, potentials: str) -> Program:
        """The program, with the model's weights as they are now."""
        instead = "use backend 'cpu', or 'dense' with device 'cuda'"
        for what, given in (("a state", past), ("potentials=True", potentials)):
            if given:
                raise DescriptionError(f"Model: got {what}, which backend {self.name!r} does not run yet; {instead}")
        layers: Mapping[str, Any] = model.layers._modules
        if self._program is None or not self._program.holds(layers):
            if self._program is not None:
                self._program.close()
            self._program = Program(open_device(self.options.device), model.network, layers)
        self._program.changed()
        self._program.weights.put(dict(model.named_parameters()) | dict(model.named_buffers()))
        return self._program


def _learnt(program: Program, tensors: Mapping[str, Mapping[str, Tensor]]) -> dict[tuple[str, str], Tensor]:
    """The tensors that gradients are computed for, by layer and name: weights, the bias, and parameters of neurons."""
    found: dict[tuple[str, str], Tensor] = {}
    for name, layer in program.layers.items():
        own_names = [*(link.name for link in layer.links), *(["bias"] if layer.has_bias else [])]
        found |= {(name, own): layer.layer.tensor(own) for own in own_names}
        found |= {(name, own): tensors[name][own] for own in layer.learnt}
    return found


class _Pass:
    """A forward pass, as its node in PyTorch's graph keeps it.

    Args:
        given: checked, see `Program.check`.
        tensors: of each layer, see `GpuLayer.tensors`.
        choices: see `Program.choices`.
        learnt: see `_learnt`.
        saves: whether a backward pass may follow.

    Attributes:
        lists: of each population that fires, without values.
    """

    def __init__(
        self,
        program: Program,
        given: SpikeBatch | Currents,
        tensors: Mapping[str, Mapping[str, Tensor]],
        choices: Mapping[str, npt.NDArray[np.uint64]],
        learnt: list[tuple[str, str]],
        *,
        saves: bool,
    ) -> None:
        self.program, self.given, self.choices, self.learnt = program, given, choices, learnt
        self.tensors = {name: {k: x.detach() for k, x in of.items()} for name, of in tensors.items()}
        self._run(saves)

    def _run(self, saves: bool) -> None:
        self.passes = self.program.forward(self.given, self.tensors, self.choices, saves=saves)
        self._number = self.program.n_passes
        self.lists: dict[str, SpikeBatch] = {}
        self._places: dict[str, npt.NDArray[np.int64]] = {}
        for name in self.passes.shape.rooms:
            self.lists[name], self._places[name] = self.passes.lists(name)

    def potentials(self) -> dict[str, Tensor]:
        """[T, B, N] of each readout."""
        readouts = [name for name, layer in self.passes.layers.items() if layer.is_readout]
        return {name: torch.from_numpy(self.passes.potentials(name).copy()) for name in readouts}

    def outputs(self) -> dict[str, Tensor]:
        """Of each layer its potentials, or the values of its lists."""
        return self.potentials() | {name: x.fired().to(torch.float32) for name, x in self.lists.items()}

    def backward(self, d_out: Sequence[Tensor], saved: Sequence[Tensor]) -> list[Tensor | None]:
        """The gradients of `learnt`, whose tensors were `saved`, for those of the outputs.

        If the device has run another pass since, this one is repeated first.
        """
        program, layers, weights = self.program, self.program.layers, self.program.weights
        if program.n_passes != self._number:
            program.changed()
            for at, x in zip(self.learnt, saved, strict=True):
                if at in weights.matrices:
                    weights.put_one(*at, x)
            self._run(saves=True)
        arrived = {
            name: (d.detach().cpu().contiguous().numpy(), self._places.get(name))
            for name, d in zip(layers, d_out, strict=True)
        }
        self.passes.backward(arrived)
        program.device.synchronize()
        found: dict[tuple[str, str], Tensor] = {}
        for name, layer in layers.items():
            found |= {(name, own): d for own, d in self.passes.neuron_gradients(layer).items()}
        for at, matrix in weights.matrices.items():
            if matrix.learns:
                found[at] = weights.get(matrix, "gradient")
        if isinstance(self.given, Currents) and self.given.values.requires_grad:
            found[program.source, ""] = self.passes.input_gradient(self.given)
        devices = [x.device for x in saved]
        return [found[at].to(device) if at in found else None for at, device in zip(self.learnt, devices, strict=True)]


class _Run(torch.autograd.Function):
    """forward(pass, tensors that learn…) → of each layer its potentials, or the values of its lists."""

    @staticmethod
    def forward(ctx: Any, of: _Pass, *learnt: Tensor) -> tuple[Tensor, ...]:
        ctx.of = of
        ctx.save_for_backward(*learnt)
        outputs = of.outputs()
        return tuple(outputs[name] for name in of.program.layers)

    @staticmethod
    @first_order("backend gpu")
    def backward(ctx: Any, *d_out: Tensor) -> tuple[Any, ...]:
        of: _Pass = ctx.of
        return None, *of.backward(d_out, ctx.saved_tensors)  # PyTorch checks whether they have changed since
