"""The parts of a neuron model: `Neuron`, which models extend, and `parameter`, which declares a number that may be trained.

A model is a frozen dataclass that names its states and parameters, and returns small arrays as functions of its parameters
(`sparsesnn.layers.arrays` has the equation). It may be in any file:

    @dataclass(frozen=True)
    class ALIF(ss.Neuron):
        \"\"\"A threshold that rises with every spike, as a current that pulls the potential down.\"\"\"

        beta: ss.PerNeuron = ss.parameter(0.9, "decay of the potential", low=0, high=1)
        rho: ss.PerNeuron = ss.parameter(0.97, "decay of the adaptation", low=0, high=1)
        strength: float = 1.8
        states: ClassVar = ("x", "a")  # the first one is compared with the threshold

        def arrays(self, p):
            k, b, r = self.strength, p["beta"], p["rho"]
            return ss.NeuronArrays(
                A=[[b, k * (b - r)], [0, r]],
                R=[[0, -k], [0, 0]],
                r=[-p["threshold"], 0],
                f=[-k * (1 - r), 1 - r],
                B=[1, 0],
            )

`ALIF(8, learn_rho=True)` trains rho. Files hold the name ALIF; commands find the class by `--neuron FILE.py:ALIF`.

A readout sets `fires: ClassVar = False`. A model that is not linear between spikes sets `arrays: ClassVar = None` and has a `step`.
NIR files can hold a model with these methods:

    to_nir(self, p, dt)            a node of NIR. p: its parameters by name, float64[n] each; dt: a step, in the unit of the node's
                                   time constants. The weights into the node are those of the network.
    from_nir(cls, node, dt)        a class method: the population of a node, with its n; None if the node is another model's.
"""

# This file must work in Python 3.8.

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields
from typing import TYPE_CHECKING, Any, ClassVar, Dict, Optional, Tuple, Type  # noqa: UP035

from sparsesnn.errors import DescriptionError
from sparsesnn.layers import arrays as linear_step
from sparsesnn.layers.arrays import NeuronArrays
from sparsesnn.layers.checks import PerNeuron, PerNeuronOrText, check_population
from sparsesnn.layers.declaration import THRESHOLD, Parameter
from sparsesnn.layers.equations import Pulled
from sparsesnn.layers.structure import Structure, structure_of
from sparsesnn.layers.units import HasDecays
from sparsesnn.options import Option, option, types_of
from sparsesnn.surrogate import KINDS, Surrogate, fast_sigmoid

ACTIVITIES = ("natural", "fixed")

_NOT_LINEAR = "is not linear between spikes: it has no arrays, and its gradient is autograd's; use the engine 'dense'"

_FORM = """write the model as arrays, which every engine runs:

    @dataclass(frozen=True)
    class {name}(ss.Neuron):
        beta: ss.PerNeuron = ss.parameter(0.9, "decay of the potential", low=0, high=1)
        states: ClassVar = ("v",)

        def arrays(self, p):
            return ss.NeuronArrays(A=[[p["beta"]]], r=[-p["threshold"]], B=[1])"""


def parameter(
    default: Any,
    help: str,
    *,
    low: Optional[float] = None,  # noqa: UP045
    high: Optional[float] = None,  # noqa: UP045
    learn_help: str = "",
) -> Any:
    """Declares a field of a neuron model: one number, or one per neuron, which `learn_<name>=True` trains.

        rho: ss.PerNeuron = ss.parameter(0.97, "decay of the adaptation", low=0, high=1)

    Args:
        default: one number.
        help: its meaning, in one line.
        low, high: its range: training clamps it to the range when the network reads it, see `sparsesnn.bounds`; None: no bound.
        learn_help: the meaning of `learn_<name>` in help texts; "" gives `train <name>`.
    """
    made = option(default, help, low=low, high=high)
    metadata = {**made.metadata, "parameter": learn_help, "type": PerNeuron}
    return field(default=default, metadata=metadata)


#: neuron models that this process has defined, ours too, by name, the newest of a name; see `sparsesnn.layers.catalog`
DEFINED: Dict[str, Type[Neuron]] = {}  # noqa: UP006


