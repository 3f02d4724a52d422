"""A converted network: called like the library's, computed by the engine."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd
from torch.overrides import TorchFunctionMode

from sparsesnn.conversion.build import Built, build
from sparsesnn.conversion.labels import mapped, tensors_in, with_tensors
from sparsesnn.conversion.layout import Layout
from sparsesnn.conversion.leaves import Leaf, empty, replaced
from sparsesnn.conversion.trace import Trace, trace
from sparsesnn.conversion.wiring import Target, Wiring, wire
from sparsesnn.errors import DescriptionError, ShapeError, SpikeListError
from sparsesnn.layers import fires
from sparsesnn.output import Output
from sparsesnn.spikes import SpikeBatch


def convert(module: nn.Module, *example: Any, grad_threshold: float = -math.inf, record: Sequence[str] = ()) -> Any:
    """Runs a network of snnTorch, SpikingJelly, Norse or Sinabs on the engine `cpu`, with the same parameters.

        net = ss.convert(net, torch.zeros(4, 2, 700))  # an example of the input, as the training loop gives it

    The result is called like `module`, in the same loop; it has its class, its submodules, its `state_dict`, and its parameters, which an
    existing optimizer continues to train. Each call begins at zero potentials.

    Args:
        module: float32, on the CPU. Its `forward` runs the whole sequence: a loop over time, or layers that do.
        example: arguments of `forward`; at least 2 steps and 2 samples, and spikes where the training gives spikes. It is run once.
        grad_threshold: a neuron with a potential above it receives a gradient; -inf: all do, as in the library; 0.9 for thresholds of 1 is fast.
        record: names of neuron modules, such as "lif1", whose potentials `forward` returns or keeps although another layer follows; these
            records carry no gradient.

    A `forward` that runs one step per call cannot be converted: the library keeps running it, and a warning says so.

    Errors: `DescriptionError` for modules and lines that have no equivalent here, by name and line.
    Source: the equations of each library are in `sparsesnn.conversion.libraries`.
    """
    if isinstance(module, Converted):
        raise DescriptionError(
            f"convert: {type(module).__name__} is converted already; allowed: a network of a library; give the network itself"
        )
    if not isinstance(module, nn.Module):
        raise DescriptionError(
            f"convert: module is {type(module).__name__}; allowed: a torch.nn.Module of a library; give the network itself"
        )
    seen, wiring = _seen(module, example)
    made = _converted(module)
    made.__dict__["_made_by"] = (seen.example, float(grad_threshold), tuple(record))
    if wiring is None:
        warnings.warn(
            f"convert: {type(module).__name__}.forward runs one step a call, so it stays with the library, at its speed; put the loop over time into forward "
            "and give an example of 2 or more steps",
            UserWarning,
            stacklevel=2,
        )
        return made
    made.__dict__["_engine"] = _Engine(seen, wiring, float(grad_threshold), tuple(record))
    return made


def _seen(module: nn.Module, example: tuple[Any, ...]) -> tuple[Trace, Wiring | None]:
    """A trace and its wiring, of a few steps and samples if `forward` runs them; no wiring if it runs one step a call."""
    small = tuple(map(_part, example))
    if any(x is not y for x, y in zip(small, example, strict=True)):
        try:
            seen = trace(module, module.forward, small)
            return seen, None if _runs_one_step(seen) else wire(seen)
        except Exception:  # forward may need the sizes that it has: the whole example tells
            pass
    seen = trace(module, module.forward, example)
    return seen, None if _runs_one_step(seen) else wire(seen)


def _part(x: Any) -> Any:
    """The beginning of a tensor of steps and samples, or of samples."""
    if not isinstance(x, Tensor) or x.dim() < 2:
        return x
    part = x[:4, :3] if x.dim() > 2 else x[:4]
    return x if part.shape == x.shape else part


def _runs_one_step(seen: Trace) -> bool:
    return all(
        leaf.spec is not None and leaf.spec.layout == "step" and len(leaf.calls) == 1 for leaf in seen.of("neurons")
    )


class Converted(nn.Module):
    """The part of a converted network's class that is not the library's."""

    _engine: _Engine | None
    _made_by: tuple[Any, ...]

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Copies and pickles hold the library's network, which is converted again."""
        kind: Any = type(self).__mro__[2]
        plain = kind.__new__(kind)
        plain.__dict__.update({k: x for k, x in vars(self).items() if k not in ("_engine", "_made_by")})
        return _again, (plain, *self._made_by)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """That of the library's network."""
        own = super().forward  # the next class is the user's
        if self._engine is None:
            return own(*args, **kwargs)
        self._engine.check_dropout(self.training)
        return self._engine.run(own, args, kwargs)


