"""A model and an optimizer as named tensors: `model/<name>` and `optim/<parameter>/<key>`, as checkpoints hold them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from typing import Any

import numpy.typing as npt
import torch
from torch import Tensor, nn

from sparsesnn.errors import CheckpointError
from sparsesnn.network import Network
from sparsesnn.parameters import former_names, is_step_counter, stable_names


def model_tensors(model: nn.Module) -> dict[str, Tensor]:
    """`model/<name>` → parameter or buffer; copies, because the next step changes the originals."""
    return {f"model/{name}": tensor.detach().clone() for name, tensor in model.state_dict().items()}


def optimizer_tensors(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """`optim/<parameter>/<key>` → state of the optimizer, without entries that are None."""
    tensors = {}
    for name, parameter in model.named_parameters():
        for key, value in optimizer.state.get(parameter, {}).items():
            if value is not None:
                tensors[f"optim/{name}/{key}"] = torch.as_tensor(value).detach().clone()
    return tensors


def restore_model(model: nn.Module, tensors: Mapping[str, Tensor], where: str) -> None:
    """Loads `model/<name>` tensors into a model; names, shapes and dtypes must match the model, and no value may be NaN."""
    wanted = model.state_dict()
    given = {name[len("model/") :]: t for name, t in _renamed(model, tensors).items() if name.startswith("model/")}
    # older files have no step counters: start them at 0
    given |= {name: torch.zeros_like(x) for name, x in wanted.items() if name not in given and is_step_counter(name)}
    if set(given) != set(wanted):
        missing, extra = sorted(set(wanted) - set(given)), sorted(set(given) - set(wanted))
        raise CheckpointError(f"{where}: belongs to another network: missing {missing}, unknown {extra}")
    for name, tensor in given.items():
        _check_like(name, tensor, wanted[name], where)
    with torch.no_grad():
        for name, tensor in given.items():
            wanted[name].copy_(tensor)


def _renamed(model: Any, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors, with former weight names replaced by current ones."""
    now = former_names(model.network)
    found = {}
    for full_name, tensor in tensors.items():
        kind, _, name = full_name.partition("/")
        name, slash, key = name.partition("/")
        found[f"{kind}/{now.get(name, name)}{slash}{key}"] = tensor
    return found


def restore_optimizer(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    tensors: Mapping[str, Tensor],
    state_keys: frozenset[str],
    where: str,
) -> None:
    """Loads `optim/<parameter>/<key>` tensors into an optimizer that keeps `state_keys` for each parameter."""
    parameters = dict(model.named_parameters())
    for full_name, tensor in _renamed(model, tensors).items():
        if not full_name.startswith("optim/"):
            continue
        name, _, key = full_name[len("optim/") :].rpartition("/")
        if name not in parameters:
            raise CheckpointError(f"{where}: holds optimizer state of {name!r}; the network has no such parameter")
        if tensor.ndim:
            _check_like(f"{name}/{key}", tensor, parameters[name], where)
        optimizer.state[parameters[name]][key] = tensor.to(parameters[name].device, copy=True)
    for name, parameter in parameters.items():
        keys = set(optimizer.state.get(parameter, {}))
        if keys and keys != state_keys:
            raise CheckpointError(f"{where}: optimizer state of {name} is {sorted(keys)}; needed: {sorted(state_keys)}")


def _check_like(name: str, tensor: Tensor, wanted: Tensor, where: str) -> None:
    if tensor.shape != wanted.shape or tensor.dtype != wanted.dtype:
        raise CheckpointError(
            f"{where}: {name} is {tensor.dtype}{list(tensor.shape)}; "
            f"the network needs {wanted.dtype}{list(wanted.shape)}"
        )
    # thresholds may be -inf on purpose; NaN is always an error
    if tensor.is_floating_point() and bool(torch.isnan(tensor).any()):
        raise CheckpointError(f"{where}: {name} holds NaN; the checkpoint cannot be used")


def first_not_finite(tensors: Mapping[str, Tensor], may_be_infinite: Container[str] = ()) -> tuple[str, float] | None:
    """Name and value of the first number that is NaN or infinite; None if all are finite.

    Args:
        may_be_infinite: names of tensors in which only NaN is an error.
    """
    for name, tensor in tensors.items():
        if tensor.is_floating_point():
            if tensor.numel() and torch.isfinite(torch.stack(torch.aminmax(tensor))).all():
                continue  # needs no copy; NaN propagates to both extremes
            bad = torch.isnan(tensor) if name in may_be_infinite else ~torch.isfinite(tensor)
            if bool(bad.any()):
                return name, float(tensor.detach()[bad][0])
    return None


def weights_sha256(model: Any) -> str:
    """SHA-256 over name, dtype, shape and bytes of every parameter and buffer, in the order of their names."""
    return sha256(model.state_dict(), model.network, lambda name, x: (x.shape, [x.detach().cpu().contiguous().numpy()]))


def sha256(
    tensors: Mapping[str, Tensor],
    network: Network,
    whole: Callable[[str, Tensor], tuple[Sequence[int], Iterable[npt.NDArray[Any]]]],
) -> str:
    """SHA-256 over the named tensors of a network, under the names of `sparsesnn.parameters.stable_names`.

    Args:
        whole: gives the shape of a tensor over all ranks, and its rows in blocks.
    """
    digest, before = hashlib.sha256(), stable_names(network)
    for name, tensor in sorted(tensors.items(), key=lambda item: before.get(item[0], item[0])):
        shape, blocks = whole(name, tensor)
        digest.update(f"{before.get(name, name)} {tensor.dtype} {list(shape)}\n".encode())
        for block in blocks:
            digest.update(block.tobytes())
    return digest.hexdigest()
