"""The arrays of a neuron model as a list of + - × ÷ on its parameters, for machines that train them without Python.

`record` calls a model's `arrays` once, with stand-ins for its parameters that record every operation on them. The derivatives by
parameters follow from the list, and are such lists again. This file must work in Python 3.8.
"""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, NamedTuple, NoReturn, Optional, Sequence, Tuple, Union  # noqa: UP035

from sparsesnn.errors import DescriptionError
from sparsesnn.layers.arrays import NeuronArrays, arrays_of

ALLOWED = "+ - * /"
#: operations of a step, in the order of their numbers
OPERATIONS = ("add", "subtract", "multiply", "divide")


class Formula(NamedTuple):
    """A list of + - × ÷. An operand is an index among its constants, then its inputs, then the results of its steps.

    Args:
        constants: numbers that are the same for all neurons.
        steps: (operation, operand, operand) each, in order.
        results: operands.
    """

    constants: List[float]  # noqa: UP006
    steps: List[Tuple[int, int, int]]  # noqa: UP006
    results: List[int]  # noqa: UP006


class Node:
    """A number of every neuron: an input, or made by an operation from two others. Equal ones are one object of their recording."""

    # as arrays of a parameter of one neuron have them
    shape: Tuple[int, ...] = ()  # noqa: UP006
    ndim = 0
    dtype = "float32"

    def __init__(self, recording: Recording, key: Any) -> None:
        self._recording, self._key = recording, key

    def __add__(self, other: Any) -> Node:
        return self._recording.make("add", self, other)

    def __radd__(self, other: Any) -> Node:
        return self._recording.make("add", other, self)

    def __sub__(self, other: Any) -> Node:
        return self._recording.make("subtract", self, other)

    def __rsub__(self, other: Any) -> Node:
        return self._recording.make("subtract", other, self)

    def __mul__(self, other: Any) -> Node:
        return self._recording.make("multiply", self, other)

    def __rmul__(self, other: Any) -> Node:
        return self._recording.make("multiply", other, self)

    def __truediv__(self, other: Any) -> Node:
        return self._recording.make("divide", self, other)

    def __rtruediv__(self, other: Any) -> Node:
        return self._recording.make("divide", other, self)

    def __neg__(self) -> Node:
        return self._recording.make("multiply", self, -1.0)

    def __pos__(self) -> Node:
        return self

    def __array_ufunc__(self, ufunc: Any, method: str, *values: Any, **more: Any) -> Node:
        """NumPy's functions, which a NumPy number to the left of an operator calls too."""
        name = {"true_divide": "divide", "divide": "divide"}.get(ufunc.__name__, ufunc.__name__)
        if method == "__call__" and name in OPERATIONS and len(values) == 2 and not more:
            return self._recording.make(name, *values)
        return self._recording.refuse(f"np.{ufunc.__name__}")

    def __array_function__(self, function: Any, *_: Any) -> NoReturn:
        self._recording.refuse(f"np.{function.__name__}")

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, values: Any = (), more: Any = None) -> Any:
        """PyTorch's functions."""
        node = next(x for x in _flat(values) if isinstance(x, Node))
        name = {"true_divide": "divide", "div": "divide", "mul": "multiply", "sub": "subtract"}.get(
            function.__name__, function.__name__
        )
        if name in OPERATIONS and len(values) == 2 and not more:
            return node._recording.make(name, *values)
        return node._recording.refuse(f"torch.{function.__name__}")

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        self._recording.refuse(f".{name}")

    def _refused(self, *_: Any) -> NoReturn:
        self._recording.refuse("a comparison, or another operator")

    __lt__ = __le__ = __gt__ = __ge__ = __pow__ = __rpow__ = __floordiv__ = __rfloordiv__ = __mod__ = __rmod__ = (
        _refused
    )
    __abs__ = __bool__ = __float__ = __int__ = __matmul__ = __rmatmul__ = _refused


def _flat(values: Any) -> Any:
    for x in values:
        yield from _flat(x) if isinstance(x, (list, tuple)) else (x,)


#: a number of every neuron, or one for all
Value = Union[Node, float]  # noqa: UP007