def _again(module: nn.Module, example: tuple[Any, ...], grad_threshold: float, record: tuple[str, ...]) -> Any:
    return convert(module, *example, grad_threshold=grad_threshold, record=record)


def _converted(module: nn.Module) -> Any:
    """The same module, of a class that is `Converted` too: it shares parameters, buffers and submodules."""
    kind: Any = type(module)
    made: Any = type(kind.__name__, (Converted, kind), {"__module__": kind.__module__, "__doc__": kind.__doc__})
    new = made.__new__(made)
    new.__dict__.update(module.__dict__)
    new.__dict__["_engine"] = None
    return new


@dataclass(frozen=True)
class _Wanted:
    """One output of a module that the user's lines read: spikes or potentials."""

    target: Target
    port: str


class _OtherStepsError(Exception):
    """`forward` ran another number of steps than the input showed."""


class _Engine:
    """Runs the model, and the user's `forward` around it.

    A pass reads the input, runs all steps on the engine, and then runs the user's `forward` with modules that only hand out results, so that
    its lists, sums and shapes come out as before.
    """

    def __init__(self, seen: Trace, wiring: Wiring, grad_threshold: float, record: tuple[str, ...]) -> None:
        self.leaves, self.wiring = seen.leaves, wiring
        self.wired = {leaf for target in wiring.targets for link in target.links for leaf in link.synapses}
        self.by_leaf = {target.leaf: target for target in wiring.targets}
        needed = {(p.call.leaf, p.name) for p in seen.tracing.needed}
        names = {leaf.name: leaf for leaf in self.by_leaf if leaf.kind == "neurons"}
        if unknown := [name for name in record if name not in names]:
            raise DescriptionError(
                f"convert: record has {unknown[0]!r}; allowed: the network's neurons, {', '.join(names)}; give their names"
            )
        self.recorded = [names[name] for name in record]
        self.wanted = {
            w
            for w in (_Wanted(self.by_leaf[leaf], _port(name)) for leaf, name in needed if leaf in self.by_leaf)
            if w.port != "state"
        }
        self.wanted |= {_Wanted(self.by_leaf[leaf], port) for leaf in self.recorded for port in ("spikes", "v")}
        self.wanted |= {
            _Wanted(self.by_leaf[leaf], "spikes")
            for leaf in names.values()
            if leaf.module._forward_hooks and leaf.spec and leaf.spec.fires
        }
        sending = {link.sender for target in wiring.targets for link in target.links}
        heads = [w.target.leaf for w in self.wanted if w.port == "v" and w.target.leaf not in self.recorded]
        for leaf in heads:
            if leaf in sending:
                raise DescriptionError(
                    f"{leaf.where}: forward returns its potential, but other layers read its spikes; allowed: potentials of the last layer, and records without "
                    f"gradient; give record=[{leaf.name!r}], or do not return it"
                )
        if len(heads) > 1:
            raise DescriptionError(
                f"{heads[1].where}: its potential and that of {heads[0].name} are outputs; allowed: one; give record=[{heads[1].name!r}]"
            )
        self.head = heads[0] if heads else None
        self.skips_dropout = seen.tracing.skips_dropout
        given_out = {(w.target.leaf, w.port) for w in self.wanted}
        parts = (
            {(p.call.leaf, _port(p.name)) in given_out for ports in op for p in ports} for op in seen.tracing.joined
        )
        self.mixes = any(len(part) > 1 for part in parts)
        trained = (
            [k for k, x in self.head.spec.tensors().items() if x.requires_grad] if self.head and self.head.spec else []
        )
        if self.head and trained and self.head.spec and self.head.spec.fires:
            raise DescriptionError(
                f"{self.head.where}: forward returns its potential, and its {trained[0]} is trained; allowed: one of them for a layer that fires; return its "
                f"spikes alone, or train no {trained[0]} there"
            )
        self.built: Built = build(wiring, grad_threshold, self.head)
        self.slices = _slices(wiring, seen.example)
        self.shapes = {
            leaf: tuple(leaf.calls[0].ports[0].shape) for leaf in self.leaves if leaf.calls and leaf.kind != "other"
        }
        self.outputs = {leaf: leaf.calls[0].output for leaf in self.leaves if leaf.calls and leaf.kind == "neurons"}
        for leaf in self.leaves:  # the example's tensors are not kept
            for call in leaf.calls:
                call.signal, call.states = None, []
        self._kept: dict[Leaf, list[Any]] = {}
        self._placeholders: dict[tuple[Leaf, torch.Size], Any] = {}

    # ---- passes ------------------------------------------------------------------------------------------------

    def check_dropout(self, is_training: bool) -> None:
        """`DescriptionError` in train mode if the network was converted in eval mode, in which its dropouts do nothing."""
        off = (leaf.module for leaf in self.leaves if isinstance(leaf.module, _DropoutNd))
        if self.skips_dropout and (is_training or any(module.training for module in off)):
            raise DescriptionError(
                "convert: the network was converted in eval mode, in which its dropouts do nothing, and is in train mode; allowed: eval mode; call "
                "eval(), or remove the dropouts and convert it again"
            )

    def run(self, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        self._kept = {}
        data = self._from_argument(args, kwargs)
        if data is not None:
            try:
                return self._answer(forward, args, kwargs, data)
            except _OtherStepsError:
                pass  # forward decides itself how many steps it runs
        return self._answer(forward, args, kwargs, self._from_forward(forward, args, kwargs))

    def _from_argument(self, args: Any, kwargs: Any) -> tuple[Tensor, int] | None:
        """The input's [T, B, …] or constant [B, …], and T, if the argument shows them."""
        if self.slices is None or kwargs or not args or not isinstance(args[0], Tensor):
            return None
        x: Tensor = args[0]
        axis, n = self.slices.axis, math.prod(self.slices.shape)
        if x.dim() != self.slices.n_axes or x.shape.numel() != n * math.prod(x.shape[: 1 if axis is None else 2]):
            return None
        if axis is None:
            return x.reshape(x.shape[0], *self.slices.shape), self.wiring.n_steps
        steps = x.movedim(axis, 0)
        return steps.reshape(*steps.shape[:2], *self.slices.shape), steps.shape[0]

    def _from_forward(self, forward: Callable[..., Any], args: Any, kwargs: Any) -> tuple[Tensor, int]:
        """The same, from a run of `forward` as far as the first neurons."""
        front = self.wiring.front
        taken: list[Tensor] = []
        steps = dict.fromkeys(self.by_leaf, 0)

        def collect(leaf: Leaf, own: Callable[..., Any]) -> Callable[..., Any]:
            def replace(given: Tensor, *more: Any, **options: Any) -> Any:
                if leaf is front.leaf:
                    taken.append(given)
                if leaf in steps:
                    steps[leaf] += 1
                    return self._placeholder(leaf, given)
                if given.is_meta or leaf is front.leaf or leaf in self.wired:
                    return self._placeholder(leaf, given)
                return own(given, *more, **options)

            def keep(*inputs: Any, **options: Any) -> Any:
                made = own(*inputs, **options)
                if not any(x.is_meta for x in tensors_in(made)):
                    self._kept.setdefault(leaf, []).append(made)  # a batch norm, say, sees each input once
                return made

            return keep if leaf.kind == "other" else replace

        with replaced(self.leaves, collect):
            forward(*args, **kwargs)
        if not taken:
            raise ShapeError(
                f"{front.leaf.where}: was not called; allowed: the same modules in every call; convert the network again with such an input"
            )
        n_calls = max(steps.values())
        layout = front.layout
        if layout.kind in ("step", "constant"):
            n_steps = n_calls
            if layout.kind == "step" and not front.is_spikes and all(_same(x, taken[0]) for x in taken):
                return taken[0], n_steps
        else:
            n_steps = self._steps_of(taken[0], layout)
        return layout.joined(taken[:1] if layout.kind == "constant" else taken, n_steps), n_steps

    def _steps_of(self, x: Tensor, layout: Layout) -> int:
        if not layout.flat:
            return int(x.shape[0 if layout.kind == "tb" else 1])
        for target in self.wiring.targets:
            if target.leaf.spec and target.leaf.spec.layout == "bt flat":
                return target.leaf.spec.times(x.shape[0])
        return self.wiring.n_steps

    def _answer(self, forward: Callable[..., Any], args: Any, kwargs: Any, data: tuple[Tensor, int]) -> Any:
        found = self._results(*data)
        calls: dict[Leaf, int] = {}

        def answer(leaf: Leaf, own: Callable[..., Any]) -> Callable[..., Any]:
            given_out = {w.port: found[w] for w in self.wanted if w.target.leaf is leaf}

            def replace(given: Tensor, *more: Any, **options: Any) -> Any:
                k = calls.get(leaf, 0)
                calls[leaf] = k + 1
                if not k and any(x.is_meta for x in tensors_in((list(more), options))):
                    raise ShapeError(
                        f"{leaf.where}: begins with the state of an earlier call; allowed: each call begins at zero; run the whole sequence in one call"
                    )
                if given_out and k >= len(next(iter(given_out.values()))):
                    raise _OtherStepsError
                return self._placeholder(leaf, given, {port: x[k] for port, x in given_out.items()})

            def again(*inputs: Any, **options: Any) -> Any:
                kept = self._kept.get(leaf)
                return kept.pop(0) if kept else own(*inputs, **options)

            return again if leaf.kind == "other" else replace

        with replaced(self.leaves, answer), _Mixed() if self.mixes else nullcontext():
            result = forward(*args, **kwargs)
        for w in self.wanted:
            if calls.get(w.target.leaf, 0) != len(found[w]):
                raise _OtherStepsError
        return result

    def _placeholder(self, leaf: Leaf, given: Tensor, real: dict[str, Tensor] | None = None) -> Any:
        """The output of a module, with results where they are wanted; without any, the same object in every step."""
        key = leaf, given.shape
        if key not in self._placeholders:
            self._placeholders[key] = self._without_numbers(leaf, given.shape)
        found = self._placeholders[key]
        if not real:
            return found
        if leaf.spec is None:
            return real["v"]
        values = zip(leaf.spec.ports, tensors_in(found), strict=True)
        return mapped(found, iter([real.get(port, x) for port, x in values]))

    def _without_numbers(self, leaf: Leaf, shape: torch.Size) -> Any:
        if leaf.spec is not None:
            return mapped(self.outputs[leaf], (empty(shape) for _ in leaf.spec.ports))
        if not hasattr(leaf.module, "weight"):  # a pool, which may serve maps of several sizes
            return type(leaf.module).forward(leaf.module, empty(shape))
        n = 1 if type(leaf.module).__name__ == "Linear" else 3
        return empty((*shape[: len(shape) - n], *self.shapes[leaf][-n:]))

    # ---- the model ---------------------------------------------------------------------------------------------

    def _results(self, x: Tensor, n_steps: int) -> dict[_Wanted, list[Tensor]]:
        """Runs the model; the tensor of each call of the wanted outputs."""
        self.built.refresh()
        output = self._model_output(x, n_steps)
        found: dict[_Wanted, list[Tensor]] = {}
        for w in self.wanted:
            leaf, name = w.target.leaf, self.built.names[w.target.leaf]
            if w.port == "spikes":
                dense: Any = output.spikes[name].to_dense()
            else:
                dense = output.potentials if leaf is self.head else output.traces[name].v
                if leaf.spec and leaf.spec.scale != 1:
                    dense = dense / leaf.spec.scale
            if leaf in self.built.order:
                dense = dense[..., torch.argsort(self.built.order[leaf])]
            found[w] = w.target.layout.parted(dense.unflatten(-1, w.target.shape) if len(w.target.shape) > 1 else dense)
        return found

    def _model_output(self, x: Tensor, n_steps: int) -> Output:
        front = self.wiring.front
        model: Callable[..., Output] = self.built.model
        record = [self.built.names[leaf] for leaf in self.recorded]
        network = self.built.model.network
        last = network.populations[network.output]
        potentials = self.head is not None and fires(last)
        if front.is_spikes:
            return model(_lists(x.flatten(2)), record=record, potentials=potentials)
        lead = x.shape[: x.dim() - self._front_axes()]
        if front.leaf.kind == "synapses":
            whole = front.layout.kind in ("tb", "bt") and not front.layout.flat
            x = front.leaf.module(x) if whole else front.leaf.module(x.flatten(0, len(lead) - 1)).unflatten(0, lead)
        x = x.flatten(len(lead))
        constant = {"n_steps": n_steps} if len(lead) == 1 else {}
        if front.target and front.target.leaf in self.built.order:
            x = x[..., self.built.order[front.target.leaf]]
        return model(x, record=record, potentials=potentials, **constant)

    def _front_axes(self) -> int:
        front = self.wiring.front
        if front.leaf.kind == "synapses":
            return 1 if type(front.leaf.module).__name__ == "Linear" else 3
        assert front.target
        return len(front.target.shape)


class _Mixed(TorchFunctionMode):
    """Joins results with tensors without numbers, in sums and `torch.cat`; only synapses read the result."""

    def __torch_function__(self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = list(tensors_in((args, kwargs or {})))
        if len(given) > 1 and any(x.is_meta for x in given) and not all(x.is_meta for x in given):
            bare = {id(x): empty(x.shape) for x in given if not x.is_meta}
            args, kwargs = with_tensors(args, bare), with_tensors(kwargs, bare)
        return func(*args, **(kwargs or {}))


def _lists(x: Tensor) -> SpikeBatch:
    """Spikes of a tensor [T, B, N]; numbers other than 0 and 1 are spikes with values."""
    gradient = "all" if x.requires_grad and torch.is_grad_enabled() else "none"
    try:
        return SpikeBatch.from_dense(x, gradient=gradient)
    except SpikeListError:
        return SpikeBatch.from_dense(x, gradient=gradient, graded=True)


def _port(name: str) -> str:
    """Synapses at the end are a readout, whose potential is their weighted sum."""
    return "v" if name == "currents" else name


@dataclass(frozen=True)
class _Slices:
    """How the steps of the input are parts of the first argument: along an axis; None: all steps read all of it."""

    axis: int | None
    shape: tuple[int, ...]
    n_axes: int


def _slices(wiring: Wiring, example: tuple[Any, ...]) -> _Slices | None:
    """How a loop reads its input, if it takes it from the first argument as it is."""
    front = wiring.front
    if not example or not isinstance(example[0], Tensor) or front.layout.kind not in ("step", "constant"):
        return None
    x: Tensor = example[0]
    given = [call.given for call in front.leaf.calls]
    shape = tuple(given[0].shape[1:])
    if x.shape.numel() == given[0].shape.numel() and all(_same(y, x.reshape(given[0].shape)) for y in given):
        return _Slices(None, shape, x.dim()) if not front.is_spikes else None
    if front.layout.kind == "constant":
        return None
    for axis in range(min(2, x.dim())):
        if x.shape[axis] == len(given) and all(
            x.select(axis, k).numel() == y.numel() and _same(y, x.select(axis, k).reshape(y.shape))
            for k, y in enumerate(given)
        ):
            return _Slices(axis, shape, x.dim())
    return None


def _same(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors are the same memory."""
    return a.data_ptr() == b.data_ptr() and a.shape == b.shape and a.stride() == b.stride()
