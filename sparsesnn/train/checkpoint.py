"""Checkpoints: tensors as safetensors, everything else as JSON, complete at every instant.

A run folder holds `checkpoint.json`, which names the tensor files it belongs to, their sizes and SHA-256:

    ckpt-<step>.safetensors     model/<name>, optim/<parameter>/<key>, ema/<parameter>, rng/torch: the state of the run
    best-<epoch>.safetensors    model/<name>: the weights with the best validation accuracy

For a network over R ranks there are R of each, ckpt-<step>-<r>of<R>.safetensors, written at the same time: every rank
writes the columns of its neurons, which `checkpoint.json` lists. Any number of ranks can read them.

A thread writes the tensors while training continues. Order of writing: the tensor files under new names, then
`checkpoint.json` in one step; then the older tensor files are removed. If the process is killed in between, the old
checkpoint is still complete, and the next write removes leftover files.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sparsesnn.errors import CheckpointError
from sparsesnn.host.comm import Grid
from sparsesnn.json_file import read_json, strict_json
from sparsesnn.network import Network
from sparsesnn.parameters import NEURONS, cuts
from sparsesnn.regular_file import inside
from sparsesnn.tensor_file import pieces_of, read_tensors
from sparsesnn.train.ranks import together
from sparsesnn.whole_file import TEMPORARY, Buffer, write_atomically

NAME = "checkpoint.json"
FORMAT = "sparsesnn checkpoint"
FORMAT_VERSION = 3  # 1: one tensor file for each name; up to 2: weights named as in `stable_names`
_TENSOR_FILE = re.compile(r"(ckpt|best)-[0-9]{1,18}(-[0-9]{1,9}of[0-9]{1,9})?\.safetensors")
_POPULATION = re.compile(r"(?:model|optim|ema)/layers\.([^./]+)\.([^/]+)")

#: first and last + 1 of the neurons of each population
Columns = Mapping[str, tuple[int, int]]


@dataclass(frozen=True)
class TensorFile:
    """A safetensors file next to `checkpoint.json`.

    Args:
        file, n_bytes, sha256: its name, size and digest.
        columns: for each population, the neurons whose columns it holds; empty: all.
    """

    file: str
    n_bytes: int
    sha256: str
    columns: dict[str, list[int]] = field(default_factory=dict)


@dataclass(frozen=True)
class Checkpoint:
    """The content of `checkpoint.json`.

    Args:
        config: the run's configuration, as plain data.
        progress: the run's position: epoch, batch, step, sums of the running epoch, best so far (`loop.Progress`).
        network: `Network.to_dict` of the network that the weights belong to.
        data: the origin of the training data, so that a run does not continue with other data.
        tensors: model, optimizer and RNG, one file a shard.
        best: weights of the best epoch, likewise; None before the first validation.
        version: the version of sparsesnn that wrote it.
    """

    config: dict[str, Any]
    progress: dict[str, Any]
    network: dict[str, Any]
    data: dict[str, Any]
    tensors: tuple[TensorFile, ...]
    best: tuple[TensorFile, ...] | None
    version: str


class _Writing:
    """Writes the tensor files of a checkpoint in a thread, which does not communicate with other ranks."""

    def __init__(self, checkpoint: Checkpoint, write: Callable[[], str]) -> None:
        self.checkpoint, self._found = checkpoint, ""
        self._error: BaseException | None = None
        self.thread = threading.Thread(target=self._run, args=(write,), name="sparsesnn-checkpoint")
        self.thread.start()

    def _run(self, write: Callable[[], str]) -> None:
        try:
            self._found = write()
        except BaseException as error:  # any error: `files` raises it
            self._error = error

    def files(self) -> str:
        """Waits for the thread; raises its error."""
        self.thread.join()
        if self._error is not None:
            raise self._error
        return self._found


class CheckpointStore:
    """Reads and writes the checkpoint of one run folder.

    A thread writes the tensors to the disk while training continues (`begin`); the checkpoint is valid from `end` on.

    Args:
        folder: the same on all ranks, on a shared file system.
        grid: the ranks; all of them write, together.
        columns: the neurons whose columns this rank holds; None: all.
    """

    def __init__(self, folder: Path, grid: Grid | None = None, columns: Columns | None = None) -> None:
        self.folder, self.grid, self.columns = folder, grid or Grid.alone(), columns
        self.path = folder / NAME
        self._writing: _Writing | None = None

    # ---- writing -----------------------------------------------------------------------------------------------

    def write(self, **content: Any) -> Checkpoint:
        """`begin` and `end`."""
        self.begin(**content)
        made = self.end()
        assert made is not None
        return made

    def begin(
        self,
        *,
        config: dict[str, Any],
        progress: dict[str, Any],
        network: dict[str, Any],
        data: dict[str, Any],
        step: int,
        tensors: Mapping[str, Tensor],
        best: tuple[TensorFile, ...] | None,
        version: str,
        new_best: tuple[int, Mapping[str, Tensor]] | None = None,
    ) -> None:
        """Starts to write a checkpoint in a thread, after completing the one before it.

        Args:
            tensors: copies, which must not change until `end`.
            best: files of the best epoch so far.
            new_best: a better epoch, and its weights.
        """
        self.end()
        made = Checkpoint(config, progress, network, data, (), best, version)
        wanted = {f"ckpt-{step:09d}": tensors}
        if new_best is not None:
            wanted[f"best-{new_best[0]:06d}"] = new_best[1]
        self._writing = _Writing(made, partial(self._write_tensors, wanted))

    @property
    def is_written(self) -> bool:
        """Whether `end` would not wait for this rank's disk; also True if nothing was begun."""
        return self._writing is None or not self._writing.thread.is_alive()

    def end(self) -> Checkpoint | None:
        """Waits for all ranks' files, and replaces the checkpoint in one step; None: nothing was begun.

        Errors: `CheckpointError`, on all ranks, if a write failed; the older checkpoint is then intact.
        """
        writing, self._writing = self._writing, None
        if writing is None:
            return None
        found = [json.loads(text) for text in together(self.grid.world, writing.files)]
        files = [[TensorFile(**of_rank[k]) for of_rank in found if of_rank] for k in range(len(found[0]))]
        made = replace(
            writing.checkpoint, tensors=tuple(files[0]), best=tuple(files[1]) if files[1:] else writing.checkpoint.best
        )
        body = asdict(made)
        document = {"format": FORMAT, "format_version": FORMAT_VERSION, "sha256": _digest(body), "body": body}

        def finish() -> str:
            if self.grid.is_first:
                self._write(self.path, [strict_json(document, indent=1).encode()])
                self.tidy({file.file for file in (*made.tensors, *(made.best or ()))})
            return ""

        together(self.grid.world, finish)
        return made

    def close(self) -> None:
        """Waits for this rank's disk only, if ranks no longer synchronize; the older checkpoint remains."""
        if self._writing is not None:
            self._writing.thread.join()

    def _write_tensors(self, wanted: Mapping[str, Mapping[str, Tensor]]) -> str:
        """This rank's tensor files, as JSON; none if the first replica holds the same."""
        if self.grid.replicas.rank:
            return "[]"
        shard, n_shards = self.grid.shards.rank, self.grid.n_shards
        part = f"-{shard + 1}of{n_shards}" if n_shards > 1 else ""
        columns = {key: list(value) for key, value in (self.columns or {}).items()} if n_shards > 1 else {}
        files = []
        for name, tensors in wanted.items():
            digest, n_bytes = hashlib.sha256(), 0
            pieces = pieces_of(tensors)

            def read(pieces: Iterable[Buffer] = pieces, digest: Any = digest) -> Iterator[Buffer]:
                for piece in pieces:
                    digest.update(piece)
                    yield piece

            n_bytes = self._write(self.folder / f"{name}{part}.safetensors", read())
            files.append(asdict(TensorFile(f"{name}{part}.safetensors", n_bytes, digest.hexdigest(), columns)))
        return json.dumps(files)

    def _write(self, path: Path, pieces: Iterable[Buffer]) -> int:
        try:
            return write_atomically(path, pieces)
        except OSError as error:
            kept = "the checkpoint before it is intact" if self.path.exists() else "there is no earlier checkpoint"
            raise CheckpointError(
                f"{path}: cannot be written: {error.strerror or error}; {kept}; "
                f"free space or repair the folder, then run again with --resume --out {self.folder}"
            ) from error

    def tidy(self, keep: set[str]) -> None:
        """Removes tensor files that no checkpoint names, and temporary files of interrupted writes."""
        for path in self.folder.iterdir():
            ours = _TENSOR_FILE.fullmatch(path.name) and path.name not in keep
            if ours or (path.name.startswith(".") and path.name.endswith(TEMPORARY)):
                path.unlink(missing_ok=True)

    # ---- reading -----------------------------------------------------------------------------------------------

    def exists(self) -> bool:
        return self.path.exists()

    def read(self) -> Checkpoint:
        """The checkpoint; `CheckpointError` if it is missing, damaged, of another format, or names missing files."""
        if not inside(self.folder, NAME).is_file():
            problem = f"has no {NAME}" if self.folder.is_dir() else "is not a folder"
            raise CheckpointError(f"{self.folder}: {problem}; give the folder of a run (--out of sparsesnn train)")
        document = read_json(self.path)
        where = str(self.path)
        if not isinstance(document, dict) or document.get("format") != FORMAT:
            raise CheckpointError(f"{where}: is not a checkpoint of sparsesnn (no format {FORMAT!r})")
        if document.get("format_version") not in range(1, FORMAT_VERSION + 1):
            raise CheckpointError(
                f"{where}: format version is {document.get('format_version')!r}; "
                f"this sparsesnn reads 1 to {FORMAT_VERSION}; use the version of sparsesnn that wrote it"
            )
        body = document.get("body")
        try:
            whole = isinstance(body, dict) and document.get("sha256") == _digest(body)
        except RecursionError:
            whole = False
        if not whole or not isinstance(body, dict):
            raise CheckpointError(f"{where}: is damaged (its SHA-256 does not match); restore it from a copy")
        for key, kind in {
            **dict.fromkeys(("config", "progress", "network", "data"), dict),
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
            tensors=_tensor_files(body.get("tensors"), where),
            best=None if best is None else _tensor_files(best, where),
            version=body["version"],
        )

    def tensors(self, files: Sequence[TensorFile], network: Network | None = None) -> dict[str, Tensor]:
        """The tensors that a checkpoint names, of the neurons of this rank; `CheckpointError` if a file is damaged.

        Files that hold none of these neurons are not read.

        Args:
            network: determines where weights are cut; None: all are matrices with a column for each neuron.
        """
        pieces: dict[str, list[Tensor]] = {}
        axes: dict[str, int] = {}
        by_name = cuts(network) if network else {}
        for file in files:
            if pieces and not self._wants(file):
                continue
            for key, tensor in self._read(file).items():
                match = _POPULATION.match(key)
                if match is None or not tensor.ndim:
                    pieces.setdefault(key, [tensor])
                    continue
                axis, edge = by_name.get(f"layers.{match[1]}.{match[2]}", NEURONS)
                axes[key] = axis
                population = network.populations.get(match[1]) if network else None
                begin, end = file.columns.get(match[1], (0, population.n if population else tensor.shape[axis]))
                if tensor.shape[axis] != edge(end) - edge(begin):
                    raise CheckpointError(
                        f"{self.folder / file.file}: {key} is {list(tensor.shape)}, but its checkpoint names "
                        f"the neurons {begin} to {end - 1}; it is damaged"
                    )
                first, last = (begin, end) if self.columns is None else self.columns.get(match[1], (0, 0))
                low = min(end, max(begin, first))
                high = max(low, min(end, last))
                kept = tensor.narrow(axis, edge(low) - edge(begin), edge(high) - edge(low))
                pieces.setdefault(key, []).append(kept)
        return {key: parts[0] if len(parts) == 1 else torch.cat(parts, axes[key]) for key, parts in pieces.items()}

    def _wants(self, file: TensorFile) -> bool:
        if self.columns is None or not file.columns:
            return True
        return any(
            max(begin, self.columns[name][0]) < min(end, self.columns[name][1])
            for name, (begin, end) in file.columns.items()
            if name in self.columns
        )

    def _read(self, file: TensorFile) -> dict[str, Tensor]:
        remedy = "copy it again, or use other weights (sparsesnn eval --weights best or last)"
        return read_tensors(inside(self.folder, file.file), file.n_bytes, file.sha256, remedy)


