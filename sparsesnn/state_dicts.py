"""`load_state_dict` with our own messages: the tensors that do not fit, and their expected shapes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from sparsesnn.errors import CheckpointError
from sparsesnn.parameters import is_step_counter
from sparsesnn.tracers import Unscriptable
from sparsesnn.wording import nearest

_SHOWN = 6


class Loadable(Unscriptable, nn.Module):
    """A module whose `load_state_dict` names the tensors that do not fit."""

    def former_names(self) -> Mapping[str, str]:
        """Current names of tensors by their former names."""
        return {}

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False) -> Any:
        """As PyTorch's. Errors: `CheckpointError`, a `RuntimeError`, for names and shapes that do not fit."""
        try:
            return super().load_state_dict(state_dict, strict=strict, assign=assign)
        except CheckpointError:
            raise
        except RuntimeError as error:
            raise CheckpointError(_misfits(self, state_dict, strict) or str(error)) from None


def _misfits(module: Loadable, given: Mapping[str, Any], strict: bool) -> str:
    former, own = module.former_names(), module.state_dict()
    given = {former.get(name, name): value for name, value in given.items()}
    missing = [name for name in own if strict and name not in given and not is_step_counter(name)]
    others = [name for name in given if strict and name not in own]
    problems = []
    for name in missing:
        near = nearest(name, others)
        problems.append(f"{name!r} is missing" + (f", {near!r} is unknown: rename it" if near else ""))
        others = [other for other in others if other != near]
    problems += [f"{name!r} is unknown" for name in others]
    for name, tensor in own.items():
        if name in given and given[name].shape != tensor.shape:
            problems.append(
                f"{name!r} has shape {_shape(given[name])}, needs {_shape(tensor)}{_turned(given[name], tensor)}"
            )
    if not problems:
        return ""
    more = f"; and {len(problems) - _SHOWN} more" if len(problems) > _SHOWN else ""
    return (
        f"load_state_dict: the state does not fit this {type(module).__name__}: {'; '.join(problems[:_SHOWN])}{more}. Give the state of a "
        "model of the same network (`network.to_json()` keeps a network next to its state; `sparsesnn.train.load_run(RUN).model` is "
        "that of a run)" + (", or strict=False to ignore missing and unknown names" if strict else "")
    )


def _shape(tensor: Any) -> str:
    return str(list(tensor.shape))


def _turned(given: Tensor, wanted: Tensor) -> str:
    """Advice for a weight of `nn.Linear`, which has a row per receiver."""
    return ", a row per sending neuron: give its transpose, .T" if given.shape == wanted.T.shape else ""
