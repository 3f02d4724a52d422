"""Safetensors files: written piece by piece, and read only if size and SHA-256 are those that another file names."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from torch import Tensor

from sparsesnn.errors import CheckpointError
from sparsesnn.regular_file import check_regular
from sparsesnn.whole_file import Buffer

#: the format's names of tensor dtypes
_DTYPES = {
    torch.float64: "F64", torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16", torch.int64: "I64", torch.int32: "I32",
    torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8", torch.bool: "BOOL",
}  # fmt: skip


def pieces_of(tensors: Mapping[str, Tensor]) -> Iterator[Buffer]:
    """The bytes of a safetensors file, tensor by tensor, so that they are never copied all at once."""
    flat = {name: x.detach().cpu().contiguous() for name, x in tensors.items()}
    # aligned, in the usual order of other writers
    ordered = sorted(flat.items(), key=lambda item: (-item[1].element_size(), item[0]))
    header, end = {}, 0
    for name, x in ordered:
        header[name] = {"dtype": _DTYPES[x.dtype], "shape": list(x.shape), "data_offsets": [end, end + x.nbytes]}
        end += x.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    yield len(text).to_bytes(8, "little") + text
    for _, x in ordered:
        yield x.reshape(-1).view(torch.uint8).numpy().data


def read_tensors(path: Path, n_bytes: int, sha256: str, remedy: str) -> dict[str, Tensor]:
    """The tensors of a file.

    Args:
        n_bytes, sha256: its size and digest.
        remedy: the end of the message for a file of another size.

    Errors: `CheckpointError` for a file that is missing or damaged.
    """
    check_regular(path, CheckpointError)
    try:
        size = path.stat().st_size
        data = path.read_bytes() if size == n_bytes else b""
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror}") from None
    if size != n_bytes:
        raise CheckpointError(f"{path}: has {size:,} bytes, its checkpoint says {n_bytes:,}; it is damaged: {remedy}")
    if hashlib.sha256(data).hexdigest() != sha256:
        raise CheckpointError(f"{path}: is damaged (its SHA-256 does not match); restore it from a copy")
    try:
        return load_tensors(data)
    except (SafetensorError, KeyError, ValueError, TypeError, RuntimeError) as error:
        raise CheckpointError(f"{path}: is not a safetensors file: {error}") from None
