"""Checkpoints: tensors as safetensors, everything else as JSON, complete at every instant.

A run folder holds `checkpoint.json`, which names the tensor files it belongs to, their sizes and SHA-256:

    ckpt-<step>.safetensors     model/<name>, optim/<parameter>/<key>, rng/torch: where the run stands
    best-<epoch>.safetensors    model/<name>: the weights with the best validation accuracy

Order of writing: the tensor file under a new name, then `checkpoint.json` in one step, then the older tensor files go.
Killed in between, the old checkpoint is still whole, and the next write removes what it left behind.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor, nn

from sparsesnn.errors import CheckpointError
from sparsesnn.train.files import TEMPORARY, read_json, strict_json, write_atomically

NAME = "checkpoint.json"
FORMAT = "sparsesnn checkpoint"
FORMAT_VERSION = 1
_TENSOR_FILE = re.compile(r"(ckpt|best)-[0-9]{1,18}\.safetensors")


@dataclass(frozen=True)
class TensorFile:
    """A safetensors file beside `checkpoint.json`: its name, size in bytes and SHA-256."""

    file: str
    n_bytes: int
    sha256: str


@dataclass(frozen=True)
class Checkpoint:
    """What `checkpoint.json` says.

    Args:
        config: the run's configuration, as plain data.
        progress: where the run stands: epoch, batch, step, sums of the running epoch, best so far (`loop.Progress`).
        network: `Network.to_dict` of the network that the weights belong to.
        data: what made the training data, so that a run does not go on with other data.
        tensors: model, optimiser and RNG.
        best: weights of the best epoch; None before the first validation.
        version: of sparsesnn that wrote it.
    """

    config: dict[str, Any]
    progress: dict[str, Any]
    network: dict[str, Any]
    data: dict[str, Any]
    tensors: TensorFile
    best: TensorFile | None
    version: str


class CheckpointStore:
    """Reads and writes the checkpoint of one run folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path = folder / NAME

    # ---- written -----------------------------------------------------------------------------------------------

    def write(
        self,
        *,
        config: dict[str, Any],
        progress: dict[str, Any],
        network: dict[str, Any],
        data: dict[str, Any],
        step: int,
        tensors: Mapping[str, Tensor],
        best: TensorFile | None,
        version: str,
    ) -> Checkpoint:
        """Replaces the checkpoint in one step; `CheckpointError` if the disk refuses, the older one is then intact."""
        file = self._write_tensors(f"ckpt-{step:09d}.safetensors", tensors)
        made = Checkpoint(config, progress, network, data, file, best, version)
        body = {
            "config": config,
            "progress": progress,
            "network": network,
            "data": data,
            "tensors": vars(file),
            "best": vars(best) if best else None,
            "version": version,
        }
        document = {"format": FORMAT, "format_version": FORMAT_VERSION, "sha256": _digest(body), "body": body}
        self._write(self.path, strict_json(document, indent=1).encode())
        self.tidy({file.file, best.file if best else ""})
        return made

    def write_best(self, epoch: int, tensors: Mapping[str, Tensor]) -> TensorFile:
        """Writes the weights of a new best epoch; they count once the next checkpoint names them."""
        return self._write_tensors(f"best-{epoch:06d}.safetensors", tensors)

    def _write_tensors(self, name: str, tensors: Mapping[str, Tensor]) -> TensorFile:
        data = save_tensors({key: tensor.detach().contiguous() for key, tensor in tensors.items()})
        self._write(self.folder / name, data)
        return TensorFile(name, len(data), hashlib.sha256(data).hexdigest())

    def _write(self, path: Path, data: bytes) -> None:
        try:
            write_atomically(path, data)
        except OSError as error:
            kept = "the checkpoint before it is intact" if self.path.exists() else "there is no earlier checkpoint"
            raise CheckpointError(
                f"{path}: cannot write {len(data):,} bytes: {error.strerror or error}; {kept}; "
                f"make room or mend the folder, then run again with --resume --out {self.folder}"
            ) from error

    def tidy(self, keep: set[str]) -> None:
        """Removes tensor files that no checkpoint names and temporary files of a write that was cut off."""
        for path in self.folder.iterdir():
            ours = _TENSOR_FILE.fullmatch(path.name) and path.name not in keep
            if ours or (path.name.startswith(".") and path.name.endswith(TEMPORARY)):
                path.unlink(missing_ok=True)

    # ---- read --------------------------------------------------------------------------------------------------

    def exists(self) -> bool:
        return self.path.exists()

    def read(self) -> Checkpoint:
        """The checkpoint; `CheckpointError` if it is missing, damaged, of another format, or names missing files."""
        if not self.path.is_file():
            raise CheckpointError(f"{self.folder}: has no {NAME}; give the folder of a run (--out of sparsesnn train)")
        document = read_json(self.path)
        where = str(self.path)
        if not isinstance(document, dict) or document.get("format") != FORMAT:
            raise CheckpointError(f"{where}: is not a checkpoint of sparsesnn (no format {FORMAT!r})")
        if document.get("format_version") != FORMAT_VERSION:
            raise CheckpointError(
                f"{where}: format version is {document.get('format_version')!r}; "
                f"this sparsesnn reads {FORMAT_VERSION}; use the version of sparsesnn that wrote it"
            )
        body = document.get("body")
        try:
            whole = isinstance(body, dict) and document.get("sha256") == _digest(body)
        except RecursionError:
            whole = False
        if not whole or not isinstance(body, dict):
            raise CheckpointError(f"{where}: is damaged (its SHA-256 does not match); restore it from a copy")
        for key, kind in {
            **dict.fromkeys(("config", "progress", "network", "data", "tensors"), dict),
            "version": str,
        }.items():
            if not isinstance(body.get(key), kind):
                raise CheckpointError(f"{where}: {key} is {body.get(key)!r}; it must be a {kind.__name__}")
        best = body.get("best")
        return Checkpoint(
            config=body["config"],
            progress=body["progress"],
            network=body["network"],
            data=body["data"],
            tensors=_tensor_file(body["tensors"], where),
            best=None if best is None else _tensor_file(best, where),
            version=body["version"],
        )

    def tensors(self, file: TensorFile) -> dict[str, Tensor]:
        """The tensors of a file that a checkpoint names; `CheckpointError` if its size or SHA-256 differ."""
        path = self.folder / file.file
        try:
            size = path.stat().st_size
            data = path.read_bytes() if size == file.n_bytes else b""
        except OSError as error:
            raise CheckpointError(f"{path}: cannot be read: {error.strerror}") from None
        if size != file.n_bytes:
            raise CheckpointError(f"{path}: has {size:,} bytes, its checkpoint says {file.n_bytes:,}; it is damaged")
        if hashlib.sha256(data).hexdigest() != file.sha256:
            raise CheckpointError(f"{path}: is damaged (its SHA-256 does not match); restore it from a copy")
        try:
            return load_tensors(data)
        except (SafetensorError, KeyError, ValueError, TypeError, RuntimeError) as error:
            raise CheckpointError(f"{path}: is not a safetensors file: {error}") from None


