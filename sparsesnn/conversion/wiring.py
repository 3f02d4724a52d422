"""From a trace to populations and connections."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sparsesnn.conversion.labels import ZERO, Port, Signal
from sparsesnn.conversion.layout import OF_NEURONS, Layout, found_layout
from sparsesnn.conversion.leaves import Leaf
from sparsesnn.conversion.trace import Trace
from sparsesnn.errors import DescriptionError

_BETWEEN = "Linear, Conv2d, pools, views, sums"
#: functions that put tensors side by side
_PRODUCTS = ("mul", "__mul__", "__rmul__", "__imul__", "mul_", "div", "__truediv__", "div_")
_JOINS = ("cat", "concat", "concatenate", "hstack", "vstack")


@dataclass(eq=False)
class Link:
    """Synapses into a population.

    Args:
        sender: neurons, or None: the network's input.
        synapses: one after the other.
        delay: in steps.
        order: int[n], the sender's neuron of each input of the first synapses, in the library's order.
        part: int[n], the inputs of the last synapses that the sender's numbers are: features of a Linear, channels of a convolution; None: all.
        term: links of one term of the population's input have one number: one call of the last synapses, which adds its bias once.
    """

    sender: Leaf | None
    synapses: list[Leaf]
    delay: int = 0
    order: np.ndarray | None = None
    part: np.ndarray | None = None
    term: int = 0


@dataclass(eq=False)
class Target:
    """A population.

    Args:
        leaf: neurons, or the last synapses of a network, whose weighted sums are its output.
        shape: of its neurons in the library: [n] or [channels, height, width].
        links: into it.
        layout: of its output.
    """

    leaf: Leaf
    shape: tuple[int, ...]
    layout: Layout
    links: list[Link] = field(default_factory=list)


@dataclass(eq=False)
class Front:
    """Where the network's input is taken.

    Args:
        leaf: the module whose input it is: the first synapses, or neurons.
        layout: of that input.
        is_spikes: spike lists are made of it; otherwise currents, which PyTorch computes.
        target: of currents.
    """

    leaf: Leaf
    layout: Layout
    is_spikes: bool
    target: Target | None = None


@dataclass(eq=False)
class Wiring:
    """The populations in the order in which they run, the input, and T and B of the example."""

    targets: list[Target]
    front: Front
    n_steps: int
    n_samples: int


def wire(trace: Trace) -> Wiring:
    """Finds the connections between the neurons. Errors: `DescriptionError`."""
    return _Wirer(trace).wire()


class _Wirer:
    def __init__(self, trace: Trace) -> None:
        self.trace, self.tracing = trace, trace.tracing
        self.fronts: list[Front] = []
        self.n_steps = self.n_samples = self.n_terms = 0

    def wire(self) -> Wiring:
        neurons = self.trace.of("neurons")
        self._measure(neurons)
        targets = [self._neurons(leaf) for leaf in neurons]
        ends = {p.call.leaf for p in self.tracing.needed if p.call.leaf.kind == "synapses" and not p.call.is_front}
        targets += [self._end(leaf) for leaf in ends]
        targets.sort(key=lambda target: target.leaf.calls[0].ports[0].first)
        return Wiring(targets, self._front(), self.n_steps, self.n_samples)

    def _measure(self, neurons: list[Leaf]) -> None:
        """T and B, which all neurons share."""
        for leaf in neurons:
            assert leaf.spec
            shape = leaf.calls[0].given.shape
            layout = leaf.spec.layout
            if layout == "step":
                found = len(leaf.calls), shape[0]
            elif len(leaf.calls) > 1:
                raise DescriptionError(
                    f"{leaf.where}: is called {len(leaf.calls)} times, each with a whole sequence; allowed: once; give each layer its own neurons"
                )
            elif layout == "tb":
                found = shape[0], shape[1]
            elif layout == "bt":
                found = shape[1], shape[0]
            else:
                n_steps = leaf.spec.times(shape[0])
                found = n_steps, shape[0] // n_steps
            if len(shape) <= OF_NEURONS[layout].n_lead:
                raise DescriptionError(
                    f"{leaf.where}: its input has shape {list(shape)}; allowed: with an axis for the batch; give the example a batch"
                )
            if self.n_steps and found != (self.n_steps, self.n_samples):
                raise DescriptionError(
                    f"{leaf.where}: runs {found[0]} steps of {found[1]} samples, but others run {self.n_steps} of {self.n_samples}; allowed: the "
                    "same for all; call every layer once in each step"
                )
            self.n_steps, self.n_samples = found
        whole = [leaf for leaf in neurons if leaf.spec and leaf.spec.layout != "step"]
        if whole and self.n_steps < 2:  # one call for one step looks like a call for each
            raise DescriptionError(
                f"{whole[0].where}: the example has 1 step; allowed: 2 or more; give a longer example"
            )

    # ---- populations -------------------------------------------------------------------------------------------

    def _neurons(self, leaf: Leaf) -> Target:
        assert leaf.spec
        layout = OF_NEURONS[leaf.spec.layout]
        target = Target(leaf, tuple(leaf.calls[0].given.shape[layout.n_lead :]), layout)
        self._check_states(leaf)
        signals = [call.signal for call in leaf.calls]
        if all(x is None for x in signals):
            self.fronts.append(Front(leaf, layout, False, target))
            return target
        if None in signals:
            k = signals.index(None)
            raise DescriptionError(
                f"{leaf.where}: its input in step {k} comes from no known module, but in other steps it does; allowed: the same in all steps; begin "
                "with zeros through the same modules"
            )
        for terms in self._terms([x for x in signals if x], leaf, layout):
            self._currents(target, terms)
        return target

    def _end(self, leaf: Leaf) -> Target:
        """A population of the weighted sums that are the network's output."""
        ports = [call.ports[0] for call in leaf.calls]
        n_lead = len(ports[0].shape) - _n_features(leaf)
        shape = tuple(ports[0].shape[n_lead:])
        signals = [
            Signal((torch.arange(p.first, p.first + p.shape.numel()).view(p.shape),), frozenset([p])) for p in ports
        ]
        if len(ports) == self.n_steps and n_lead == 1:
            layout = Layout("step")
        elif len(ports) == 1:
            layout = self._layout_of_end(leaf, n_lead)
        else:
            raise DescriptionError(
                f"{leaf.where}: is called {len(ports)} times in {self.n_steps} steps; allowed: once a step; give each use its own module"
            )
        target = Target(leaf, shape, layout)
        for terms in self._terms(signals, leaf, layout):
            self._currents(target, terms)
        return target

    def _layout_of_end(self, leaf: Leaf, n_lead: int) -> Layout:
        """Of a call that holds all steps: the order of its sender's steps and samples."""
        signal = leaf.calls[0].signal
        if signal is None or not signal.terms:
            raise self._changed(leaf, signal)
        rows = signal.terms[0].reshape(self.n_steps * self.n_samples, -1)[:, 0]
        index, place = self.tracing.decode(rows)
        port = self.tracing.ports[int(index[0])]
        sender = port.call.leaf
        if sender.kind != "neurons":
            return self._layout_of_end(sender, n_lead)
        assert sender.spec
        own = OF_NEURONS[sender.spec.layout].kind
        t, _, _ = self._place(index, place)
        kind = (
            ("tb" if t[0] == t[1] else "bt") if min(self.n_steps, self.n_samples) > 1 else "bt" if own == "bt" else "tb"
        )
        return Layout(kind, flat=n_lead == 1)

    def _check_states(self, leaf: Leaf) -> None:
        """States go from call to call unchanged, and begin at zero."""
        for k, call in enumerate(leaf.calls):
            for i, (signal, is_zero) in enumerate(call.states):
                if k == 0 and not (signal is None and is_zero):
                    raise DescriptionError(
                        f"{leaf.where}: begins with a state that is not zero; allowed: zeros, as the library's own beginning; leave the state out"
                    )
                before = leaf.calls[k - 1].ports[
                    i - len(call.states)
                ]  # states come last, in the order in which they are returned
                kept = signal is not None and len(signal.terms) == 1 and _is_whole(signal.terms[0], before)
                if k and not kept:
                    how = signal.problem if signal and signal.problem else "another tensor"
                    raise DescriptionError(
                        f"{leaf.where}: its state in step {k} is not the one that step {k - 1} returned ({how}); allowed: states passed on unchanged; "
                        "pass on the state of the call before"
                    )

    # ---- origins of currents -----------------------------------------------------------------------------------

    def _terms(self, signals: list[Signal], leaf: Leaf, layout: Layout) -> list[Tensor]:
        """Labels [T, B, n] of each term of the inputs of all calls: of each module that has a part in them."""
        by_leaf: dict[tuple[Leaf, int], list[Tensor]] = {}
        for k, signal in enumerate(signals):
            if signal.problem:
                raise self._changed(leaf, signal)
            times: dict[Leaf, int] = {}
            for term in signal.terms:
                sender = self._sender(term, leaf)
                if sender is None:
                    continue
                key = sender, times.setdefault(sender, 0)
                times[sender] += 1
                calls = by_leaf.setdefault(key, [])
                calls += [torch.full_like(term, ZERO)] * (k - len(calls))
                calls.append(term)
        for calls in by_leaf.values():
            calls += [torch.full_like(calls[0], ZERO)] * (len(signals) - len(calls))
        return [layout.joined(calls, self.n_steps).flatten(2) for calls in by_leaf.values()]

    def _sender(self, term: Tensor, leaf: Leaf) -> Leaf | None:
        """The module that made a term; None of zeros."""
        index, place = self.tracing.decode(term)
        found = {self.tracing.ports[k].call.leaf for k in np.unique(index[place >= 0])}
        if len(found) > 1:
            names = ", ".join(sorted(x.name for x in found))
            raise DescriptionError(
                f"{leaf.where}: reads numbers of several modules side by side ({names}); allowed: sums, and spikes of several layers side by side in front "
                "of one Linear or Conv2d; give each its own Linear, and add the results"
            )
        return next(iter(found), None)

    def _currents(self, target: Target, labels: Tensor) -> None:
        """Adds the links that a term of a population's input comes from."""
        leaf = target.leaf
        index, place = self.tracing.decode(labels)
        made = place >= 0
        if not made.any():
            return
        sender = self.tracing.ports[int(index[made][0])].call.leaf
        if sender.kind != "synapses":
            raise DescriptionError(
                f"{leaf.where}: reads the output of {sender.name} without synapses; allowed: {_BETWEEN}; put a Linear between them"
            )
        self.n_terms += 1
        self._through(target, sender, labels, [])

    def _through(self, target: Target, synapses: Leaf, labels: Tensor, behind: list[Leaf]) -> None:
        """Follows currents to the input of the synapses that made them.

        Args:
            labels: int64[T, B, n] of the synapses' output.
            behind: the synapses after them.
        """
        index, place = self.tracing.decode(labels)
        made = place >= 0
        ports = self.tracing.ports
        n_out = int(np.prod(ports[int(index[made][0])].shape[-_n_features(synapses) :]))
        features = np.broadcast_to(np.arange(labels.shape[2]), labels.shape)
        row = np.where(made, place // n_out, -1)
        call = np.where(made, np.array([p.call.index for p in ports])[index], -1)
        if (
            labels.shape[2] != n_out
            or (place % n_out != features)[made].any()
            or (row != row[..., :1]).any()
            or (call != call[..., :1]).any()
        ):
            raise DescriptionError(
                f"{target.leaf.where}: reads the output of {synapses.name} in another order of neurons; allowed: unchanged; reorder its weights instead"
            )
        row, call = row[..., 0], call[..., 0]
        if call.min() < 0 and getattr(synapses.module, "bias", None) is not None:
            raise DescriptionError(
                f"{synapses.where}: has a bias, but is not called in every step; allowed: a call in each step, with zeros before the first spikes; call it "
                "with zeros, or give it no bias"
            )
        chain = [synapses, *behind]
        signals = {k: synapses.calls[k].signal for k in np.unique(call[call >= 0])}
        if all(x is None for x in signals.values()):
            if all(not bool((synapses.calls[k].given != 0).any()) for k in signals) and call.min() < 0:
                return  # the zeros before a loop's first step
            self._from_input(target, chain, call, row)
            return
        terms = max(len(x.terms) for x in signals.values() if x)
        for x in signals.values():
            if x is not None and x.problem:
                raise self._changed(synapses, x)
        for j in range(terms):
            n_in = int(np.prod(synapses.calls[max(signals)].given.shape[-_n_features(synapses) :]))
            read = torch.full((*call.shape, n_in), ZERO)
            for k, x in signals.items():
                if x is None:
                    if bool((synapses.calls[k].given != 0).any()):
                        raise DescriptionError(
                            f"{synapses.where}: reads spikes in some steps and other numbers in step {k}; allowed: spikes, or zeros before the first; "
                            "begin with zeros"
                        )
                    continue
                if j < len(x.terms):
                    t, b = np.nonzero(call == k)
                    read[t, b] = x.terms[j].reshape(-1, n_in)[row[t, b]]
            self._from_neurons(target, chain, read)

    def _from_neurons(self, target: Target, chain: list[Leaf], labels: Tensor) -> None:
        for sender, part in self._side_by_side(labels, chain):
            if sender.kind == "synapses":
                self._through(target, sender, labels, chain)
            else:
                self._from_sender(target, chain, labels if part is None else labels[..., part], sender, part)

    def _side_by_side(self, labels: Tensor, chain: list[Leaf]) -> list[tuple[Leaf, np.ndarray | None]]:
        """The modules that made the features of an input, and the numbers of those features; None: all of them.

        Spikes of several populations may be side by side, as after `torch.cat`, if one Linear or convolution reads them.
        """
        index, place = self.tracing.decode(labels)
        of_port = {k: self.tracing.ports[k].call.leaf for k in np.unique(index[place >= 0])}
        senders = list(dict.fromkeys(of_port.values()))
        if len(senders) <= 1:
            return [(sender, None) for sender in senders]
        numbers = {sender: k for k, sender in enumerate(senders)}
        lookup = np.array([numbers.get(of_port[k], -1) if k in of_port else -1 for k in range(len(self.tracing.ports))])
        number = np.where(place >= 0, lookup[index], -1).reshape(-1, labels.shape[-1])
        highest, lowest = number.max(0), np.where(number < 0, len(senders), number).min(0)
        is_known = (
            len(chain) == 1 and all(x.kind == "neurons" for x in senders) and getattr(chain[0].module, "groups", 1) == 1
        )
        if not is_known or ((highest >= 0) & (highest != lowest)).any():
            self._sender(labels, chain[0])  # the refusal
        return [(sender, np.flatnonzero(highest == k)) for k, sender in enumerate(senders)]

    def _from_sender(
        self, target: Target, chain: list[Leaf], labels: Tensor, sender: Leaf, part: np.ndarray | None
    ) -> None:
        index, place = self.tracing.decode(labels)
        made = place >= 0
        names = {self.tracing.ports[k].name for k in np.unique(index[made])}
        if names != {"spikes"}:
            raise DescriptionError(
                f"{chain[0].where}: reads the {'potential' if 'v' in names else 'state'} of {sender.name}; allowed: its spikes; read spikes"
            )
        t, b, n = self._place(index, place)
        own_t, own_b = (np.broadcast_to(x[..., None], labels.shape) for x in np.indices(labels.shape[:2]))
        delays = np.unique((own_t - t)[made])
        t0 = np.argwhere(made.all(axis=(1, 2)))
        order = n[t0[0, 0], 0] if len(t0) else None
        if (
            len(delays) != 1
            or order is None
            or (b != own_b)[made].any()
            or (n != order)[made].any()
            or (~made[int(delays[0]) :]).any()
        ):
            raise DescriptionError(
                f"{chain[0].where}: reads spikes of {sender.name} of several steps, samples or neurons at once; allowed: all neurons of the same step, or "
                "of one earlier step; read each step's spikes unchanged"
            )
        if delays[0] < 0 or len(np.unique(order)) != len(order):
            raise DescriptionError(
                f"{chain[0].where}: reads later spikes of {sender.name}, or some twice; allowed: each once; read each step's spikes unchanged"
            )
        if part is not None and type(chain[0].module).__name__ == "Conv2d":
            part = self._channels(chain[0], sender, part)
        target.links.append(Link(sender, chain, int(delays[0]), order, part, self.n_terms))

    def _channels(self, leaf: Leaf, sender: Leaf, part: np.ndarray) -> np.ndarray:
        """The channels of a convolution's input whose numbers are given."""
        places = int(np.prod(leaf.calls[0].given.shape[-2:]))
        channels = np.unique(part // places)
        if len(part) != len(channels) * places:
            raise DescriptionError(
                f"{leaf.where}: reads parts of the maps of {sender.name}; allowed: whole channels; put maps side by side along the channels"
            )
        return channels

    def _place(self, index: np.ndarray, place: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Step, sample and neuron of numbers of neurons' output."""
        port = self.tracing.ports[int(index[place >= 0].flat[0])]
        spec = port.call.leaf.spec
        assert spec
        layout = OF_NEURONS[spec.layout]
        n = int(np.prod(port.shape[layout.n_lead :]))
        lead, neuron = place // n, place % n
        if layout.kind == "step":
            calls = np.array([p.call.index for p in self.tracing.ports])
            return calls[index], lead, neuron
        first, second = divmod(lead, self.n_samples if layout.kind == "tb" else self.n_steps)
        return (first, second, neuron) if layout.kind == "tb" else (second, first, neuron)

    # ---- the input ---------------------------------------------------------------------------------------------

    def _from_input(self, target: Target, chain: list[Leaf], call: np.ndarray, row: np.ndarray) -> None:
        first = chain[0]
        n_lead = first.calls[0].given.dim() - _n_features(first)
        layout = found_layout(call, row, n_lead, first.where, target.layout.kind)
        given = [c.given for c in first.calls]
        pools_first = all(_is_pool(x) for x in chain[:-1]) and not _is_pool(chain[-1])
        binary = (
            all(bool(((x == 0) | (x == 1)).all()) for x in given)
            and float(torch.stack([x.mean() for x in given]).mean()) <= 0.5
        )
        again = layout.kind == "constant" or (len(given) > 1 and len({x.data_ptr() for x in given}) == 1)
        if binary and pools_first and not again and not any(x.stays for x in chain):
            self.fronts.append(Front(first, layout, True))
            target.links.append(Link(None, chain, term=self.n_terms))
        elif len(chain) == 1 and not first.stays and n_lead == 1 + (layout.kind in ("tb", "bt") and not layout.flat):
            self.fronts.append(Front(first, layout, False, target))
        else:
            assert target.leaf.spec
            self.fronts.append(Front(target.leaf, OF_NEURONS[target.leaf.spec.layout], False, target))

    def _front(self) -> Front:
        if not self.fronts:
            raise DescriptionError("convert: no neuron reads the example; give the network's own input as the example")
        first, *others = self.fronts
        for other in others:
            same = first.is_spikes and other.is_spikes and first.layout == other.layout
            same = same and all(
                torch.equal(a.given.flatten(), b.given.flatten())
                for a, b in zip(first.leaf.calls, other.leaf.calls, strict=True)
            )
            if not same:
                raise DescriptionError(
                    f"{other.leaf.where}: reads a second input, next to that of {first.leaf.name}; allowed: one, spikes for several layers or currents for one; "
                    "give spikes of 0 and 1, or read the input in one layer"
                )
        return first

    def _changed(self, leaf: Leaf, signal: Any) -> DescriptionError:
        problem = signal.problem if signal else "a module that is not known"
        cure = "remove it, or put it in front of the first neuron"
        if problem.split(" ")[0] in _JOINS:
            problem, cure = f"{problem} of spikes and other numbers", "give each its own Linear, and add the results"
        elif problem.split(" ")[0] in _PRODUCTS:
            cure = "multiply the weights of the layer by that number instead"
        return DescriptionError(
            f"{leaf.where}: its input was made by {problem}; allowed between neurons: {_BETWEEN}; {cure}"
        )


def _n_features(leaf: Leaf) -> int:
    """Number of axes of a synapse module's neurons."""
    return 1 if type(leaf.module).__name__ == "Linear" else 3


def _is_pool(leaf: Leaf) -> bool:
    return type(leaf.module).__name__.endswith("Pool2d")


def _is_whole(labels: Tensor, port: Port) -> bool:
    """Whether labels are those of a whole output, unchanged."""
    n = port.shape.numel()
    return labels.numel() == n and bool((labels.flatten() == torch.arange(port.first, port.first + n)).all())
