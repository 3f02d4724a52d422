from __future__ import annotations

import pytest

from sparsesnn.datasets.sensor import Sensor
from sparsesnn.errors import DataError


def test_a_description_names_the_sensor():
    sensor = Sensor(34, 20, 2)
    assert sensor.n_neurons == 1360
    assert Sensor.described({"sensor": sensor.entry()}, 1360) == sensor
    assert Sensor.described({"name": "shd"}, 700) is None


@pytest.mark.parametrize("entry", [[34, 20], [34, 20, 3], [34.0, 20, 2], [-34, -20, 2], "34x20", 1360, [True, 1360, 1]])
def test_an_entry_that_does_not_fit_is_an_error(entry):
    with pytest.raises(DataError, match=r"sensor is .* for 1,360 neurons; give \[width, height, n_polarities\]"):
        Sensor.described({"sensor": entry}, 1360)
