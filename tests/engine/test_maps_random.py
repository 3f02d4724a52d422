"""Random networks of convolutions and pools; `./dev bench maps-random` runs hundreds."""

from __future__ import annotations

import pytest

from maps_random import random_case, run_case


@pytest.mark.parametrize("seed", range(1, 7))
def test_a_random_network_is_that_of_pytorch_and_the_reference(seed: int) -> None:
    finding = run_case(random_case(seed))
    assert finding.verdict != "fault", f"{finding.line()}\n{random_case(seed)}"
