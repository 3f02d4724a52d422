"""The folder of a run: creates and locks it, and reads its checkpoint on all ranks."""

from __future__ import annotations

import time
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from sparsesnn.config import Config, differences
from sparsesnn.config.tables import build
from sparsesnn.errors import CheckpointError, ConfigError
from sparsesnn.host.comm import Communicator, Grid
from sparsesnn.train import checkpoint as ckpt
from sparsesnn.train import ranks
from sparsesnn.train.checkpoint import Checkpoint, CheckpointStore
from sparsesnn.train.files import LOCK, locked
from sparsesnn.train.metrics import METRICS, RESULT, Progress
from sparsesnn.train.report import Report
from sparsesnn.utf8 import to_file
from sparsesnn.whole_file import write_atomically

CONFIG = "config.toml"


def begin_run(held: ExitStack, folder: Path, config: Config, resume: bool, grid: Grid, report: Report) -> str:
    """Creates and locks the folder, on the first rank; returns whether the run in it is finished."""
    if not grid.is_first:
        return ""
    is_new = not folder.exists()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"out: {folder} cannot be created: {error.strerror}; give another --out") from None
    held.enter_context(locked(folder))
    if is_new:
        held.push(partial(_leave_nothing, folder))
    saved = open_folder(folder, config, resume=resume, report=report)
    if saved is not None and (folder / RESULT).exists():
        progress = build(Progress, saved.progress, "progress")
        if progress.is_over(config.train.epochs, config.train.patience):
            return "finished"
    return ""


def _leave_nothing(folder: Path, error: type[BaseException] | None, *_: object) -> None:
    """Removes a new folder if the run fails before it begins, for example because data are missing."""
    if error is not None and {path.name for path in folder.iterdir()} <= {CONFIG, LOCK}:
        for path in folder.iterdir():
            path.unlink()
        folder.rmdir()


def read_folder(folder: Path, *, resume: bool, world: Communicator) -> Checkpoint | None:
    """The checkpoint to continue from, read by every rank; None if there is none.

    Errors: `CheckpointError` if ranks do not see the same one.
    """
    store = CheckpointStore(folder)
    checkpoints: list[Checkpoint] = []

    def read() -> str:
        if not (resume and store.exists()):
            return ""
        checkpoints.append(store.read())
        return checkpoints[0].tensors[0].sha256

    digests = ranks.together(world, read)
    if strange := [r for r, digest in enumerate(digests) if digest != digests[0]]:
        raise CheckpointError(
            f"{ranks.name_of(strange[0], world.size)}: {store.path} differs from the file that rank 0 sees; "
            "give a folder that all ranks share (--out)"
        )
    return checkpoints[0] if checkpoints else None


def default_folder(config: Config) -> Path:
    return Path("runs") / f"{config.data.name}-{time.strftime('%Y%m%d-%H%M%S')}"


def open_folder(folder: Path, config: Config, *, resume: bool, report: Report) -> Checkpoint | None:
    """The checkpoint to continue from, or None to start; writes the configuration of a new run.

    Errors: `ConfigError` if the folder holds a run and `resume` is not set; `CheckpointError` if the checkpoint is
    damaged or was made with another configuration.
    """
    store = CheckpointStore(folder)
    if not resume:
        taken = [name for name in (ckpt.NAME, METRICS, RESULT) if (folder / name).exists()]
        if taken:
            raise ConfigError(
                f"out: {folder} already has a run ({', '.join(taken)}); add --resume to continue it, "
                "or give another --out"
            )
    saved = store.read() if resume and store.exists() else None
    if saved is not None:
        try:
            before = Config.from_dict(saved.config)
        except ConfigError as error:
            raise CheckpointError(f"{store.path}: its configuration is not one of sparsesnn: {error}") from None
        done = saved.progress.get("epoch", 0)
        finished = (folder / RESULT).exists() or (isinstance(done, int) and done >= before.train.epochs)
        if changed := differences(before, config, finished=finished):
            raise CheckpointError(
                f"{folder}: the run was started with another configuration: {'; '.join(changed)}; "
                "resume with the same one (sparsesnn train --resume --out alone takes it from the folder), "
                "or start again in another --out"
            )
    elif resume:
        report.note(f"{folder}: no checkpoint yet, starting from the beginning")
    write_atomically(folder / CONFIG, to_file(config.to_toml()))
    return saved
