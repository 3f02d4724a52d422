"""One time step of a network as an ONNX graph, for runtimes without sparsesnn (`pip install 'sparsesnn[onnx]'`).

    sparsesnn.onnx.export(model, "step.onnx")

The graph has dense semantics: spikes and states in, spikes or potentials and states out, all float32. Call it once per time
step, and pass the states on. `StepModule` is the same as a `torch.nn.Module`.
"""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from sparsesnn.engines.module import Model
from sparsesnn.errors import ConfigError, MissingDependencyError
from sparsesnn.layers import fires
from sparsesnn.synapses.one_to_one import check_no_currents
from sparsesnn.whole_file import whole_file

__all__ = ["StepModule", "export"]

#: version of the operators; ONNX Runtime supports it since 1.14
OPSET = 18


class StepModule(nn.Module):
    """One step of a model; constant, without gradient.

    `output, *states = step(spikes, *states)`, spikes [B, N] of the input. States, in the order of `state_names`:

        <population>.<state>    [B, N], such as hidden.v, at first 0
        <population>.reset      [B, N], spikes for the reset of the next step, if the population fires
        <population>.past       [d, B, N], spikes of the last d steps, the latest first, for senders with delays of up to d

    Args:
        model: its current weights are used; populations with a capacity run without one.
    """

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.network = model.network
        check_no_currents(self.network, "ONNX")
        self.state_names: list[str] = []
        #: shape of each state, with B for the number of samples
        self.state_shapes: list[tuple[int | str, ...]] = []
        self.n_input = self.network.populations[self.network.inputs[0]].n
        with model.settled():
            for name, population in self.network.populations.items():
                if name in model.layers:
                    self._add_layer(name, model.layers[name])
                if depth := self.network.history(name):
                    self._add_state(f"{name}.past", depth, "B", population.n)

    def _add_state(self, name: str, *shape: int | str) -> None:
        self.state_names.append(name)
        self.state_shapes.append(shape)

    def _add_layer(self, name: str, layer: Any) -> None:
        population = layer.population
        for c in layer.incoming:
            weight = layer.matrix(c)
            self.register_buffer(f"{name} {c.name}", weight.detach().clone())
            if c.axonal:
                steps = layer.axonal_delays(c).detach().round().long()
                self.register_buffer(f"{name} {c.name} steps", steps)
        if (bias := layer.tensor("bias")) is not None:
            self.register_buffer(f"{name} bias", bias.detach().clone())
        for p in population.parameters:
            self.register_buffer(f"{name} {p.name}", layer.tensor(p.name).detach().clamp(p.low, p.high).clone())
        for state in population.states:
            self._add_state(f"{name}.{state}", "B", population.n)
        if fires(population):
            self._add_state(f"{name}.reset", "B", population.n)

    def first_states(self, n_samples: int) -> list[Tensor]:
        """The states before the first step: zeros."""
        shapes = [[int(n_samples if n == "B" else n) for n in shape] for shape in self.state_shapes]
        return [torch.zeros(shape, dtype=torch.float32, device="cpu") for shape in shapes]

    def forward(self, spikes: Tensor, *states: Tensor) -> tuple[Tensor, ...]:
        """Runs one step.

        Returns: spikes of the last population, or the potentials of a readout, [B, N]; then the states.
        """
        before = dict(zip(self.state_names, states, strict=True))
        after: dict[str, Tensor] = {}
        sent = {self.network.inputs[0]: spikes}
        output = spikes
        for name, population in self.network.receivers().items():
            named = {key.partition(" ")[2]: x for key, x in self.named_buffers() if key.partition(" ")[0] == name}
            i = named.get("bias", torch.zeros((), dtype=torch.float32, device=spikes.device))
            for c in self.network.incoming(name):
                if not c.axonal:
                    arriving = before[f"{c.pre}.past"][c.delay - 1] if c.delay else sent[c.pre]
                else:
                    now = [] if c.is_recurrent else [sent[c.pre][None]]
                    lately = torch.cat([*now, before[f"{c.pre}.past"]])
                    rows = named[f"{c.name} steps"] + (c.delay - 1 if c.is_recurrent else c.delay)
                    arriving = lately[rows, :, torch.arange(lately.shape[2], device=lately.device)].T
                product = (
                    arriving @ named[c.name] if c.synapses.is_matrix else c.synapses.product(arriving, named[c.name])
                )
                i = i + product
            s = before.get(f"{name}.reset")
            result = population.step(named, [before[f"{name}.{z}"] for z in population.states], s, s, i)
            after |= {f"{name}.{z}": x for z, x in zip(population.states, result, strict=True)}
            output = result[0]
            if fires(population):
                output = sent[name] = after[f"{name}.reset"] = (result[0] > named["threshold"]).to(i.dtype)
        for name, x in sent.items():
            if f"{name}.past" in before:
                after[f"{name}.past"] = torch.cat([x[None], before[f"{name}.past"][:-1]])
        return output, *(after[name] for name in self.state_names)


def export(model: Model, path: str | Path) -> StepModule:
    """Writes one time step as an ONNX file, whole or not at all.

    Inputs are `spikes` [B, N] and the states; outputs `output` [B, N] and the states, each called `next_<state>`. B is free.

    Args:
        model: its current weights are written.
        path: of the file.

    Returns: the written step.
    Errors: `MissingDependencyError` without onnx and onnxscript; `ConfigError` if the file cannot be written.
    """
    try:
        import onnx  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise MissingDependencyError(error.name or "onnx", "onnx", "the export of a network as ONNX") from error
    step, path = StepModule(model).eval(), Path(path)
    # the exporter would treat sizes 0 and 1 as constants
    arguments = (torch.zeros(2, step.n_input, dtype=torch.float32, device="cpu"), *step.first_states(2))
    batch = torch.export.Dim("B", min=1)
    axes = [{0: batch}, *({shape.index("B"): batch} for shape in step.state_shapes)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # warnings from the exporter's own code
        program = torch.onnx.export(
            step,
            arguments,
            dynamo=True,
            input_names=["spikes", *step.state_names],
            output_names=["output", *(f"next_{name}" for name in step.state_names)],
            dynamic_shapes=(axes[0], tuple(axes[1:])),
            opset_version=OPSET,
            verbose=False,
        )
    assert program is not None, "without a file the exporter returns a program"
    try:
        with whole_file(path) as temporary:
            program.save(temporary)
    except OSError as error:
        reason = os.strerror(error.errno or 0)
        raise ConfigError(f"onnx: {path} cannot be written: {reason}; give another file") from None
    return step
