"""Numbers in sentences: one of a thing is not several."""

from __future__ import annotations

import pytest

from sparsesnn.wording import count


@pytest.mark.parametrize(
    ("n", "noun", "text"),
    [
        (0, "event", "0 events"),
        (1, "thread", "1 thread"),
        (2, "replica", "2 replicas"),
        (1200, "sample", "1,200 samples"),
        (1, "class", "1 class"),
        (10, "class", "10 classes"),
        (3, "epoch", "3 epochs"),
        (2, "batch", "2 batches"),
    ],
)
def test_count(n: int, noun: str, text: str) -> None:
    assert count(n, noun) == text
