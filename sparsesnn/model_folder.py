"""A model in a folder: weights, description and card, as Hugging Face's hub shows them. Nothing in it is code.

model.safetensors    the tensors of `model.state_dict()`; of tensors computed from others (pruned, parametrized), the values
config.json          the network (`Network.to_dict`), the settings of the model, and size and SHA-256 of model.safetensors
README.md            the card, see `ModelCard`
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sparsesnn._core import version as __version__
from sparsesnn.errors import CheckpointError, ConfigError, DescriptionError, UnknownModelError
from sparsesnn.json_file import read_json, strict_json
from sparsesnn.model_card import ModelCard, card_text
from sparsesnn.network import Network
from sparsesnn.regular_file import inside
from sparsesnn.tensor_file import pieces_of, read_tensors
from sparsesnn.whole_file import Buffer, sync_folder, write_atomically

WEIGHTS, CONFIG, CARD = "model.safetensors", "config.json", "README.md"
#: the file by which a run folder is known, see `sparsesnn.train.checkpoint`
RUN = "checkpoint.json"
FORMAT, FORMAT_VERSION = "sparsesnn model", 1
#: in the order in which they replace older ones: `config.json` vouches for the weights
FILES = (CARD, WEIGHTS, CONFIG)
_DTYPES = {"float32": torch.float32, "float64": torch.float64, "float16": torch.float16, "bfloat16": torch.bfloat16}


@dataclass(frozen=True)
class Settings:
    """The settings of a model, besides its network.

    Args:
        backend, dense_mode, weight_dtype: see `Model`.
        dtype: of its weights, such as "float32".
        rotation_seeds: for each population with a capacity, the seed that decides which candidates a full list keeps.
    """

    backend: str
    dense_mode: str
    weight_dtype: str
    dtype: str
    rotation_seeds: Mapping[str, int]


# ---- writing -------------------------------------------------------------------------------------------------------


def write_model(
    folder: Path, network: Network, settings: Settings, tensors: Mapping[str, Tensor], card: ModelCard, overwrite: bool
) -> None:
    """Writes the folder whole or not at all.

    Args:
        overwrite: replace the files of a model in the folder; other files in it stay.

    Errors: `ConfigError` if the folder has files and `overwrite` is not set, or if it cannot be written; an older model is then intact.
    """
    if settings.dtype not in _DTYPES:
        raise DescriptionError(f"save: weights are {settings.dtype}; allowed: {', '.join(_DTYPES)}")
    try:
        is_new = _check_place(folder, overwrite)
        with _temporary(folder, is_new) as place:
            digest = hashlib.sha256()
            n_bytes = write_atomically(place / WEIGHTS, _seen_by(digest, pieces_of(tensors)))
            document = {
                "format": FORMAT,
                "format_version": FORMAT_VERSION,
                "version": __version__,
                "network": network.to_dict(),
                **asdict(settings),
                "weights": {"file": WEIGHTS, "n_bytes": n_bytes, "sha256": digest.hexdigest()},
            }
            write_atomically(place / CONFIG, (strict_json(document, indent=1) + "\n").encode())
            text = card_text(card, folder.resolve().name, network, __version__)
            write_atomically(place / CARD, text.encode("utf-8", "backslashreplace"))
            if is_new:
                place.replace(folder)
            else:
                for name in FILES:
                    (place / name).replace(folder / name)
                sync_folder(folder)
        sync_folder(folder.parent)
    except OSError as error:
        raise ConfigError(
            f"{folder}: cannot be written: {error.strerror or error}; free space, or give another folder"
        ) from error


def _check_place(folder: Path, overwrite: bool) -> bool:
    """Whether the folder is new, or empty."""
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        return True
    if not folder.is_dir():
        raise ConfigError(f"{folder}: is a file; give a folder")
    found = sorted(path.name for path in folder.iterdir())
    if not found:
        return True
    if RUN in found:
        raise ConfigError(f"{folder}: is the folder of a run, in which no model is written; give another folder")
    if not overwrite:
        raise ConfigError(
            f"{folder}: exists and holds {', '.join(map(repr, found[:3]))}; give another folder, or overwrite=True, which replaces "
            f"{', '.join(FILES)} (sparsesnn save --overwrite)"
        )
    if CONFIG in found and _document(folder).get("format") != FORMAT:
        raise ConfigError(f"{folder}: has a {CONFIG} of another program, which is not replaced; give another folder")
    return False


@contextlib.contextmanager
def _temporary(folder: Path, is_new: bool) -> Iterator[Path]:
    """A new folder on the same disk, which is gone at the end."""
    place = folder.with_name(f".{folder.name}.tmp") if is_new else folder / ".model.tmp"
    shutil.rmtree(place, ignore_errors=True)  # left by a killed writer
    try:
        place.mkdir()
        yield place
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _seen_by(digest: Any, pieces: Iterator[Buffer]) -> Iterator[Buffer]:
    for piece in pieces:
        digest.update(piece)
        yield piece


# ---- reading -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Saved:
    """The content of a folder.

    Args:
        where: path of its `config.json`, for messages.
        tensors: by the names of `model.state_dict()`.
    """

    where: str
    network: Network
    settings: Settings
    tensors: dict[str, Tensor]


def read_model(folder: Path) -> Saved:
    """Reads a folder of `write_model`. Sizes are checked before memory is taken for them.

    Errors: `CheckpointError` if it is missing, damaged, or none of ours.
    """
    where = str(folder / CONFIG)
    if not folder.is_dir():
        raise CheckpointError(f"{folder}: is not a folder; give the folder of a saved model")
    if not inside(folder, CONFIG).is_file():
        run = folder / RUN
        hint = f"it holds a run: sparsesnn.train.load_run({str(folder)!r})" if run.exists() else "give a saved model"
        raise CheckpointError(f"{folder}: has no {CONFIG}; {hint}")
    document = _document(folder)
    if document.get("format") != FORMAT:
        raise CheckpointError(f"{where}: is not a model of sparsesnn (no format {FORMAT!r})")
    if document.get("format_version") != FORMAT_VERSION:
        raise CheckpointError(
            f"{where}: format version is {document.get('format_version')!r}; this sparsesnn reads {FORMAT_VERSION}; use the version "
            f"of sparsesnn that wrote it ({document.get('version')!r})"
        )
    try:
        network = Network.from_dict(document["network"])
        settings = Settings(**{name: document[name] for name in Settings.__dataclass_fields__})
        weights = document["weights"]
        n_bytes, sha256 = weights["n_bytes"], weights["sha256"]
        receivers = network.receivers()
    except UnknownModelError as error:
        raise CheckpointError(f"{where}: {error}; to load give neurons=[…]") from None
    except (DescriptionError, KeyError, TypeError) as error:
        raise CheckpointError(f"{where}: is damaged, or not a model of sparsesnn: {error!r}") from None
    seeds = settings.rotation_seeds
    if (
        weights.get("file") != WEIGHTS
        or type(n_bytes) is not int
        or not isinstance(sha256, str)
        or any(not isinstance(getattr(settings, x), str) for x in ("backend", "dense_mode", "weight_dtype"))
        or settings.dtype not in list(_DTYPES)
        or not isinstance(seeds, dict)
        or any(name not in receivers or type(x) is not int or not 0 <= x < 2**64 for name, x in seeds.items())
    ):
        raise CheckpointError(f"{where}: its settings are damaged; restore it from a copy")
    least = network.n_weights() * _DTYPES[settings.dtype].itemsize
    if least > n_bytes:
        raise CheckpointError(
            f"{where}: its network has {network.n_weights():,} weights, {WEIGHTS} only {n_bytes:,} bytes; they do not belong together"
        )
    tensors = read_tensors(
        inside(folder, WEIGHTS), n_bytes, sha256, "save the model again, or restore the folder from a copy"
    )
    for name, x in tensors.items():
        if x.is_floating_point() and x.dtype != _DTYPES[settings.dtype]:
            raise CheckpointError(f"{where}: {name} is {x.dtype}; its settings name {settings.dtype}")
        # thresholds may be -inf on purpose; NaN is always an error
        if x.is_floating_point() and bool(torch.isnan(x).any()):
            raise CheckpointError(f"{folder / WEIGHTS}: {name} holds NaN; the model cannot be used")
    return Saved(where, network, settings, tensors)


def dtype_of(settings: Settings) -> torch.dtype:
    """The type of the weights."""
    return _DTYPES[settings.dtype]


def _document(folder: Path) -> dict[str, Any]:
    document = read_json(inside(folder, CONFIG))
    if not isinstance(document, dict):
        raise CheckpointError(f"{folder / CONFIG}: is not a model of sparsesnn; give a saved model")
    return document


# ---- the hub -------------------------------------------------------------------------------------------------------


def local_folder(name: str | Path, **download: Any) -> Path:
    """The folder itself, or that of the files of a model on Hugging Face's hub, which are downloaded.

    Args:
        name: a folder, or `owner/model`.
        download: arguments of `huggingface_hub.snapshot_download`.
    """
    if Path(name).is_dir():
        return Path(name)
    if os.sep in str(name)[:1] or str(name).startswith(".") or str(name).count("/") != 1:
        raise CheckpointError(f"{name}: no such folder; give a folder, or a model of the hub as 'owner/model'")
    return Path(
        hub(f"{name} is not a folder here; a model of the hub").snapshot_download(
            str(name), allow_patterns=list(FILES), **download
        )
    )


def hub(purpose: str) -> Any:
    """The package huggingface_hub. Errors: `MissingDependencyError`."""
    try:
        import huggingface_hub
    except ImportError:
        from sparsesnn.errors import MissingDependencyError

        raise MissingDependencyError("huggingface_hub", "hub", purpose) from None
    return huggingface_hub