def _tensor_files(entries: Any, where: str) -> tuple[TensorFile, ...]:
    if not isinstance(entries, list):  # format version 1
        entries = [entries]
    if not entries:
        raise CheckpointError(f"{where}: names no tensor file")
    return tuple(_tensor_file(entry, where) for entry in entries)


def _tensor_file(entry: Any, where: str) -> TensorFile:
    if (
        not isinstance(entry, dict)
        or not isinstance(entry.get("file"), str)
        or not _TENSOR_FILE.fullmatch(entry["file"])  # also refuses paths such as ../../x
        or not isinstance(entry.get("n_bytes"), int)
        or not isinstance(entry.get("sha256"), str)
        or not _are_columns(entry.get("columns", {}))
    ):
        raise CheckpointError(f"{where}: {entry!r} does not name a tensor file (file, n_bytes, sha256)")
    return TensorFile(entry["file"], entry["n_bytes"], entry["sha256"], entry.get("columns", {}))


def _are_columns(columns: Any) -> bool:
    def is_range(pair: Any) -> bool:
        whole = isinstance(pair, list) and len(pair) == 2 and all(type(x) is int for x in pair)
        return whole and 0 <= pair[0] <= pair[1]

    return isinstance(columns, dict) and all(is_range(pair) for pair in columns.values())


def _digest(body: Any) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
