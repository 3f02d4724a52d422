"""The validation part, taken from the training part because test data must never select a model."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from sparsesnn.datasets import hashing
from sparsesnn.datasets.classes import listed
from sparsesnn.datasets.event_set import EventSet
from sparsesnn.errors import ConfigError
from sparsesnn.regular_file import MAX_TEXT_BYTES, check_regular
from sparsesnn.task import NO_LABEL

Indices = npt.NDArray[np.int64]

_FORMS = (
    "'none', 'random:0.1' (share of each class), 'GROUP:4,5' (hold out these members of a group) or 'file:PATH' (hold out "
    "the sample numbers listed in the file)"
)


def split_validation(
    event_set: EventSet, how: str, *, seed: int = 0, among: Indices | None = None, option: str = "valid"
) -> tuple[Indices, Indices]:
    """The numbers of the training and of the validation samples, each ascending, each sample in exactly one.

    Args:
        event_set: the training part.
        how: "none": nothing is held out. "file:PATH": the samples with the numbers, from 0, in a text file, separated by
            whitespace, with comments after #. "random:SHARE": that share of each class, 0 < SHARE < 1, chosen by `seed`; at
            least one sample of each class with two or more; if samples are windows of recordings, that share of the recordings. "NAME:4,5": the samples whose group NAME (such as "speakers") is
            one of these numbers or names. Held-out speakers predict the accuracy on new speakers; random samples overrate it.
        seed: of the random choice.
        among: divide only these samples; None: all.
        option: the option that `how` comes from, for messages.

    Warns if one part lacks a class of the other.

    Raises:
        ConfigError: another form, an unknown group, a member without samples, one of the two parts would be empty, or windows of
            one recording would be in both.
    """
    rest, held_out = divide(event_set, how, seed=seed, among=among, option=option)
    if held_out.size and not event_set.task.has_values:
        parts = {"training": event_set.labels[rest], f"the part of {option} = {how!r}": event_set.labels[held_out]}
        warn_of_missing_classes(parts, event_set.classes, stacklevel=3)
    return rest, held_out


def divide(
    event_set: EventSet, how: str, *, seed: int = 0, among: Indices | None = None, option: str = "valid"
) -> tuple[Indices, Indices]:
    """`split_validation` without its warning, for callers that check the classes of all parts together."""
    samples = np.arange(len(event_set), dtype=np.int64) if among is None else among
    kind, _, rest = how.partition(":")
    together = event_set.description.get("together")
    if kind == "none" and not rest:
        return samples, samples[:0]
    if kind == "file":
        held_out = np.isin(samples, _listed(Path(rest), len(event_set), how, option))
    elif kind == "random":
        classes = event_set.labels if event_set.task.is_plain else np.zeros(len(event_set), np.int64)
        held_out = (
            _random_members(event_set, classes, samples, together, how, rest, seed, option)
            if together
            else _random(classes[samples], how, rest, seed, option)
        )
    else:
        held_out = _members(event_set, samples, how, kind, rest, option)
    if held_out.all() or not held_out.any():
        raise ConfigError(
            f"{option}: {how!r} holds out {held_out.sum()} of {held_out.size} samples; both parts need at least one: hold out another share, or 'none'"
        )
    if together:
        group = event_set.groups[together][samples]
        if divided := np.intersect1d(group[held_out], group[~held_out]).tolist():
            raise ConfigError(
                f"{option}: {how!r} divides {together} {_name(event_set, together, divided[0])} between two parts, but its windows resemble "
                f"one another; hold out whole recordings, such as '{together}:{_name(event_set, together, divided[0])}' or 'random:0.2'"
            )
    return samples[~held_out], samples[held_out]


def warn_of_missing_classes(parts: Mapping[str, Indices], names: Sequence[str], *, stacklevel: int = 2) -> None:
    """Warns about classes that are in some parts but not in others, by name; classes missing everywhere do not matter.

    Args:
        parts: the labels of the samples by part. The first is the training part.
        names: of the classes; empty if they are numbers.
    """
    classes = {part: set(np.unique(labels[labels != NO_LABEL]).tolist()) for part, labels in parts.items()}
    every, (training, *_) = set().union(*classes.values()), classes
    lines = []
    for part, found in classes.items():
        if missing := sorted(every - found):
            shown = listed([names[k] if k < len(names) else str(k) for k in missing])
            what = "which are never learned" if part == training else "so that its accuracy does not cover them"
            lines.append(f"{part} has no samples of {'class' if len(missing) == 1 else 'classes'} {shown}, {what}")
    if lines:
        warnings.warn(
            f"{'; '.join(lines)}. Check the labels, or split the data differently",
            UserWarning,
            stacklevel=stacklevel + 1,
        )


def overrates(event_set: EventSet, how: str) -> str:
    """A note if a better split is possible; else ""."""
    together = event_set.description.get("together")
    groups = [name for name, members in event_set.groups.items() if np.unique(members).size > 1 and name != together]
    if not how.startswith("random:") or not groups:
        return ""
    first = int(event_set.groups[groups[0]].min())
    names = event_set.description.get("group_names", {}).get(groups[0], [])
    return (
        f"{how!r} holds out samples at random, but the data has the groups {', '.join(groups)}: if new {groups[0]} matter, hold out "
        f"some of them ('{groups[0]}:{names[first] if names else first}'), or the accuracy is overrated"
    )


def _random_members(
    event_set: EventSet, classes: Indices, samples: Indices, name: str, how: str, rest: str, seed: int, option: str
) -> npt.NDArray[np.bool_]:
    """A share of the members of a group, such as recordings: of those whose samples have the same classes, if these are several."""
    members, of = np.unique(event_set.groups[name][samples], return_inverse=True)
    if members.size < 2:
        raise ConfigError(
            f"{option}: {how!r} holds out whole recordings, but there is one, {_name(event_set, name, int(members[0]))}; give more recordings, or "
            f"{'none' if option == 'valid' else 'a separate test part'}"
        )
    kinds = [tuple(np.unique(classes[samples][of == k]).tolist()) for k in range(members.size)]
    number = {kind: k for k, kind in enumerate(sorted(set(kinds)))}
    held_out = _random(np.array([number[kind] for kind in kinds]), how, rest, seed, option)
    if not held_out.any():  # no two recordings have the same classes
        held_out = _random(np.zeros(members.size, np.int64), how, rest, seed, option)
    result: npt.NDArray[np.bool_] = held_out[of]
    return result


def _name(event_set: EventSet, group: str, member: int) -> str:
    names = event_set.group_names.get(group, [])
    return names[member] if member < len(names) else str(member)


def _random(labels: npt.NDArray[np.int64], how: str, rest: str, seed: int, option: str) -> npt.NDArray[np.bool_]:
    try:
        share = float(rest)
    except ValueError:
        raise ConfigError(f"{option}: {how!r} has no share; allowed: {_FORMS}, with a share between 0 and 1") from None
    if not 0 < share < 1:
        raise ConfigError(f"{option}: the share in {how!r} is not between 0 and 1; give one such as random:0.1")
    held_out = np.zeros(labels.size, bool)
    for label in np.unique(labels):
        members = np.flatnonzero(labels == label)
        n_held = min(max(1, round(share * members.size)), members.size - 1)
        order = hashing.permutation(members.size, hashing.keys(seed, int(label)))
        held_out[members[order[:n_held]]] = True
    return held_out


def _listed(path: Path, n_samples: int, how: str, option: str) -> Indices:
    check_regular(path, ConfigError, MAX_TEXT_BYTES)
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise ConfigError(f"{option}: {how!r} cannot be read ({reason}); give a text file of sample numbers") from None
    words = [word for line in lines for word in line.partition("#")[0].split()]
    if wrong := [word for word in words if not word.isdecimal() or len(word) > 18 or int(word) >= n_samples]:
        raise ConfigError(
            f"{option}: {how!r} lists {wrong[0]!r}; allowed: sample numbers, 0 to {n_samples - 1}, separated by whitespace"
        )
    return np.array([int(word) for word in words], np.int64)


def _members(
    event_set: EventSet, samples: Indices, how: str, name: str, rest: str, option: str
) -> npt.NDArray[np.bool_]:
    if name not in event_set.groups:
        known = ", ".join(event_set.groups) or "none"
        raise ConfigError(
            f"{option}: {how!r} is not a group of this data set (groups: {known}); allowed: {_FORMS}; in a configuration also 'own' and 'auto'"
        )
    group = event_set.groups[name][samples]
    names: list[str] = event_set.description.get("group_names", {}).get(name, [])
    try:
        members = [names.index(part) if part in names else int(part) for part in rest.split(",")]
    except ValueError:
        raise ConfigError(
            f"{option}: {how!r} does not list {'names' if names else 'numbers'} after the colon; allowed: "
            + (f"{name}:{','.join(names)}" if names else _FORMS)
        ) from None
    absent = sorted(set(members) - set(group.tolist()))
    if absent:
        raise ConfigError(
            f"{option}: {how!r} names {name} {', '.join(map(str, absent))}, which have no samples; "
            f"members: {', '.join(map(str, np.unique(group)))}"
        )
    return np.isin(group, members)
