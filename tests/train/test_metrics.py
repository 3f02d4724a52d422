"""Sums over batches, metrics.jsonl and result.json."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from sparsesnn.engines import Step
from sparsesnn.errors import CheckpointError
from sparsesnn.train.metrics import METRICS, RESULT, MetricsFile, Progress, Result, Tally, read_metrics
from sparsesnn.train.summary import write_summary

RESULT_EXAMPLE = Result(
    test_accuracy=0.75, test_accuracy_last=0.5, test_loss=0.7, valid_accuracy=None, best_epoch=3, n_epochs=4,
    samples_per_s=12.5, seconds=3.5, activity={"hidden": 0.02}, dropped={"hidden": 0}, n_test=4, n_valid=0, n_train=9,
    n_lost=0, n_parameters=77, weights_sha256="ab", config={"net": {}}, data={}, version="1",
)  # fmt: skip


def test_a_tally_weighs_batches_by_their_samples() -> None:
    tally = Tally()
    tally.add(Step(1.0, 3, 3, 2, {"hidden": 0.0}, {"hidden": 5}, gradient_norm=4.0))
    tally.add(Step(5.0, 1, 1, 1, {"hidden": 1.0}, {"hidden": 2}))
    assert (tally.n_samples, tally.n_correct, tally.accuracy, tally.loss) == (4, 3, 0.75, 2.0)
    assert tally.activity == {"hidden": 0.25}
    assert tally.dropped == {"hidden": 7}
    assert tally.gradient_norm_sum == 12.0
    assert Tally(seconds=4.0, waited_s=1.0).wait_share == 0.25


def test_an_empty_tally_has_no_nan() -> None:
    tally = Tally()
    assert (tally.loss, tally.accuracy, tally.samples_per_s, tally.activity) == (0.0, 0.0, 0.0, {})
    assert tally.wait_share == 0.0


def test_lines_after_the_checkpoint_are_cut_off(tmp_path: Path) -> None:
    metrics = MetricsFile(tmp_path, 0)
    metrics.append({"epoch": 1})
    position = metrics.position
    metrics.append({"epoch": 2})
    with (tmp_path / METRICS).open("a") as file:
        file.write('{"epoch": 3, "lo')  # killed while it wrote
    again = MetricsFile(tmp_path, position)
    again.append({"epoch": 2, "again": True})
    assert read_metrics(tmp_path) == [{"epoch": 1}, {"epoch": 2, "again": True}]


def test_a_file_that_is_shorter_than_the_checkpoint_says(tmp_path: Path) -> None:
    MetricsFile(tmp_path, 0).append({"epoch": 1})
    with pytest.raises(CheckpointError, match=r"has 13 bytes, but the checkpoint needs 99; restore the file"):
        MetricsFile(tmp_path, 99)


def test_no_nan_is_written(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="Out of range float"):
        MetricsFile(tmp_path, 0).append({"loss": float("nan")})
    assert read_metrics(tmp_path) == []
    with pytest.raises(ValueError, match="Out of range float"):
        dataclasses.replace(RESULT_EXAMPLE, seconds=float("inf")).write(tmp_path)
    assert not (tmp_path / RESULT).exists()


def test_damaged_lines(tmp_path: Path) -> None:
    (tmp_path / METRICS).write_text('{"epoch": 1}\n{"ep')
    with pytest.raises(CheckpointError, match=r"metrics\.jsonl: is damaged"):
        read_metrics(tmp_path)


def test_a_result_reads_back(tmp_path: Path) -> None:
    RESULT_EXAMPLE.write(tmp_path)
    assert Result.read(tmp_path) == RESULT_EXAMPLE


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"test_accuracy": 1}', '{"x": NaN}'])
def test_a_result_that_is_not_one(tmp_path: Path, text: str) -> None:
    (tmp_path / RESULT).write_text(text)
    with pytest.raises(CheckpointError, match=r"result\.json"):
        Result.read(tmp_path)


def test_the_summary_of_seeds(tmp_path: Path) -> None:
    results = [dataclasses.replace(RESULT_EXAMPLE, test_accuracy=a) for a in (0.5, 0.75, 1.0)]
    lines = write_summary(tmp_path, [0, 1, 2], results)
    assert lines == ["test accuracy 75.00 ± 25.00 % (3 seeds, mean ± sd)"]
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["test_accuracy"] == {"mean": 0.75, "sd": 0.25, "values": [0.5, 0.75, 1.0]}
    assert "valid_accuracy" not in summary
    assert write_summary(tmp_path, [7], results[:1]) == ["test accuracy 50.00 % (1 seed)"]


def test_validation_chooses_the_highest_accuracy_and_then_the_lowest_loss() -> None:
    progress = Progress()
    validations = [(0.0, 9.0), (0.5, 2.0), (0.5, 2.0), (0.5, 1.5), (0.5, 1.7), (0.4, 0.1), (0.6, 3.0)]
    chosen = []
    for accuracy, loss in validations:
        progress.epoch += 1
        chosen.append(progress.note_validation(accuracy, loss))
    assert chosen == [True, True, False, True, False, False, True]
    assert (progress.best_epoch, progress.best_score, progress.best_loss) == (7, 0.6, 3.0)