def _tensor_file(entry: Any, where: str) -> TensorFile:
    if (
        not isinstance(entry, dict)
        or not isinstance(entry.get("file"), str)
        or not _TENSOR_FILE.fullmatch(entry["file"])  # also keeps paths such as ../../x out
        or not isinstance(entry.get("n_bytes"), int)
        or not isinstance(entry.get("sha256"), str)
    ):
        raise CheckpointError(f"{where}: {entry!r} does not name a tensor file (file, n_bytes, sha256)")
    return TensorFile(entry["file"], entry["n_bytes"], entry["sha256"])


def _digest(body: Any) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


# ---- a model and an optimiser as named tensors -------------------------------------------------------------------


def model_tensors(model: nn.Module) -> dict[str, Tensor]:
    """`model/<name>` → parameter or buffer; copies, for the next step changes the originals."""
    return {f"model/{name}": tensor.detach().clone() for name, tensor in model.state_dict().items()}


def optimiser_tensors(model: nn.Module, optimiser: torch.optim.Optimizer) -> dict[str, Tensor]:
    """`optim/<parameter>/<key>` → state of the optimiser; states that are None are left out."""
    tensors = {}
    for name, parameter in model.named_parameters():
        for key, value in optimiser.state.get(parameter, {}).items():
            if value is not None:
                tensors[f"optim/{name}/{key}"] = torch.as_tensor(value).detach().clone()
    return tensors


def restore_model(model: nn.Module, tensors: Mapping[str, Tensor], where: str) -> None:
    """Puts `model/<name>` tensors into a model; names, shapes and dtypes must be those of the model, values finite."""
    wanted = model.state_dict()
    given = {name[len("model/") :]: t for name, t in tensors.items() if name.startswith("model/")}
    if set(given) != set(wanted):
        missing, extra = sorted(set(wanted) - set(given)), sorted(set(given) - set(wanted))
        raise CheckpointError(f"{where}: belongs to another network: missing {missing}, unknown {extra}")
    for name, tensor in given.items():
        _check_like(name, tensor, wanted[name], where)
    with torch.no_grad():
        for name, tensor in given.items():
            wanted[name].copy_(tensor)


def restore_optimiser(
    model: nn.Module,
    optimiser: torch.optim.Optimizer,
    tensors: Mapping[str, Tensor],
    state_keys: frozenset[str],
    where: str,
) -> None:
    """Puts `optim/<parameter>/<key>` tensors into an optimiser that keeps `state_keys` for a parameter."""
    parameters = dict(model.named_parameters())
    for full_name, tensor in tensors.items():
        if not full_name.startswith("optim/"):
            continue
        name, _, key = full_name[len("optim/") :].rpartition("/")
        if name not in parameters:
            raise CheckpointError(f"{where}: holds optimiser state of {name!r}; the network has no such parameter")
        if tensor.ndim:
            _check_like(f"{name}/{key}", tensor, parameters[name], where)
        optimiser.state[parameters[name]][key] = tensor.to(parameters[name].device, copy=True)
    for name, parameter in parameters.items():
        keys = set(optimiser.state.get(parameter, {}))
        if keys and keys != state_keys:
            raise CheckpointError(f"{where}: optimiser state of {name} is {sorted(keys)}; needed: {sorted(state_keys)}")


def _check_like(name: str, tensor: Tensor, wanted: Tensor, where: str) -> None:
    if tensor.shape != wanted.shape or tensor.dtype != wanted.dtype:
        raise CheckpointError(
            f"{where}: {name} is {tensor.dtype}{list(tensor.shape)}; "
            f"the network needs {wanted.dtype}{list(wanted.shape)}"
        )
    # thresholds may be -inf on purpose; NaN is never meant
    if tensor.is_floating_point() and bool(torch.isnan(tensor).any()):
        raise CheckpointError(f"{where}: {name} holds NaN; the checkpoint cannot be used")


def weights_sha256(model: nn.Module) -> str:
    """SHA-256 over name, dtype, shape and bytes of every parameter and buffer, in the order of their names."""
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(f"{name} {tensor.dtype} {list(tensor.shape)}\n".encode())
        digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()
