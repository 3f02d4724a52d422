"""Images of MNIST and CIFAR-10 from the files saved by torchvision, and spikes from images.

| set | files, below a folder | license |
|---|---|---|
| mnist | MNIST/raw/{train,t10k}-images-idx3-ubyte, …-labels-idx1-ubyte, with or without .gz | CC BY-SA 3.0 |
| cifar10 | cifar-10-batches-bin/{data_batch_1 … 5,test_batch}.bin: the "binary version" | no license named by its authors |

torchvision stores CIFAR-10 as pickles, which can run code when loaded; they are refused, with the address of a safe
version. LeCun, Cortes, Burges, The MNIST database; Krizhevsky 2009, Learning multiple layers of features
from tiny images.
"""

from __future__ import annotations

import gzip
import math
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sparsesnn.errors import ConfigError, DataError
from sparsesnn.regular_file import check_regular

NAMES = ("mnist", "cifar10")
SPLITS = ("train", "test")

#: largest IDX file: more than either set needs
MOST_BYTES = 1 << 30


@dataclass(frozen=True)
class Images:
    """Images and their classes.

    Args:
        pixels: uint8[n, C, H, W].
        labels: int64[n].
        n_classes: 10 for both sets.
    """

    pixels: npt.NDArray[np.uint8]
    labels: npt.NDArray[np.int64]
    n_classes: int = 10

    def __len__(self) -> int:
        return len(self.pixels)

    def spikes(self, indices: npt.NDArray[Any], n_steps: int, seed: int = 0) -> npt.NDArray[np.bool_]:
        """bool[T, b, C, H, W]: every pixel fires in each step with a probability equal to its brightness (a rate code)."""
        rng = np.random.default_rng(seed)
        chosen = self.pixels[indices].astype(np.float32) / 255
        fired: npt.NDArray[np.bool_] = rng.random((n_steps, *chosen.shape), np.float32) < chosen
        return fired


def load_images(name: str, folder: str | Path, split: str = "train") -> Images:
    """Reads a set.

    Args:
        name: "mnist" or "cifar10".
        folder: holds MNIST/raw or cifar-10-batches-bin; torchvision's `root`.
        split: "train" or "test".

    Errors: `ConfigError` for other names; `DataError` for files that are missing, damaged, or pickles.
    """
    if name not in NAMES or split not in SPLITS:
        raise ConfigError(f"images: {name!r}, split {split!r}; allowed: {', '.join(NAMES)}, and {', '.join(SPLITS)}")
    read = _mnist if name == "mnist" else _cifar10
    images = read(Path(folder), split)
    if len(images.labels) != len(images.pixels) or (len(images) and int(images.labels.max()) >= images.n_classes):
        raise DataError(
            f"{name}: {len(images.pixels)} images, {len(images.labels)} labels up to {images.labels.max(initial=0)}; the "
            "files do not belong together; get them again"
        )
    return images


def _mnist(folder: Path, split: str) -> Images:
    stem = {"train": "train", "test": "t10k"}[split]
    pixels = _idx(folder / "MNIST" / "raw" / f"{stem}-images-idx3-ubyte", 3)
    labels = _idx(folder / "MNIST" / "raw" / f"{stem}-labels-idx1-ubyte", 1)
    return Images(pixels[:, None], labels.astype(np.int64))


def _idx(path: Path, n_axes: int) -> npt.NDArray[np.uint8]:
    """An IDX file of bytes: 0, 0, 8 (uint8), the number of axes; each axis as big-endian int32; the bytes."""
    data = _bytes(path)
    head = 4 + 4 * n_axes
    if len(data) < head or data[:4] != bytes([0, 0, 8, n_axes]):
        raise DataError(
            f"{path}: begins with {data[:4].hex()}; an IDX file of {n_axes} axes of bytes begins 000008{n_axes:02x}"
        )
    shape = tuple(int(n) for n in np.frombuffer(data, ">u4", n_axes, 4))
    if len(data) - head != math.prod(shape):
        raise DataError(
            f"{path}: has {len(data) - head:,} bytes for an array of {shape}; it is cut short or damaged; get it again"
        )
    return np.frombuffer(data, np.uint8, offset=head).reshape(shape)


def _bytes(path: Path) -> bytes:
    packed = path.with_name(path.name + ".gz")
    try:
        check_regular(path, DataError, MOST_BYTES)
        check_regular(packed, DataError)
        if path.exists():
            return path.read_bytes()
        if packed.exists():
            with gzip.open(packed) as file:
                data = file.read(MOST_BYTES + 1)
            if len(data) > MOST_BYTES:
                raise DataError(
                    f"{packed}: unpacks to more than {MOST_BYTES:,} bytes, too large for this set of images"
                )
            return data
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path}: cannot be read: {error}; get it again") from None
    raise DataError(
        f"{path}: is missing, with and without .gz; give the folder that holds MNIST/raw, as torchvision leaves it"
    )


def _cifar10(folder: Path, split: str) -> Images:
    place = folder / "cifar-10-batches-bin"
    if not place.is_dir():
        pickled = (
            " (cifar-10-batches-py exists, but its pickles can run code)"
            if (folder / "cifar-10-batches-py").is_dir()
            else ""
        )
        raise DataError(
            f"{place}: is missing{pickled}; unpack the binary version, cifar-10-binary.tar.gz from "
            "https://www.cs.toronto.edu/~kriz/cifar.html, to that folder"
        )
    names = [f"data_batch_{k}.bin" for k in range(1, 6)] if split == "train" else ["test_batch.bin"]
    row = 1 + 3 * 32 * 32
    parts = []
    for name in names:
        data = _bytes_of(place / name)
        if len(data) == 0 or len(data) % row:
            raise DataError(f"{place / name}: has {len(data):,} bytes; records have {row} bytes; get it again")
        parts.append(np.frombuffer(data, np.uint8).reshape(-1, row))
    rows = np.concatenate(parts)
    return Images(np.ascontiguousarray(rows[:, 1:]).reshape(-1, 3, 32, 32), rows[:, 0].astype(np.int64))


def _bytes_of(path: Path) -> bytes:
    check_regular(path, DataError, MOST_BYTES)
    try:
        return path.read_bytes()
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}; get it again") from None
