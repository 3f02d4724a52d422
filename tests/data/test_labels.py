"""Labels of steps, and values of samples and steps: from arrays and files into sets, caches and batches."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sparsesnn.datasets import EventSet, cache
from sparsesnn.datasets.augment import Augment
from sparsesnn.datasets.events import Options, _part_of
from sparsesnn.datasets.recording import join, read
from sparsesnn.datasets.splits import split_validation
from sparsesnn.errors import ConfigError, DataError
from sparsesnn.host.stream import Stream
from sparsesnn.task import Task

N, T = 6, 10
STEP_LABELS = np.arange(N * T).reshape(N, T) % 4 - 1
STEP_TARGETS = np.where(STEP_LABELS < 0, np.nan, STEP_LABELS / 2.0)


def events() -> list[tuple[Any, Any]]:
    """Sample s has one event in step t at unit t % 3, for each t from s on."""
    return [(np.arange(s, T) * 1000.0, np.arange(s, T) % 3) for s in range(N)]


def make(**labels: Any) -> EventSet:
    return EventSet.from_events(events(), **labels, n_steps=T, dt_us=1000.0, n_neurons=3)


LABELS: dict[str, tuple[Any, Any, str]] = {
    "labels": ([0, 1, 2, 0, 1, 2], np.array([0, 1, 2, 0, 1, 2]), "class"),
    "step_labels": (STEP_LABELS, STEP_LABELS.astype(np.int8), "class per step"),
    "targets": (np.arange(12.0).reshape(N, 2), np.arange(12, dtype=np.float32).reshape(N, 2), "values"),
    "step_targets": (STEP_TARGETS, STEP_TARGETS[:, :, None].astype(np.float32), "values per step"),
}


@pytest.mark.parametrize("form", LABELS)
def test_a_set_keeps_its_labels_through_cache_and_batches(tmp_path: Path, form: str) -> None:
    given, kept, task = LABELS[form]
    event_set = make(**{form: given})
    assert str(event_set.task) == task
    assert Task.named(task) == event_set.task
    assert event_set.n_outputs == {"labels": 3, "step_labels": 3, "targets": 2, "step_targets": 1}[form]
    cache.write(tmp_path / "a.safetensors", "key", event_set)
    for one in (event_set, cache.read(tmp_path / "a.safetensors", "key")):
        assert one.labels.dtype == kept.dtype
        np.testing.assert_array_equal(one.labels, kept)
        (_, labels), *_ = Stream(one, [4, 1], 2, shuffle=False, seed=0).epoch(0)
        own = kept[[4, 1]]
        np.testing.assert_array_equal(labels.numpy(), np.swapaxes(own, 0, 1) if one.task.per_step else own)
        assert one.task.n_labels(labels) == {"labels": 2, "targets": 4}.get(form, int((STEP_LABELS[[4, 1]] >= 0).sum()))


def test_samples_of_different_length_have_no_label_after_their_end() -> None:
    rows = [np.arange(k + 1) % 2 for k in range(N)]
    labels = make(step_labels=rows).labels
    assert labels[2].tolist() == [0, 1, 0, *[-1] * 7]
    values = make(step_targets=[row[:, None] + 0.5 for row in rows]).labels
    assert values[1, :2, 0].tolist() == [0.5, 1.5]
    assert np.isnan(values[1, 2:]).all()


def moved(augment: Augment, **labels: Any) -> tuple[np.ndarray, np.ndarray]:
    """For each step and sample, the number of the step that its spike came from (-1: no spike), and its label."""
    numbers = np.tile(np.arange(T), (N, 1))
    of_steps = EventSet.from_events(
        [(np.arange(T) * 1000.0, np.arange(T)) for _ in range(N)],
        step_labels=numbers,
        n_steps=T,
        dt_us=1000.0,
        n_neurons=T,
    )
    chosen, sources, found = np.arange(N), [], []
    for epoch in range(20):
        (spikes, batch_labels), *_ = Stream(of_steps, chosen, N, shuffle=False, seed=3, augment=augment).epoch(epoch)
        dense = spikes.to_dense().numpy()
        sources.append(np.where(dense.any(-1), dense.argmax(-1), -1))
        found.append(batch_labels.numpy())
        assert np.array_equal(batch_labels.numpy(), of_steps.batch_labels(chosen, (3, epoch), augment))
    return np.stack(sources), np.stack(found)


def test_labels_move_with_a_shift_in_time() -> None:
    sources, labels = moved(Augment(time_shift=4))
    assert len({int(x) for x in labels[:, 0, 0]}) > 3
    np.testing.assert_array_equal(labels, sources)  # a step outside the window has neither spike nor label


def test_labels_move_with_a_stretch_of_time() -> None:
    sources, labels = moved(Augment(time_stretch=0.3))
    both = (sources >= 0) & (labels >= 0)
    assert both.mean() > 0.6
    assert abs(sources - labels)[both].max() <= 1  # a spike lies anywhere in its step, the label at its middle
    assert (labels < 0).any()


def test_a_section_of_another_sample_brings_its_labels() -> None:
    numbers = np.repeat(np.arange(N)[:, None], T, axis=1)
    event_set = EventSet.from_events(
        [(np.arange(T) * 1000.0, np.full(T, s)) for s in range(N)],
        step_labels=numbers,
        n_steps=T,
        dt_us=1000.0,
        n_neurons=N,
    )
    (spikes, labels), *_ = Stream(
        event_set, None, N, shuffle=False, seed=1, augment=Augment(mix=1.0, time_shift=2)
    ).epoch(0)
    dense = spikes.to_dense().numpy()
    fired = dense.any(-1)
    assert (labels.numpy() != np.arange(N))[fired].any()
    np.testing.assert_array_equal(labels.numpy()[fired], dense.argmax(-1)[fired])


def test_changes_that_labels_cannot_follow_are_refused() -> None:
    for form, name in (("step_labels", "blend"), ("targets", "blend"), ("step_targets", "blend"), ("targets", "mix")):
        event_set = make(**{form: LABELS[form][0]})
        with pytest.raises(
            ConfigError, match=f"augment: {name} combines .* the task of this data is: {event_set.task}"
        ):
            Stream(event_set, None, 2, shuffle=True, seed=0, augment=Augment(**{name: 0.5}))


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ({}, "has no labels; give one of labels"),
        ({"labels": [0] * N, "targets": [0.0] * N}, "has labels and targets; give one of"),
        (
            {"step_labels": np.zeros((N, 9), int)},
            r"step_labels has the shape \[6, 9\]; 6 samples of 10 steps need \[6, 10\]",
        ),
        ({"step_labels": np.full((N, T), -2)}, "step_labels runs from -2 to 0; allowed: numbers from 0, and -1"),
        ({"step_labels": np.full((N, T), 0.5)}, "numbers that are not whole"),
        ({"step_labels": np.zeros((N, T, 4))}, r"for one-hot labels a, np.where\(a.any\(-1\), a.argmax\(-1\), -1\)"),
        ({"step_labels": [np.zeros(11)] * N}, r"step_labels\[0\] has 11 steps, a sample 10; cut it, or raise n_steps"),
        ({"targets": np.zeros((4, 2))}, r"targets is float64\[4, 2\]; give numbers \[6, K\]"),
        ({"targets": [math.nan] * N}, "targets holds values that are not finite"),
        ({"targets": np.zeros((N, 0))}, "give at least one value"),
        ({"step_targets": np.full((N, T), np.inf)}, "step_targets holds values that are not finite"),
        ({"step_targets": np.zeros((N, 3, 2))}, r"6 samples of 10 steps need numbers \[6, 10, K\]"),
    ],
)
def test_labels_that_do_not_fit_are_errors(labels: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        make(**labels)


# ---- files -----------------------------------------------------------------------------------------------------------

FILES: dict[str, Any] = {
    "step_label": STEP_LABELS,
    "target": np.arange(12.0).reshape(N, 2),
    "step_target": STEP_TARGETS,
}


def table(name: str, labels: Any) -> dict[str, Any]:
    pairs = events()
    return {
        "t_us": np.concatenate([t for t, _ in pairs]),
        "unit": np.concatenate([unit for _, unit in pairs]),
        "sample": np.repeat(np.arange(N), [t.size for t, _ in pairs]),
        name: labels,
    }


def save(path: Path, arrays: dict[str, Any]) -> Path:
    if path.suffix == ".npz":
        np.savez_compressed(path, **arrays)
    else:
        import h5py

        with h5py.File(path, "w") as file:
            for name, array in arrays.items():
                file[name] = array
    return path


@pytest.mark.parametrize("ending", ["npz", "h5"])
@pytest.mark.parametrize("name", FILES)
def test_files_hold_labels_of_steps_and_values(tmp_path: Path, name: str, ending: str) -> None:
    path = save(tmp_path / f"a.{ending}", table(name, np.asfortranarray(FILES[name])))
    recording = read(path)
    found = _part_of(recording, "train", Options(n_steps=T, dt_ms=1.0), {})
    form = {"step_label": "step_labels", "target": "targets", "step_target": "step_targets"}[name]
    assert found.task == make(**{form: FILES[name]}).task
    np.testing.assert_array_equal(found.labels, make(**{form: FILES[name]}).labels)
    both = join({"train": recording, "test": read(path)})
    np.testing.assert_array_equal(both.labels[N:], recording.labels)


def test_files_whose_labels_do_not_fit_are_errors(tmp_path: Path) -> None:
    path = save(tmp_path / "a.npz", table("step_label", STEP_LABELS))
    for options, message in (
        (Options(n_steps=7, dt_ms=1.0), "a class per step for 10 steps, but data.n_steps is 7; set data.n_steps=10"),
        (Options(n_steps=T), "the width of a step must be given; set data.dt_ms"),
    ):
        with pytest.raises(DataError, match=message):
            _part_of(read(path), "train", options, {})
    with pytest.raises(DataError, match="has label and target; keep one"):
        read(save(tmp_path / "b.npz", {**table("label", np.zeros(N, int)), "target": np.zeros(N)}))
    with pytest.raises(
        DataError, match=r"step_target is float64\[6, 10, 1, 1\]; give an array of numbers with at most 3 axes"
    ):
        read(save(tmp_path / "c.npz", table("step_target", np.zeros((N, T, 1, 1)))))
    with pytest.raises(DataError, match=r"sample\[\d+\] is 5; step_label has 5 samples"):
        read(save(tmp_path / "d.npz", table("step_label", STEP_LABELS[:5])))
    other = save(tmp_path / "e.npz", table("target", np.zeros(N)))
    with pytest.raises(DataError, match="parts have different labels: .* has a class per step"):
        join({"train": read(path), "test": read(other)})


# ---- splits and sampling ---------------------------------------------------------------------------------------------


def test_samples_without_a_class_are_split_at_random() -> None:
    for form in ("step_labels", "targets", "step_targets"):
        rest, held_out = split_validation(make(**{form: LABELS[form][0]}), "random:0.34")
        assert sorted([*rest, *held_out]) == list(range(N))
        assert len(held_out) == 2


def test_balanced_sampling_draws_classes_equally_often() -> None:
    n = 90
    labels = np.where(np.arange(n) < 80, 0, np.where(np.arange(n) < 88, 1, 2))
    event_set = EventSet.from_events([(np.array([0.0]), np.array([0]))] * n, labels, n_steps=T, dt_us=1000.0)
    stream = Stream(event_set, None, 16, shuffle=True, seed=5, balance=True)
    seen = set()
    for epoch in range(8):
        order = stream.order(epoch)
        assert np.bincount(labels[order]).tolist() == [30, 30, 30]
        assert len(set(order[labels[order] == 0])) == 30  # none twice as long as there are others
        seen |= set(order.tolist())
    assert len(seen) > 80
    assert not np.array_equal(stream.order(0), stream.order(1))
    ranks = [Stream(event_set, None, 16, shuffle=True, seed=5, balance=True, rank=r, n_ranks=2) for r in range(2)]
    whole = np.concatenate([ranks[r].batch_samples(1, 0) for r in range(2)])
    np.testing.assert_array_equal(whole, stream.batch_samples(1, 0))
    with pytest.raises(ConfigError, match="balance is True, without shuffle"):
        Stream(event_set, None, 16, shuffle=False, seed=5, balance=True)
    with pytest.raises(ConfigError, match="balance is True, samples with a class per step"):
        Stream(make(step_labels=STEP_LABELS), None, 2, shuffle=True, seed=5, balance=True)