class _Absent:
    """An attribute of `Neuron` that a readout does not have."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        raise AttributeError(f"{owner.__name__} has no {self.name}: it never fires")


@dataclass(frozen=True)
class Neuron(HasDecays):
    """A population of neurons; a model adds states, parameters and `arrays`.

    A parameter (`threshold`, and those that the model declares) is one number for all neurons or one per neuron, and is
    trained in that form. One that leaves its range in training is read as the nearest end; `sparsesnn.bounds` has its
    gradient there.
    """

    n: int = None  # type: ignore[assignment]  # a number once a network is created
    threshold: PerNeuron = option(
        1.0,
        "a neuron fires when its membrane potential v exceeds threshold; v = threshold is not enough",
        above=0,
        high=3e38,
    )
    grad_threshold: PerNeuronOrText = option(
        0.9,
        "a neuron with v > grad_threshold is listed and receives a gradient. -inf: all neurons; the value of threshold: only neurons that "
        "fire; exact: all with a nonzero surrogate derivative. If neither the population nor any before it learns, only neurons that fire",
        low=-math.inf,
        high=3e38,
        choices=("exact",),
    )
    detach_reset: bool = option(True, "no gradient through the reset; false adds its exact term at listed neurons")
    surrogate: Surrogate = option(fast_sigmoid, "derivative used in place of the spike's")
    recurrent: bool = option(False, "weights from the population to itself, delivered one step later")
    bias: bool = option(False, "a trainable constant current per neuron")
    capacity: Optional[int] = option(  # noqa: UP045
        None,
        "maximum number of ids per list; candidates that do not fit are dropped and counted; 0: no limit",
        low=1,
        none=0,
    )
    activity: str = option(
        "natural", "fixed: every list is sent filled to its capacity, for benchmarks", choices=ACTIVITIES
    )
    learn_threshold: bool = option(False, "train threshold")

    #: whether the neurons fire; a readout does not, and has only the fields n and bias of those above
    fires: ClassVar[bool] = True
    #: False: a model with `arrays = None` and its own `step`, which runs on the dense engine alone, by autograd
    linear: ClassVar[bool] = True
    #: names of the states, 1 to 4; the first one is compared with the threshold, or is a readout's potential
    states: ClassVar[Tuple[str, ...]] = ()  # noqa: UP006
    #: letter after a size in the text of a network, and its meaning; ("", ""): it has none
    letter: ClassVar[Tuple[str, str]] = ("", "")  # noqa: UP006

    def __init_subclass__(cls, **more: Any) -> None:
        """Prepares a model before `@dataclass` reads its fields."""
        super().__init_subclass__(**more)
        _declare_fields(cls)
        own = vars(cls)
        if own.get("arrays", 0) is None:
            if cls.step is Neuron.step:
                raise DescriptionError(f"{cls.__name__}: arrays is None; define step, or {_form(cls)}")
            cls.linear = False
        elif "step" in own and cls.arrays is Neuron.arrays:
            raise DescriptionError(
                f"{cls.__name__}: defines step, but no arrays; {_form(cls)}\n\nor, if it is not linear between spikes, set arrays = None: "
                "it then runs on the engine 'dense' alone"
            )
        if not is_abstract(cls):
            DEFINED[cls.__name__] = cls

    if not TYPE_CHECKING:

        def __new__(cls, *values: Any, **arguments: Any) -> Any:
            _check_call(cls, values, arguments)
            return super().__new__(cls)

    def __post_init__(self) -> None:
        check_population(self)
        _check_plain_fields(self)
        model = type(self).__name__
        if self.fires:
            if self.capacity is not None and self.n is not None and self.capacity > self.n:
                raise DescriptionError(
                    f"{model}: capacity is {self.capacity!r}; allowed: 1 to {self.n} (its neurons), or None"
                )
            if self.activity == "fixed" and self.capacity is None:
                raise DescriptionError(f"{model}: activity='fixed' fills lists to a capacity; set capacity")
            _ = self.listed_above  # raises its errors
        if self.linear and not _is_ours(type(self)):  # ours are tested
            _ = self.structure

    @property
    def listed_above(self) -> float | tuple[float, ...]:
        """`grad_threshold` in numbers, one for all neurons or one per neuron.

        "exact" is the highest value that keeps the gradient complete: below it σ' is 0. Rounding may list an extra neuron, with σ' = 0.
        """
        given: object = self.grad_threshold
        if given != "exact":
            return self.grad_threshold
        width = self.surrogate.half_width
        if math.isinf(width) and self.surrogate.kind != "straight_through":
            compact = [kind for kind in KINDS if not math.isinf(Surrogate(kind).half_width)]
            raise DescriptionError(
                f"{type(self).__name__}: grad_threshold='exact' needs a surrogate that is 0 away from the threshold, or 1 "
                f"everywhere, not {self.surrogate.kind!r}; allowed: {', '.join(compact)}, straight_through; -inf lists all neurons"
            )
        if self.learn_threshold and not math.isinf(width):
            raise DescriptionError(
                f"{type(self).__name__}: grad_threshold='exact' does not follow a trained threshold; give "
                "learn_threshold=False, or grad_threshold=-inf"
            )
        own = self.threshold if isinstance(self.threshold, tuple) else (self.threshold,)
        below = tuple(theta - width - 1e-6 * (theta + width) for theta in own)
        return below if isinstance(self.threshold, tuple) else below[0]

    @property
    def parameters(self) -> Tuple[Parameter, ...]:  # noqa: UP006
        """What may be trained: the fields declared by `parameter`, in their order, then the threshold if the neurons fire."""
        own = []
        for f in fields(self):
            if "parameter" in f.metadata:
                declared = f.metadata["option"]
                low = -math.inf if declared.low is None else declared.low
                own.append(Parameter(f.name, low, math.inf if declared.high is None else declared.high))
        return (*own, THRESHOLD) if self.fires else tuple(own)

    def arrays(self, p: Mapping[str, Any]) -> NeuronArrays:
        """The arrays of the model's linear step, as functions of its parameters.

        Entry n depends on the parameters of neuron n alone: write elementwise arithmetic. Which entries exist may depend on options, never
        on the parameters' values. Bits are promised for + - × ÷ (write `k * (1 / x)` for a number k over a parameter: PyTorch computes
        k / x like this, NumPy does not).

        Args:
            p: by name, each a NumPy array or a tensor, [] or [N], within its range.
        """
        raise NotImplementedError(f"{type(self).__name__} has no arrays")

    @property
    def structure(self) -> Structure:
        """The entries of its arrays that exist, and their dependences. Errors: `DescriptionError` for a model that is not linear."""
        if not self.linear:
            raise DescriptionError(f"{type(self).__name__}: {_NOT_LINEAR}")
        return structure_of(self)

    @property
    def reads(self) -> Mapping[str, Tuple[str, ...]]:  # noqa: UP006
        """By parameter, the values of every step, besides the first state, that its gradient reads: states; "i": the current."""
        return self.structure.reads(self.states) if self.linear else {}

    @property
    def operations(self) -> Tuple[int, int]:  # noqa: UP006
        """Floating-point operations of a step and of its adjoint, beyond a decay of each state; for predictions of cycles."""
        return self.structure.operations if self.linear else (0, 0)

    def step(self, p: Mapping[str, Any], states: Sequence[Any], reset: Any, s: Any, i: Any) -> tuple[Any, ...]:
        """The states after a step, the first of which is compared with the threshold.

        Args:
            p: parameters by name, [] or [N].
            states: [B, N] each, before the step.
            reset: [B, N], the spikes of the step before, as the reset reads them (detached, or not).
            s: [B, N], the same spikes for everything else; None for a readout.
            i: [B, N], the input current.
        """
        return linear_step.step(linear_step.arrays_of(self, p), states, reset, s, i)

    def pull(self, p: Mapping[str, Any], states: Sequence[Any], reset: Any, s: Any, i: Any, d: Sequence[Any]) -> Pulled:
        """Gradients of the arguments of `step` from those of its results, `d`, for the reference."""
        if not self.linear:
            raise DescriptionError(f"{type(self).__name__}: {_NOT_LINEAR}")
        s, reset = (s, reset) if self.fires else (None, None)
        by_parameter = linear_step.derivatives(self, p, [q.name for q in self.parameters])
        return linear_step.pull(linear_step.arrays_of(self, p), by_parameter, states, reset, s, i, d)


def is_abstract(cls: Type[Neuron]) -> bool:  # noqa: UP006
    """Whether a class is only meant to be extended: it has neither arrays nor its own step."""
    return cls.linear and cls.arrays is Neuron.arrays


def _is_ours(cls: Any) -> bool:
    return bool(cls.__module__.startswith("sparsesnn.layers."))


def _form(cls: Any) -> str:
    return _FORM.format(name=cls.__name__)


# ---- fields ------------------------------------------------------------------------------------------------------------

#: arguments of `Neuron` that a readout does not have
_OF_SPIKES = tuple(f.name for f in fields(Neuron) if f.name not in ("n", "bias"))


def _declare_fields(cls: Any) -> None:
    """Completes the fields in the body of a class, which `@dataclass` will read."""
    annotations = _own_annotations(cls)
    inherited = {f.name: f for f in fields(cls)}
    for name, annotation in list(annotations.items()):
        value = vars(cls).get(name, MISSING)
        if annotation in ("ClassVar", "typing.ClassVar", ClassVar):
            annotations[name] = ClassVar[Any]  # Python 3.8 does not evaluate it alone
        if isinstance(value, Field) and "parameter" in value.metadata:
            if name in ("n", "bias", *_OF_SPIKES):
                raise DescriptionError(
                    f"{cls.__name__}: the parameter {name} has the name of an argument of Neuron; rename it"
                )
            _declare_training(cls, annotations, f"learn_{name}", value.metadata["parameter"] or f"train {name}")
        elif name in inherited and _is_default(value, annotations[name]):  # a new default for an inherited field
            setattr(cls, name, field(default=value, metadata=inherited[name].metadata))
    for name in () if cls.fires else _OF_SPIKES:
        if name in annotations:
            raise DescriptionError(f"{cls.__name__}: has {name}, but never fires (fires = False); leave {name} out")
        if name in inherited:
            annotations[name] = ClassVar[Any]
            setattr(cls, name, _Absent(name))
    if annotations:
        cls.__annotations__ = annotations


def _is_default(value: Any, annotation: Any) -> bool:
    return isinstance(value, (bool, int, float, str, tuple, Surrogate)) and "ClassVar" not in str(annotation)


def _declare_training(cls: Any, annotations: Dict[str, Any], name: str, help: str) -> None:  # noqa: UP006
    """The option that trains a parameter, unless the class has declared it itself."""
    given = vars(cls).get(name, False)
    if not isinstance(given, Field) and not (name in annotations and "ClassVar" in str(annotations[name])):
        annotations.setdefault(name, bool)
        setattr(cls, name, option(given, help))


def _own_annotations(cls: Any) -> Dict[str, Any]:  # noqa: UP006
    """Annotations in the body of a class."""
    found = vars(cls).get("__annotations__")
    if found is None and hasattr(cls, "__annotate__"):  # Python 3.14
        import annotationlib  # type: ignore[import-not-found,unused-ignore]

        found = annotationlib.get_annotations(cls, format=annotationlib.Format.FORWARDREF)
    return dict(found or {})


def _check_call(cls: Any, values: Sequence[Any], arguments: Mapping[str, Any]) -> None:
    name = cls.__name__
    if is_abstract(cls):
        raise DescriptionError(f"{name}: is a base class, without arrays; {_form(cls)}")
    if any(isinstance(x, Field) for x in vars(cls).values()):
        raise DescriptionError(f"{name}: is not a dataclass; write @dataclass(frozen=True) above the class")
    if len(values) > 1 and _is_ours(cls):
        raise TypeError(
            f"{name}: got {len(values)} arguments without a name; give n alone without one, such as {name}(256, beta=0.9)"
        )
    if not cls.fires:
        for given in arguments:
            if given in _OF_SPIKES:
                raise TypeError(
                    f"{name}: {given} is {arguments[given]!r}, but {name} never fires (fires = False); leave {given} out"
                )


def _check_plain_fields(population: Any) -> None:
    """Checks the fields without a declaration whose type is simple, such as `strength: float = 1.8`."""
    for known in _plain_fields(type(population)):  # type: ignore[arg-type]
        value = known.check(getattr(population, known.name), f"{type(population).__name__}: {{}}", DescriptionError)
        object.__setattr__(population, known.name, value)


@functools.lru_cache(maxsize=None)  # noqa: UP033 - Python 3.8 has no cache
def _plain_fields(cls: Any) -> Tuple[Option, ...]:  # noqa: UP006
    kinds = types_of(cls)
    plain = [f for f in fields(cls) if "option" not in f.metadata and f.name != "n"]
    return tuple(
        Option("", name=f.name, type=kinds[f.name], default=f.default)
        for f in plain
        if kinds[f.name] in (bool, int, float, str)
    )


if TYPE_CHECKING:

    class OpenNeuron(Neuron, Any):
        """A neuron model: a frozen dataclass that names its states and parameters, and returns `arrays`."""

        # Type checkers outside this package cannot know the argument `learn_<name>` that a parameter adds. An unknown base
        # makes mypy and pyright accept it, and check the others.

else:
    OpenNeuron = Neuron
