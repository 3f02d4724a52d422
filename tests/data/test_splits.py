from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparsesnn.datasets import EventSet, overrates, split_validation
from sparsesnn.errors import ConfigError


def make(labels, speakers=None) -> EventSet:
    labels = np.asarray(labels, np.int64)
    return EventSet(
        ids=np.empty(0, np.uint16),
        n_spikes=np.zeros((labels.size, 1), np.uint8),
        labels=labels,
        n_neurons=1,
        n_classes=int(labels.max(initial=0)) + 1,
        groups={} if speakers is None else {"speakers": np.asarray(speakers, np.int64)},
    )


@given(
    labels=st.lists(st.integers(0, 4), min_size=10, max_size=60).filter(lambda v: max(map(v.count, v)) > 1),
    share=st.floats(0.01, 0.99),
    seed=st.integers(0, 9),
)
@pytest.mark.filterwarnings("ignore:the part of valid .* has no samples")
def test_random_parts_are_stratified_and_cover_all_samples_once(labels, share, seed):
    event_set = make(labels)
    train, valid = split_validation(event_set, f"random:{share!r}", seed=seed)
    assert sorted([*train, *valid]) == list(range(len(labels)))
    assert (np.diff(train) > 0).all()
    assert (np.diff(valid) > 0).all()
    for label in set(labels):
        n, held = labels.count(label), int((event_set.labels[valid] == label).sum())
        assert held <= n - 1
        assert held == min(max(1, round(share * n)), n - 1)


def test_random_follows_the_seed():
    event_set = make([0, 1] * 40)
    one, same, other = (split_validation(event_set, "random:0.25", seed=seed)[1] for seed in (1, 1, 2))
    np.testing.assert_array_equal(one, same)
    assert set(one) != set(other)


def test_groups_are_held_out_whole():
    event_set = make([0, 1, 0, 1, 0], speakers=[4, 5, 6, 4, 2])
    with pytest.warns(UserWarning, match="^training has no samples of class 1, which are never learned"):
        train, valid = split_validation(event_set, "speakers:4, 5")
    assert train.tolist() == [2, 4]
    assert valid.tolist() == [0, 1, 3]


def test_none_holds_nothing_out():
    train, valid = split_validation(make([0, 1]), "none")
    assert train.tolist() == [0, 1]
    assert valid.tolist() == []
    assert valid.dtype == np.int64


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("random", "has no share.*between 0 and 1"),
        ("random:0", "share in 'random:0' is not between 0 and 1"),
        ("random:1", "not between 0 and 1"),
        ("random:nan", "not between 0 and 1"),
        ("random:many", "has no share"),
        ("rooms:1", r"is not a group of this data set \(groups: speakers\)"),
        ("none:1", "is not a group"),
        ("", "is not a group"),
        ("speakers:", "does not list numbers"),
        ("speakers:four", "does not list numbers"),
        ("speakers:4,9,7", "names speakers 7, 9, which have no samples; members: 4, 5"),
        ("speakers:4,5", "holds out 2 of 2 samples; both parts need at least one"),
    ],
)
def test_other_forms_are_errors(how, message):
    with pytest.raises(ConfigError, match=message):
        split_validation(make([0, 1], speakers=[4, 5]), how)


def test_classes_of_one_sample_cannot_be_split():
    with pytest.raises(ConfigError, match="holds out 0 of 2"):
        split_validation(make([0, 1]), "random:0.5")


@pytest.mark.parametrize("how", ["random:0.3", "speakers:2"])
def test_only_the_samples_asked_for_are_divided(how):
    event_set = make(np.arange(40) % 4, np.arange(40) % 3)
    among, rest = split_validation(event_set, "speakers:1")
    train, valid = split_validation(event_set, how, among=among)
    assert sorted([*train, *valid]) == among.tolist()
    assert train.size
    assert valid.size
    with pytest.raises(ConfigError, match="test: 'speakers:1' names speakers 1, which have no samples"):
        split_validation(event_set, "speakers:1", among=among, option="test")
    assert set(event_set.groups["speakers"][rest].tolist()) == {1}


def test_samples_that_a_file_lists(tmp_path):
    event_set = make(np.arange(9) % 2)
    path = tmp_path / "val.txt"
    path.write_text("# recordings of Monday\n7 2\n\n2 0 # the first one\n")
    train, valid = split_validation(event_set, f"file:{path}")
    assert (train.tolist(), valid.tolist()) == ([1, 3, 4, 5, 6, 8], [0, 2, 7])
    with pytest.warns(UserWarning, match="^the part of valid = 'file:.*val.txt' has no samples of class 1"):
        rest, held_out = split_validation(event_set, f"file:{path}", among=np.array([1, 2, 3, 8]))
    assert (rest.tolist(), held_out.tolist()) == ([1, 3, 8], [2])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("3 9", "lists '9'; allowed: .*0 to 8"),
        ("-1", "lists '-1'"),
        ("one", "lists 'one'"),
        ("# 3", "holds out 0 of 9"),
    ],
)
def test_lists_of_samples_that_are_not_there(text, message, tmp_path):
    path = tmp_path / "val.txt"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message):
        split_validation(make(np.arange(9) % 2), f"file:{path}")
    with pytest.raises(ConfigError, match=r"'file:.*none' cannot be read .*give a text file"):
        split_validation(make(np.arange(9) % 2), f"file:{tmp_path / 'none'}")
    with pytest.raises(ConfigError, match="/dev/zero: is a device"):
        split_validation(make(np.arange(9) % 2), "file:/dev/zero")  # it never ends


@pytest.mark.parametrize(
    ("labels", "speakers", "message"),
    [
        ([0, 1, 2, 0], [1, 0, 0, 0], "^training has no samples of classes dog, owl, which are never learned"),
        (
            [0, 1, 2, 0],
            [1, 1, 1, 0],
            "^the part of test = 'speakers:0' has no samples of classes dog, owl, so that its accuracy",
        ),
        ([0, 1, 1, 1], [0, 0, 1, 1], "^training has no samples of class cat, .* Check the labels"),
    ],
)
def test_classes_that_one_of_the_parts_lacks_are_named(labels, speakers, message):
    named = dataclasses.replace(make(labels, speakers), n_classes=3, description={"classes": ["cat", "dog", "owl"]})
    with pytest.warns(UserWarning, match=message):
        split_validation(named, "speakers:0", option="test")


def test_classes_that_no_part_has_are_no_matter():
    named = dataclasses.replace(make([0, 1, 0, 1], [0, 0, 1, 1]), n_classes=3)
    rest, held_out = split_validation(named, "speakers:0")
    assert (rest.tolist(), held_out.tolist()) == ([2, 3], [0, 1])


def test_random_parts_of_data_with_groups_are_questioned():
    assert "speakers: if new speakers matter, hold out some of them ('speakers:4')" in overrates(
        make([0, 1], speakers=[4, 5]), "random:0.1"
    )
    assert not overrates(make([0, 1], speakers=[4, 5]), "speakers:4")
    assert not overrates(make([0, 1], speakers=[4, 4]), "random:0.1")
    assert not overrates(make([0, 1]), "random:0.1")
