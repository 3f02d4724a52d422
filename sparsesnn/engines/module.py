"""A described network as a `torch.nn.Module`: `Layer` for one population, `Model` for the whole network."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, overload

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from sparsesnn.arguments import named
from sparsesnn.currents import Currents
from sparsesnn.engines.dropout import Heard, after_dropout
from sparsesnn.engines.layer_inputs import layer_sources
from sparsesnn.engines.live import LiveModel
from sparsesnn.engines.registry import make_runner
from sparsesnn.engines.runner import NetworkRun, Runner, as_tensor
from sparsesnn.engines.stored import Stored
from sparsesnn.engines.watch import Watch
from sparsesnn.errors import DescriptionError, NumericError, ShapeError
from sparsesnn.first_order import check_transforms
from sparsesnn.host.comm import Grid
from sparsesnn.layers import Neuron, fires, is_readout
from sparsesnn.network import Network, gives_currents
from sparsesnn.options import plain
from sparsesnn.output import (
    LayerOutput,
    LayerState,
    Output,
    check_state,
    join,
    last_steps,
    n_steps,
    steps_from,
)
from sparsesnn.parameters import (
    Incoming,
    PopulationModule,
    Sources,
    former_names,
    incoming,
    incoming_of,
    uniform,
)
from sparsesnn.rotation import population_seed
from sparsesnn.spikes import SpikeBatch
from sparsesnn.state_dicts import Loadable
from sparsesnn.tracers import check_tracers, untraced
from sparsesnn.traces import Record, Traces, chosen_neurons, replay
from sparsesnn.wording import a_type

if TYPE_CHECKING:
    from sparsesnn.engines.dense import DenseSpikes

    #: the spikes or potentials that pass between the layers of a model
    LayerInput: TypeAlias = LayerOutput | DenseSpikes


@named
class Layer(Loadable, PopulationModule):
    """One population with its incoming weights; can be used alone.

    `out, state = Layer(LIF(256, recurrent=True), n_pre=700)(spikes)`. To continue a sequence, pass `state` to the next call.

    Args:
        population: spiking neurons, or `LI`.
        n_pre: neurons of the source population, or one number per source; None: currents, such as the output of a
            `torch.nn.Linear`, without weights (one source, the first, may be that); or the `Incoming` connections of a network.
        delays: steps between a spike and its delivery, per source.
        backend: "cpu" (event-sparse engine, `SpikeBatch` in and out) or "dense" (tensors [T, B, N] in and out).
        dense_mode: how "dense" computes: "step", "hoist", "fused" or "auto", the fastest that can run. Results are equal up to
            the order of sums.
        history: number of its last output steps that the state keeps.
        weight_dtype: "float32", the default, reads the weights as they are. "bfloat16" reads them rounded to half the bytes;
            sums and the trained weights stay float32 (backends "cpu", and "gpu" in a `Model`). "int8" and "int4" read integers
            times a scale per receiving neuron (backends "cpu" and "dense"); see `sparsesnn.rounding`. The gradient of a rounded
            weight passes unchanged to the float32 weight.
        generator: source of the random initial weights, U(±1/√n_pre); None: PyTorch's, which `torch.manual_seed` sets.
        runner: the model's runner; None: the engine of `backend` makes one.
        part: this rank's part, if ranks share the population; the layer then has parameters for these neurons only.
        room: buffer in which initial weights are drawn; all layers of a rank share it to avoid heap fragmentation.

    Parameters: `weights[k]` float32[n_pre_k, n], a row per source neuron, the recurrent one [n, n] last; in the
    `state_dict` a weight is named after its connection, `input->hidden`. `bias`; `beta`, `alpha`, `threshold`
    (parameters if they are trained, else buffers; [] or [n]); buffer `grad_threshold`. With a capacity, a buffer
    `training_steps` int64[] counts the forward passes in training: with `rotation_seed` it decides which candidates a
    full list keeps. `Model` gives every layer its own seed.
    """

    def __init__(
        self,
        population: Neuron,
        n_pre: Sources = None,
        *,
        delays: Sequence[int] | None = None,
        backend: str = "cpu",
        dense_mode: str = "auto",
        history: int | None = None,
        weight_dtype: str = "float32",
        generator: torch.Generator | None = None,
        runner: Runner | None = None,
        part: Any = None,
        room: Tensor | None = None,
    ) -> None:
        runner = runner or make_runner(backend, {"weight_dtype": weight_dtype, "dense_mode": dense_mode})
        connections = incoming(population, n_pre, delays)
        runner.check(connections)
        own: tuple[int, int] = (part.shards.begin, part.shards.end) if part else (0, population.n)
        super().__init__(population, connections, uniform(generator, population.n, *own, room), own)
        self.runner = runner
        self.part = part
        self.backend = backend
        self.weight_dtype = weight_dtype
        self.dense_mode = dense_mode
        steps = 0 if history is None else plain(history)
        if type(steps) is not int or steps < 0:
            raise DescriptionError(
                f"Layer: history is {history!r}; allowed: whole numbers of steps, 0 or more, or None"
            )
        self.n_history = max(steps, self.loop_reach)

    def extra_repr(self) -> str:
        return f"{self.population}, {', '.join(c.name for c in self.incoming)}, backend={self.backend!r}"

    if TYPE_CHECKING:  # `nn.Module.__call__` returns Any; the output is a `SpikeBatch` or a tensor: see `forward`

        @overload
        def __call__(
            self,
            inputs: LayerInput | Sequence[LayerInput],
            state: LayerState | None = None,
            *,
            packed: bool = False,
            first_sample: int = 0,
            n_steps: int | None = None,
            potentials: Literal[False] = False,
        ) -> tuple[Any, LayerState]: ...

        @overload
        def __call__(
            self,
            inputs: LayerInput | Sequence[LayerInput],
            state: LayerState | None = None,
            *,
            packed: bool = False,
            first_sample: int = 0,
            n_steps: int | None = None,
            potentials: bool,
        ) -> tuple[Any, ...]: ...

        def __call__(self, *inputs: Any, **options: Any) -> tuple[Any, ...]: ...

    @property
    def is_traceable(self) -> bool:
        """Whether `torch.compile` may trace it."""
        return self.runner.is_traceable

    @untraced
    def forward(
        self,
        inputs: LayerInput | Sequence[LayerInput],
        state: LayerState | None = None,
        *,
        packed: bool = False,
        first_sample: int = 0,
        n_steps: int | None = None,
        potentials: bool = False,
    ) -> tuple[Any, ...]:
        """Runs T steps.

        Args:
            inputs: one `SpikeBatch` per source (cpu), or one tensor [T, B, n_pre] per source (dense). With a state and
                a delay d (the longest, if senders differ), the source must begin d steps earlier: `Model` does that. Currents are
                a tensor float32[T, B, N], or [B, N] with `n_steps`.
            state: from the previous call; None: zero potentials, no past spikes.
            packed: spikes may be returned as `sparsesnn.dense.DenseSpikes`, which any dense layer reads.
            first_sample: over ranks, the number of samples of the batch that come before these, on other replicas.
            n_steps: T of currents [B, N], which are the same at all steps.
            potentials: return the potentials of neurons that fire too, see `Output.potentials`.

        Returns: the output and the state after the last step. The output is a `SpikeBatch` (cpu), spikes [T, B, N] (dense), or the
        potentials [T, B, N] of an LI. With `potentials`, the potentials come third.
        """
        check_tracers("a layer")
        check_transforms("a layer", read=self.parameters())
        sources = layer_sources(inputs, self, n_steps)
        asked = potentials and fires(self.population)
        found = self.runner.run_layer(
            self, sources, state, packed=packed, first_sample=first_sample, **({"potentials": True} if asked else {})
        )
        return (*found[:2], found[2] if asked else found[0]) if potentials else found[:2]

    def arrived(self, sources: Sequence[LayerInput], state: LayerState | None) -> list[LayerInput]:
        """The sources of `forward` after axonal delays."""
        started = state is not None
        return [
            self.delayed(c, x, c.axonal.longest if c.axonal and started else 0)
            for c, x in zip(self.senders, sources, strict=True)
        ]

    def delayed(self, c: Incoming, x: LayerInput, first_step: int = 0) -> LayerInput:
        """A sender's spikes, from step `first_step`, after the connection's axonal delays, if it has any."""
        found: LayerInput = self.runner.delayed(self, c, x, first_step) if c.axonal else x
        return found

    def own_delayed(self, c: Incoming, sent: LayerInput, state: LayerState | None) -> tuple[LayerInput, int]:
        """The population's spikes after the axonal delays of a recurrent connection, with the past steps in front; and the number of
        past steps."""
        if state is None or state.history is None:
            return self.delayed(c, sent), 0
        return self.delayed(c, _extend(state.history, sent, c.reach)), c.reach


def _misfit(spikes: object, source: str, n_input: int) -> str:
    if isinstance(spikes, Tensor):
        return (
            f"input is a tensor {list(spikes.shape)}; give spike lists: SpikeBatch.from_dense(spikes), with 0 and 1 in "
            f"[T, B, {n_input}]"
        )
    if not hasattr(spikes, "n_neurons"):
        return (
            f"input is {a_type(spikes)}; give a SpikeBatch, such as SpikeBatch.from_dense(spikes) of 0 and 1 in "
            f"[T, B, {n_input}]"
        )
    return (
        f"input has {spikes.n_neurons} neurons; the network's {source!r} has {n_input}; give spikes [T, B, {n_input}], or describe a "
        f"network with {spikes.n_neurons} inputs"
    )


@named
class Model(Stored, Loadable):
    """A `torch.nn.Module` that runs and trains a `Network`.

        model = ss.Model(ss.parse_net("700-256r-20"))
        output = model(spikes)
        ss.loss.cross_entropy(output, labels, "mean", 20).backward()

    Its tensors are float32 on the CPU, whatever PyTorch's defaults are. `model.double()` and `model.to(device)` change that on
    the backend "dense".

    Args:
        network: the description.
        backend: "cpu", "gpu" or "dense"; all have the same parameters and `state_dict`.
        dense_mode: how "dense" computes: "step", "hoist", "fused" or "auto", the fastest that can run. Results are equal up to
            the order of sums.
        seed: seed of the initial weights. They depend on it alone: they are the same in every session, regardless of
            `torch.manual_seed`. None draws a seed from PyTorch's generator, which `torch.manual_seed` sets.
        weight_dtype: how the weights of every layer are read; see `Layer`.
        grid: the ranks that run it together, with results equal to one rank's, bit for bit; each has the parameters of its part of
            the neurons. After `loss.backward()` all call `finish_backward()`: only then do gradients cover the whole batch.
    """

    def __init__(
        self,
        network: Network,
        *,
        backend: str = "cpu",
        dense_mode: str = "auto",
        seed: int | None = 0,
        weight_dtype: str = "float32",
        grid: Grid | None = None,
    ) -> None:
        super().__init__()
        given, seed = seed, int(torch.randint(2**63 - 1, (), device="cpu")) if seed is None else plain(seed)
        if type(seed) is not int or not -(2**63) <= seed < 2**64:
            raise DescriptionError(f"Model: seed is {given!r}; allowed: whole numbers from -2^63 to 2^64 - 1, or None")
        if not isinstance(network, Network):
            raise DescriptionError(f"Model: network is {network!r}; give a Network, such as parse_net('700-256r-20')")
        receivers = network.receivers()
        self.network = network
        self.source = network.inputs[0]
        self.senders = {name: network.senders(name) for name in receivers}
        self.first_connections = tuple(c for c in network.connections if c.pre == self.source)
        self.reads_currents = gives_currents(network)
        self.depth = network.history(self.source)
        self.backend = backend
        self.dense_mode = dense_mode
        self.weight_dtype = weight_dtype
        self.runner = make_runner(backend, {"weight_dtype": weight_dtype, "dense_mode": dense_mode}, network, grid)
        generator = torch.Generator("cpu").manual_seed(seed)
        at_once = self.runner.numbers_drawn
        room = torch.empty(at_once, dtype=torch.float32, device="cpu") if at_once else None
        self.layers = nn.ModuleDict()
        for name, population in receivers.items():
            layer = Layer(
                population,
                incoming_of(network, name),
                backend=backend,
                dense_mode=dense_mode,
                history=network.history(name),
                weight_dtype=weight_dtype,
                generator=generator,
                runner=self.runner,
                part=self.parts.part(name) if self.parts else None,
                room=room,
            )
            layer.rotation_seed = population_seed(seed, list(network.populations).index(name))
            self.layers[name] = layer
        self.watch: Watch | None = None if grid else Watch(network)

    if TYPE_CHECKING:  # `nn.Module.__call__` returns Any

        def __call__(
            self,
            spikes: SpikeBatch | DenseSpikes,
            state: Mapping[str, LayerState] | None = None,
            *,
            record: Record = (),
            heard: Heard | None = None,
            first_sample: int = 0,
            n_steps: int | None = None,
            potentials: bool = False,
        ) -> Output: ...

    @property
    def is_traceable(self) -> bool:
        """Whether `torch.compile` may trace it."""
        return self.runner.is_traceable

    @untraced
    def forward(
        self,
        spikes: SpikeBatch | DenseSpikes,
        state: Mapping[str, LayerState] | None = None,
        *,
        record: Record = (),
        heard: Heard | None = None,
        first_sample: int = 0,
        n_steps: int | None = None,
        potentials: bool = False,
    ) -> Output:
        """Runs the input through all populations.

        Args:
            spikes: T steps of B samples; the backend dense also reads `DenseSpikes`. For a network with `Input(currents=True)`: its
                currents float32[T, B, N], or [B, N] with `n_steps`; a tensor that is expanded over time is read once.
            state: continues an earlier chunk (`Output.state`).
            record: populations whose potentials, currents and other states are recorded in `Output.traces`: their names, or
                neuron ids by name, `{"hidden": [0, 7]}`. Memory is T·B·K numbers per state for K neurons.
            heard: selects the spikes that dropout keeps, see `sparsesnn.engines.dropout`; the output holds all spikes.
            first_sample: over ranks, whose replicas run whole sequences: the number of samples of the batch that come before
                these, on other replicas.
            n_steps: T of currents [B, N], which are the same at all steps: one copy is kept, whose gradient is the sum over them.
            potentials: also return the potentials of a last population that fires, in `Output.potentials`. Default: False.
        """
        check_tracers("a model")
        check_transforms("a model", read=self.parameters())
        chosen = chosen_neurons(self.network, record) if record else {}
        spikes = self._checked_input(spikes, n_steps)
        asked = self.network.output if potentials and fires(self.network.populations[self.network.output]) else ""
        if self.parts and (state is not None or chosen):
            raise TypeError(
                "A network over ranks takes no state and records nothing: run whole sequences, or chunks of them on one rank; "
                "give the samples that other replicas run as first_sample=…"
            )
        check_state(state)
        past = state or {}
        needed = [*self.layers, *([self.source] if self.depth else [])] if past else []
        if missing := [name for name in needed if name not in past]:
            raise ShapeError(
                f"Model: the state has no {missing[0]!r}; give the state of an output, output.state, or None"
            )
        data = self.runner.read(self, spikes)
        traces: dict[str, Traces] = {}
        with parametrize.cached() if chosen else nullcontext():  # the same weights in traces as in the pass
            ran = self.runner.run_network(self, data, past, heard, first_sample, asked)
            if ran is None:
                with self.runner.layers_run(self.layers._modules):
                    ran = self._layer_by_layer(data, past, heard, first_sample, asked)
            for name, neurons in chosen.items():
                layer: Any = self.layers[name]
                traces[name] = replay(layer, ran.arrived(name), ran.outputs[name], past.get(name), neurons)
        output = self._output(ran, past, traces)
        if self.watch and self.training and not past and torch.is_grad_enabled() and isinstance(spikes, SpikeBatch):
            self.watch.ran(spikes, output.activity)
        return output

    @untraced
    def learn(
        self,
        spikes: SpikeBatch | DenseSpikes,
        loss: Callable[[Output], Tensor],
        *,
        heard: Heard | None = None,
        first_sample: int = 0,
        n_steps: int | None = None,
        potentials: bool = False,
    ) -> tuple[Tensor, Output]:
        """Runs a forward pass, the loss and the backward pass, and adds the gradients to `.grad` of the parameters.

        Equal to `loss(model(spikes)).backward()`, bit for bit, with less Python between the engine's calls, which matters for small
        networks. It is not faster for models with hooks, with trained decays, thresholds or delays, or with parametrizations
        (weights computed from others), and on the backend dense, because it then makes these calls itself.

        Args:
            spikes: T steps of B samples, the beginning of a sequence.
            loss: computes float32[] from the output.
            heard, first_sample, n_steps, potentials: as in `forward`.

        Returns: the loss, detached; and the output, for counts and measures.

        Warns once about a population that does not spike in 20 such steps, and if torch.distributed has several processes, because
        their gradients are not summed here.
        """
        spikes = self._checked_input(spikes, n_steps)
        asked = self.network.output if potentials and fires(self.network.populations[self.network.output]) else ""
        if self.watch:
            self.watch.learns()
        self.runner.begin_backward(spikes.n_samples, first_sample)
        if learned := self.runner.learn(self, spikes, loss, heard, first_sample, asked):
            value, output = learned
            if self.watch and isinstance(spikes, SpikeBatch):
                self.watch.ran(spikes, output.activity)
        else:
            output = self(spikes, heard=heard, first_sample=first_sample, potentials=potentials)
            value = loss(output)
            value.backward()
        if self.watch:
            self.watch.learned(output.activity)
        return value.detach(), output

    @property
    def parts(self) -> Any:
        """How the network is divided over ranks, see `sparsesnn.engines.ranks.parts.Parts`; None: this process has all of it."""
        return self.runner.parts

    def _checked_input(self, spikes: Any, n_steps: int | None) -> Any:
        """The input, as `Currents` if the network reads them. Errors: `ShapeError` if it does not fit."""
        n_input = self.network.populations[self.source].n
        if self.reads_currents:
            return Currents.of(spikes, n_steps, "Model", n_input)
        if n_steps is not None:
            raise ShapeError(
                f"Model: n_steps is {n_steps!r}, but the input is spikes, which set the number of steps; allowed with Input(currents=True); leave it out"
            )
        if getattr(spikes, "n_neurons", None) != n_input or isinstance(spikes, Currents):
            raise ShapeError(_misfit(spikes, self.source, n_input))
        return spikes

    def _output(self, ran: NetworkRun, past: Mapping[str, LayerState], traces: dict[str, Traces]) -> Output:
        """The `Output` of a pass."""
        outputs, states = ran.outputs, ran.states
        if depth := self.depth:
            source, data = self.source, outputs[self.source]
            before = past[source].history if source in past else None
            given = data if isinstance(data, SpikeBatch) else as_tensor(data)
            states[source] = LayerState(history=last_steps(before, given, depth))
        last = outputs[self.network.output]
        readout = is_readout(self.network.populations[self.network.output])
        fired: dict[str, Any] = {k: v for k, v in outputs.items() if fires(self.network.populations[k])}
        return Output(
            potentials=last if readout and isinstance(last, Tensor) else ran.potentials,
            spikes=self.runner.by_name(fired),
            state={} if self.parts else states,
            output=self.network.output,
            traces=traces,
        )

    def _layer_by_layer(
        self,
        data: LayerInput,
        past: Mapping[str, LayerState],
        heard: Heard | None,
        first_sample: int,
        asked: str,
    ) -> NetworkRun:
        """Runs the layers one by one; the same as `Runner.run_network`."""
        potentials: Tensor | None = None
        outputs: dict[str, LayerInput] = {self.source: data}
        states: dict[str, LayerState] = {}
        inputs: dict[str, list[LayerInput]] = {}
        read: Callable[[str], Any] = outputs.__getitem__
        if heard:
            read = after_dropout(self.network, outputs, partial(self.runner.thinned, heard=heard))
        for name, layer in self.layers.items():
            inputs[name] = []
            for c in self.senders[name]:
                before = past[c.pre].history if c.pre in past else None
                x = read(c.pre)
                inputs[name].append(x if not c.reach or before is None else _extend(before, x, c.reach))
            try:
                more = {"potentials": True} if name == asked else {}
                outputs[name], states[name], *found = layer(
                    inputs[name], past.get(name), packed=True, first_sample=first_sample, **more
                )
                potentials = found[0] if found else potentials
            except NumericError as error:
                raise NumericError(f"{name}: {error}") from None

        def arrived(name: str) -> list[LayerInput]:
            layer: Any = self.layers[name]
            return layer.arrived(inputs[name], past.get(name))  # type: ignore[no-any-return]

        return NetworkRun(outputs, states, arrived, potentials)

    def finish_backward(self) -> None:
        """Over ranks: completes the sums over replicas."""
        self.runner.finish_backward()

    @contextmanager
    def settled(self) -> Iterator[None]:
        """Context in which each layer's `tensor` gives the values of the next pass in evaluation; see `PopulationModule.settled`."""
        with ExitStack() as stack:
            for name, layer in self.layers.items():
                assert isinstance(layer, Layer)
                stack.enter_context(layer.settled(name))
            yield

    def live(self) -> LiveModel:
        """A copy of this network that runs continuously, a few steps at a time; see `LiveModel`."""
        return LiveModel(self)

    def former_names(self) -> Mapping[str, str]:
        return former_names(self.network)

    def _load_from_state_dict(self, state_dict: dict[str, Tensor], prefix: str, *args: Any) -> None:
        """Also reads weights under their former names."""
        for before, name in self.former_names().items():
            if prefix + before in state_dict:
                state_dict[prefix + name] = state_dict.pop(prefix + before)
        super()._load_from_state_dict(state_dict, prefix, *args)

    def readable(self, spikes: SpikeBatch) -> LayerOutput:
        """Spikes in the form that single layers read."""
        found: LayerOutput = self.runner.readable(spikes)
        return found


def _extend(before: LayerOutput, x: LayerInput, delay: int) -> LayerOutput:
    """`x` with the `delay` steps before it in front."""
    given = x if isinstance(x, SpikeBatch) else as_tensor(x)
    return join(steps_from(before, n_steps(before) - delay), given)
