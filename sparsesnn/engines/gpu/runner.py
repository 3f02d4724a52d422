"""How `Model` runs on a GPU: its parameters are copied to the device before each pass, and their gradients back."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from sparsesnn.engines.gpu.choose import open_device
from sparsesnn.engines.gpu.layers import check_connections, check_network
from sparsesnn.engines.gpu.learn import learn
from sparsesnn.engines.gpu.passes import Passes
from sparsesnn.engines.gpu.program import Program
from sparsesnn.engines.runner import NetworkRun, Runner
from sparsesnn.errors import DescriptionError, ShapeError
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

    def read(self, model: Model, spikes: Any) -> SpikeBatch:
        if not isinstance(spikes, SpikeBatch):
            kind = type(spikes).__name__
            raise ShapeError(f"Model: backend {self.name!r} reads spike lists but got {kind}; give a SpikeBatch")
        return spikes

    def readable(self, spikes: SpikeBatch) -> SpikeBatch:
        return spikes

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
        program = self._ready(model, past, heard, potentials)
        spikes = program.check(data)
        tensors = {name: layer.tensors() for name, layer in program.layers.items()}
        learnt = [x for name, layer in program.layers.items() for x in self._learnt(layer, tensors[name]).values()]
        grad = torch.is_grad_enabled() and any(x.requires_grad for x in learnt)
        passes = program.forward(spikes, tensors, saves=grad)
        outputs: dict[str, Any] = {model.source: data}
        if grad:
            made = _Run.apply(_Pass(program, passes, spikes, tensors), *learnt)
        else:
            made = [
                torch.from_numpy(passes.potentials(name).copy()) if layer.is_readout else None
                for name, layer in program.layers.items()
            ]
        for (name, layer), x in zip(program.layers.items(), made, strict=True):
            outputs[name] = x
            if layer.fires:
                outputs[name], _ = passes.lists(name)
                outputs[name].values = x

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
        program = self._ready(model, {}, heard, potentials)
        tensors = {name: layer.tensors() for name, layer in program.layers.items()}
        value, output = learn(program, program.check(self.read(model, spikes)), tensors, loss, model.network.output)
        for layer in program.layers.values():
            for link in layer.links:
                weight, matrix = layer.layer.tensor(link.name), program.weights.matrices[layer.name, link.name]
                if matrix.learns:
                    weight.backward(program.weights.get(matrix, "gradient").to(weight.device))
        return value, output

    def _ready(self, model: Model, past: Any, heard: Any, potentials: str) -> Program:
        """The program, with the model's weights as they are now."""
        instead = "use backend 'cpu', or 'dense' with device 'cuda'"
        for what, given in (("a state", past), ("dropout", heard), ("potentials=True", potentials)):
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

    @staticmethod
    def _learnt(layer: Any, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The tensors that gradients are computed for, in the order of `_gradients`."""
        found = {link.name: layer.layer.tensor(link.name) for link in layer.links}
        bias = layer.layer.tensor("bias")
        return {**found, **({} if bias is None else {"bias": bias}), **{name: tensors[name] for name in layer.learnt}}


class _Pass:
    """A forward pass, as its node in PyTorch's graph keeps it."""

    def __init__(self, program: Program, passes: Passes, spikes: SpikeBatch, tensors: Any) -> None:
        self.program, self.passes, self.serial = program, passes, program.n_passes
        self.spikes, self.tensors = (
            spikes,
            {name: {k: x.detach() for k, x in of.items()} for name, of in tensors.items()},
        )

    def outputs(self) -> list[tuple[str, Any]]:
        """Of each layer its potentials, or the values of its lists."""
        found = []
        for name, layer in self.passes.layers.items():
            if layer.is_readout:
                found.append((name, torch.from_numpy(self.passes.potentials(name).copy())))
            else:
                lists, _ = self.passes.lists(name)
                found.append((name, lists.fired().to(torch.float32)))
        return found


class _Run(torch.autograd.Function):
    """forward(pass, weights, biases, numbers of neurons…) → of each layer its potentials, or the values of its lists.

    If the device has run another pass since, the backward pass repeats the forward pass first.
    """

    @staticmethod
    def forward(ctx: Any, of: _Pass, *learnt: Tensor) -> tuple[Tensor, ...]:
        ctx.of = of
        ctx.save_for_backward(*learnt)
        return tuple(x for _, x in of.outputs())

    @staticmethod
    @first_order("backend gpu")
    def backward(ctx: Any, *d_out: Tensor) -> tuple[Any, ...]:
        of: _Pass = ctx.of
        program, layers = of.program, of.program.layers
        learnt = iter(ctx.saved_tensors)  # PyTorch checks whether they have changed since
        if program.n_passes != of.serial:
            program.changed()
            for layer in layers.values():
                for link in layer.links:
                    program.weights.put_one(layer.name, link.name, next(learnt))
                for _ in range(layer.has_bias + len(layer.learnt)):
                    next(learnt)
            of.passes = program.forward(of.spikes, of.tensors, saves=True)
        arrived = {}
        for name, d in zip(layers, d_out, strict=True):
            at = None if layers[name].is_readout else of.passes.lists(name)[1]
            arrived[name] = d.detach().cpu().contiguous().numpy(), at
        of.passes.backward(arrived)
        program.device.synchronize()
        found: list[Any] = []
        for layer in layers.values():
            matrices = [program.weights.matrices[layer.name, link.name] for link in layer.links]
            found += [program.weights.get(matrix, "gradient") if matrix.learns else None for matrix in matrices]
            found += of.passes.neuron_gradients(layer).values()
        devices = [x.device for x in ctx.saved_tensors]
        return None, *(None if x is None else x.to(device) for x, device in zip(found, devices, strict=True))
