"""A run in TensorBoard: numbers of each epoch, weights as histograms, hyperparameters, and the run's plots."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from sparsesnn.config import Config
from sparsesnn.config.tables import flatten
from sparsesnn.figures import import_matplotlib
from sparsesnn.regular_file import inside
from sparsesnn.train.loggers import Guarded, guarded
from sparsesnn.wording import printable

if TYPE_CHECKING:
    from sparsesnn.train.loop import Run

#: the most numbers of a tensor in a histogram, evenly sampled, so that large layers cost no more than small ones
MOST_NUMBERS = 100_000


def tensorboard_of(run: Run) -> list[Guarded]:
    """The run's logger; none if `train.tensorboard` is false, or if TensorBoard is not installed, which is noted."""
    if not run.config.train.tensorboard:
        return []
    try:
        import tensorboard  # noqa: F401
    except ImportError:
        run.report.note(
            "note    TensorBoard is not installed (pip install 'sparsesnn[tensorboard]'); continuing without it"
        )
        return []
    return guarded(
        "TensorBoard", lambda: TensorBoard(run.config, run.folder, run.progress.epoch + 1, run.engine.weights)
    )


class TensorBoard:
    """Writes `<run>/tensorboard`.

    Args:
        first_epoch: epochs from this one on are written again after a resume.
        weights: returns this rank's weights, at the end of every epoch.

    Errors: `ImportError` without TensorBoard.
    """

    def __init__(
        self, config: Config, folder: Path, first_epoch: int, weights: Callable[[], Mapping[str, Tensor]]
    ) -> None:
        from torch.utils.tensorboard.writer import SummaryWriter

        self.config, self.folder, self.weights, self.epoch = config, folder, weights, first_epoch
        self.writer = SummaryWriter(str(inside(folder, "tensorboard")), purge_step=first_epoch)

    def append(self, record: Mapping[str, Any]) -> None:
        self.epoch = record["epoch"]
        for key, value in record.items():
            for name, number in value.items() if isinstance(value, Mapping) else [("", value)]:
                if key != "epoch" and isinstance(number, (int, float)):
                    self.writer.add_scalar(f"{key}/{name}" if name else key, number, self.epoch)
        for name, x in self.weights().items():
            numbers = x.flatten()[:: -(-x.numel() // MOST_NUMBERS) or 1]
            if numbers.numel() and numbers.isfinite().all():
                self.writer.add_histogram(name.removeprefix("model/"), numbers, self.epoch)
        self.writer.flush()

    def close(self, result: Mapping[str, Any] | None) -> None:
        if result is not None:
            self._add_hyperparameters(result)
            for path in sorted(self.folder.glob("*.png")):
                self._add_picture(path)
        self.writer.close()

    def _add_hyperparameters(self, result: Mapping[str, Any]) -> None:
        hyperparameters = flatten(self.config.to_dict())
        parameters = {k: x if isinstance(x, (bool, int, float)) else printable(x) for k, x in hyperparameters.items()}
        names = ("test_accuracy", "valid_accuracy", "test_rmse", "valid_rmse", "test_loss", "samples_per_s")
        reached = {f"result/{name}": result[name] for name in names if result[name] is not None}
        self.writer.add_hparams(parameters, reached, run_name=".", global_step=self.epoch)

    def _add_picture(self, path: Path) -> None:
        import_matplotlib()
        from matplotlib.image import imread

        self.writer.add_image(path.stem, imread(path)[..., :3], self.epoch, dataformats="HWC")
