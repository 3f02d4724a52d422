"""The modules that a traced `forward` calls: neurons, synapses, and all others, which stay PyTorch's."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from sparsesnn.conversion.labels import Port, Signal
from sparsesnn.conversion.libraries import spec_of
from sparsesnn.conversion.libraries.spec import Spec
from sparsesnn.errors import DescriptionError


@dataclass(eq=False)
class Call:
    """One call of a module.

    Args:
        leaf: the module.
        index: how many calls of it came before.
        line: of the user's code.
        given: its first argument.
        signal: of the first argument; None if no known module has a part in it.
        states: signals of its other tensors, or None, and whether they are all 0.
        ports: its output.
        output: the same as the module returned it.
    """

    leaf: Leaf
    index: int
    line: str
    given: Tensor
    signal: Signal | None
    states: list[tuple[Signal | None, bool]] = field(default_factory=list)
    ports: list[Port] = field(default_factory=list)
    output: Any = None

    @property
    def is_front(self) -> bool:
        """Whether these are synapses and no neuron had a part in their input."""
        if self.leaf.kind != "synapses":
            return False
        return self.signal is None or all(port.call.is_front for port in self.signal.ports)

    def stay(self) -> None:
        """Leaves the module, and the modules in front of it, to PyTorch."""
        self.leaf.stays = True
        for port in self.signal.ports if self.signal else ():
            port.call.stay()


@dataclass(eq=False)
class Leaf:
    """A module whose inside is not traced.

    Args:
        name: in the network, `layers.0`; "" for the network itself.
        module: the library's.
        kind: "neurons", "synapses", or "other".
        spec: of neurons.
        calls: in the trace.
        stays: synapses in front of all neurons whose output is used for more than currents; PyTorch computes them.
    """

    name: str
    module: nn.Module
    kind: str
    spec: Spec | None = None
    calls: list[Call] = field(default_factory=list)
    stays: bool = False

    @property
    def where(self) -> str:
        """The beginning of messages."""
        line = f" at {self.calls[0].line}" if self.calls else ""
        return f"convert: {self.name or 'the network'} ({type(self.module).__name__}){line}"


#: names of classes whose instances carry spikes as weights or pools do
_SYNAPSES = ("Linear", "Conv2d", "AvgPool2d", "MaxPool2d", "SumPool2d")


def find_leaves(network: nn.Module) -> list[Leaf]:
    """The modules of a network without the inside of neurons. Errors: `DescriptionError` for neurons without an equivalent, and if there are none."""
    leaves: list[Leaf] = []
    inside: set[int] = set()
    for name, module in network.named_modules():
        if id(module) in inside:
            continue
        leaf = Leaf(name, module, "other")
        spec = spec_of(module, leaf.where)
        if spec is not None:
            leaf.kind, leaf.spec = "neurons", spec
        elif _is_synapses(module):
            leaf.kind = "synapses"
        elif any(True for _ in module.children()) or module is network:
            continue
        inside |= {id(m) for m in module.modules()}
        if leaf.kind != "other":
            _check_numbers(leaf)
        leaves.append(leaf)
    if not any(leaf.kind == "neurons" for leaf in leaves):
        found = sorted({type(leaf.module).__name__ for leaf in leaves})
        raise DescriptionError(
            f"convert: {type(network).__name__} has no spiking neurons of snnTorch, SpikingJelly, Norse or Sinabs, but {', '.join(found) or 'no modules'}; "
            "give a network of one of these libraries"
        )
    return leaves


def _check_numbers(leaf: Leaf) -> None:
    for name, x in leaf.module.named_parameters():
        if x.dtype != torch.float32 or x.device.type != "cpu":
            raise DescriptionError(
                f"{leaf.where}: its {name} is {x.dtype} on {x.device}; allowed: float32 on the CPU; convert it by .float().cpu()"
            )


def _is_synapses(module: nn.Module) -> bool:
    kind = type(module)
    if (
        kind.__name__ not in _SYNAPSES
        or getattr(module, "ceil_mode", False)
        or getattr(module, "return_indices", False)
    ):
        return False
    if kind.__name__ == "Conv2d":
        return getattr(module, "padding_mode", "") == "zeros" and not isinstance(getattr(module, "padding", ""), str)
    if kind.__name__.endswith("Pool2d"):
        plain = getattr(module, "padding", 0) in (0, (0, 0)) and getattr(module, "dilation", 1) in (1, (1, 1))
        return (
            plain and getattr(module, "count_include_pad", True) and getattr(module, "divisor_override", None) is None
        )
    return kind.__module__.partition(".")[0] in ("torch", "spikingjelly", "sinabs")


#: the arguments of PyTorch's functions that pool
_POOLS = {
    "max_pool2d": ("input", "kernel_size", "stride", "padding", "dilation", "ceil_mode"),
    "avg_pool2d": ("input", "kernel_size", "stride", "padding", "ceil_mode", "count_include_pad", "divisor_override"),
    "adaptive_avg_pool2d": ("input", "output_size"),
    "adaptive_max_pool2d": ("input", "output_size"),
}


def pool_of(name: str, args: Sequence[Any], kwargs: Mapping[str, Any], given: Tensor) -> nn.Module | None:
    """The module that does the same as a function that pools maps, such as `max_pool2d(x, 2)`; None if there is none.

    An adaptive pool whose output divides the maps has windows of one size.
    """
    if name not in _POOLS or given.dim() != 4:
        return None
    arguments = {k: x for k, x in {**dict(zip(_POOLS[name], args, strict=False)), **kwargs}.items() if k != "input"}
    kind = nn.MaxPool2d if "max" in name else nn.AvgPool2d
    if name.startswith("adaptive"):
        wanted = arguments["output_size"]
        wanted = wanted if isinstance(wanted, (tuple, list)) else (wanted, wanted)
        sizes = [n if w is None else w for n, w in zip(given.shape[-2:], wanted, strict=True)]
        if any(n % w for n, w in zip(given.shape[-2:], sizes, strict=True)):
            return None
        height, width = (n // w for n, w in zip(given.shape[-2:], sizes, strict=True))
        return kind((height, width))
    if not arguments.pop("return_indices", False):
        arguments["stride"] = arguments.get("stride") or None  # PyTorch's functions take [] for the size of a window
        module = kind(**arguments)
        return module if _is_synapses(module) else None
    return None


@contextmanager
def replaced(leaves: list[Leaf], forward: Callable[[Leaf, Callable[..., Any]], Callable[..., Any]]) -> Iterator[None]:
    """In this context, calls of the modules go to `forward(leaf, the module's own)`."""
    before = [vars(leaf.module).get("forward") for leaf in leaves]
    try:
        for leaf in leaves:
            vars(leaf.module)["forward"] = forward(leaf, leaf.module.forward)
        yield
    finally:
        for leaf, own in zip(leaves, before, strict=True):
            if own is None:
                vars(leaf.module).pop("forward", None)
            else:
                vars(leaf.module)["forward"] = own


def weights_now(leaf: Leaf) -> None:
    """Computes weights that PyTorch computes before a call of the module, as pruning does."""
    from sparsesnn.parameters import computed_by

    for hook in leaf.module._forward_pre_hooks.values():
        if computed_by(hook):
            hook(leaf.module, ())


def empty(shape: torch.Size | tuple[int, ...]) -> Tensor:
    """A tensor without numbers, in the place of one that no one reads; reading it is an error."""
    return torch.empty(shape, device="meta")
