"""Checks shared by the population descriptions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Tuple, Union  # noqa: UP035

from sparsesnn.errors import DescriptionError
from sparsesnn.options import check, options_of, plain, whole
from sparsesnn.subclasses import as_described
from sparsesnn.surrogate import Surrogate

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    class PerNeuron:
        """A field set to a number for the whole population or one per neuron, also as NumPy or PyTorch values."""

        def __get__(self, instance: Any, owner: Any = None) -> float | tuple[float, ...]: ...
        def __set__(self, instance: Any, value: float | ArrayLike) -> None: ...

    PerNeuronOrText = PerNeuron
else:  # evaluated under Python 3.8 by sparsesnn.poptorch
    #: a number for the whole population, or one per neuron
    PerNeuron = Union[float, Tuple[float, ...]]  # noqa: UP006, UP007
    #: the same, or a text for such numbers
    PerNeuronOrText = Union[float, Tuple[float, ...], str]  # noqa: UP006, UP007


#: most neurons of a population: a typing error is refused before memory is allocated, as for maps
MAX_NEURONS = 1 << 28


def check_population(population: Any) -> None:
    """Checks the size, and every argument as declared; lists have one number per neuron. Errors: `DescriptionError`.

    A population may leave its size (None) to a network, which derives it from the synapses.
    """
    model, given = type(population).__name__, plain(population.n)
    n = whole(given)
    if given is not None and (n is None or not 1 <= n <= MAX_NEURONS):
        raise DescriptionError(f"{model}: n is {given!r}; give a whole number of neurons, from 1 to {MAX_NEURONS:,}")
    object.__setattr__(population, "n", n)
    check(population, f"{model}: {{}}", DescriptionError)
    if hasattr(population, "surrogate"):
        surrogate = as_described(population.surrogate, [Surrogate], f"{model}: surrogate", "class")
        object.__setattr__(population, "surrogate", surrogate)
    for name, known in options_of(type(population)).items():
        value = getattr(population, name)
        if known.type in (PerNeuron, PerNeuronOrText) and isinstance(value, tuple) and len(value) != n:
            if n is None and len(value) != 1:
                continue
            if len(value) != 1:
                raise DescriptionError(
                    f"{model}: {name} has {len(value)} values; give one number, or one per neuron ({n})"
                )
            object.__setattr__(population, name, value[0])