class Recording:
    """What `arrays` did to the parameters of a population.

    Args:
        population: of a linear model.

    Attributes:
        parameters: by name.
        entries: of the arrays, by name ("A01"), with u = r + f; those that exist.

    Errors: `DescriptionError` with the model's name for anything but + - × ÷.
    """

    def __init__(self, population: Any) -> None:
        self.model = type(population).__name__
        self._known: Dict[Any, Node] = {}  # noqa: UP006
        self.parameters = {q.name: self.input(q.name) for q in population.parameters}
        self._derivatives: Dict[Any, Optional[Value]] = {}  # noqa: UP006, UP045
        self.entries = entries_with_u(arrays_of(population, self.parameters))

    def input(self, name: Any) -> Node:
        """A number of every neuron that comes from outside."""
        return self._one(("input", name))

    def make(self, operation: str, a: Any, b: Any) -> Node:
        """The result of an operation on two values."""
        return self._one((operation, self._value(a), self._value(b)))

    def refuse(self, what: str) -> NoReturn:
        """Raises the error of an operation that is not recorded."""
        raise DescriptionError(
            f"{self.model}: arrays uses {what}; allowed on 'ipu', which trains the parameters: {ALLOWED}; or train none of them there"
        )

    def _one(self, key: Any) -> Node:
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = Node(self, key)
        return found

    def _value(self, x: Any) -> Value:
        if isinstance(x, Node):
            return x
        if getattr(x, "ndim", 0):
            self.refuse("an array")
        return float(x)

    # ---- derivatives -----------------------------------------------------------------------------------------------

    def derivative(self, x: Any, by: Node) -> Optional[Value]:  # noqa: UP045
        """The derivative of a value by an input; None: 0."""
        if not isinstance(x, Node):
            return None
        if (x, by) not in self._derivatives:
            self._derivatives[x, by] = self._derivative(x, by)
        return self._derivatives[x, by]

    def _derivative(self, x: Node, by: Node) -> Optional[Value]:  # noqa: UP045
        operation, *operands = x._key
        if operation == "input":
            return 1.0 if x is by else None
        a, b = operands
        d_a, d_b = self.derivative(a, by), self.derivative(b, by)
        if operation == "add":
            return self._sum(d_a, d_b)
        if operation == "subtract":
            return self._sum(d_a, self._product(-1.0, d_b))
        if operation == "multiply":
            return self._sum(self._product(d_a, b), self._product(a, d_b))
        moved = self._sum(d_a, self._product(-1.0, self._product(x, d_b)))  # (a / b)' = (a' - (a / b)·b') / b
        return None if moved is None else moved / b

    def _sum(self, a: Optional[Value], b: Optional[Value]) -> Optional[Value]:  # noqa: UP045
        if a is None or b is None:
            return b if a is None else a
        return a + b

    def _product(self, a: Optional[Value], b: Optional[Value]) -> Optional[Value]:  # noqa: UP045
        if a is None or b is None:
            return None
        if not isinstance(a, Node) and a == 1:
            return b
        return a if not isinstance(b, Node) and b == 1 else a * b

    def gradient(self, by: Node, gradients: Mapping[str, Node]) -> Value:
        """∂L/∂(an input) from ∂L/∂(each entry), by the entry's name."""
        total: Optional[Value] = None  # noqa: UP045
        for name, d_entry in gradients.items():
            total = self._sum(total, self._product(d_entry, self.derivative(self.entries[name], by)))
        return 0.0 if total is None else total

    # ---- lists -----------------------------------------------------------------------------------------------------

    def formula(self, results: Sequence[Any], inputs: Sequence[Node]) -> Formula:
        """The list that computes values from inputs; operations are in the order in which they were recorded."""
        needed: Dict[Node, None] = {}  # noqa: UP006
        pending = [x for x in results if isinstance(x, Node)]
        while pending:
            x = pending.pop()
            if x not in needed:
                needed[x] = None
                pending += [y for y in x._key[1:] if isinstance(y, Node)]
        steps = [x for x in self._known.values() if x in needed and x._key[0] != "input"]
        constants = {y: k for k, y in enumerate(dict.fromkeys(
            [*(y for x in steps for y in x._key[1:] if not isinstance(y, Node)),
             *(float(x) for x in results if not isinstance(x, Node))]
        ))}  # fmt: skip
        places = {x: len(constants) + k for k, x in enumerate([*inputs, *steps])}

        def place(x: Any) -> int:
            return places[x] if isinstance(x, Node) else constants[float(x)]

        return Formula(
            list(constants),
            [(OPERATIONS.index(x._key[0]), place(x._key[1]), place(x._key[2])) for x in steps],
            [place(x) for x in results],
        )


def entries_with_u(arrays: NeuronArrays) -> Dict[str, Any]:  # noqa: UP006
    """The entries of arrays in full shape that exist, by name, and u = r + f of each row, which the engines' step reads."""
    entries = dict(arrays.entries())
    for row in range(len(arrays.A)):
        r, f = entries.get(f"r{row}"), entries.get(f"f{row}")
        if r is not None or f is not None:
            entries[f"u{row}"] = f if r is None else r if f is None else r + f
    return entries
