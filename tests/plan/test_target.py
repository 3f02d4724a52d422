from __future__ import annotations

import math
from dataclasses import replace

import pytest

from sparsesnn.engines import Training, make_engine
from sparsesnn.errors import ConfigError
from sparsesnn.layers import LI, LIF, Input
from sparsesnn.network import Network
from sparsesnn.partition.planner import make_plan
from sparsesnn.partition.target import CPU, IPU_BOW, IPU_MK2, Exchange, Links, Target, parse_target


@pytest.mark.parametrize(
    ("text", "kind", "devices", "tiles"),
    [
        ("ipu-mk2", "ipu", 1, 1472),
        ("ipu-mk2:4", "ipu", 4, 1472),
        ("ipu-bow:16", "ipu", 16, 1472),
        ("ipu-mk2:2x64", "ipu", 2, 64),
        ("cpu", "cpu", 1, 1),
        ("cpu:8", "cpu", 1, 8),
        ("mpi:64x16", "cpu", 64, 16),
        ("mpi:3", "cpu", 3, 1),
    ],
)
def test_names(text: str, kind: str, devices: int, tiles: int) -> None:
    target = parse_target(text)
    assert (target.name, target.kind, target.devices, target.tiles) == (text, kind, devices, tiles)
    assert target.n_tiles == devices * tiles
    assert target.stride == (1472 if kind == "ipu" else tiles)
    assert target.all_tiles == devices * target.stride
    numbers = [target.tile_number(k) for k in range(target.n_tiles)]
    assert numbers[:tiles] == list(range(tiles))
    assert numbers[-tiles:] == [(devices - 1) * target.stride + k for k in range(tiles)]
    assert [target.device_of(tile) for tile in numbers] == [k // tiles for k in range(target.n_tiles)]
    assert Target.from_dict(target.to_dict()) == target


def test_an_ipu_is_as_published() -> None:
    assert IPU_MK2.n_tiles * IPU_MK2.bytes_per_tile == 897 * 2**20
    assert IPU_MK2.tiles * IPU_MK2.workers_per_tile == 8832
    # 8 TB/s over all tiles; links: 120 B a cycle and direction
    assert IPU_MK2.tiles * IPU_MK2.exchange.bytes_per_cycle * IPU_MK2.clock_hz == pytest.approx(8e12, rel=0.03)
    assert IPU_MK2.links.bytes_per_s / IPU_MK2.clock_hz == pytest.approx(120, rel=0.01)
    assert IPU_BOW.clock_hz / IPU_MK2.clock_hz == pytest.approx(1.4, rel=0.01)


@pytest.mark.parametrize(
    "text", ["", "gpu", "ipu-mk2:", "ipu-mk2:0", "ipu-mk2:-1", "ipu-mk2:2x", "cpu:1x2x3", "mpi:4 x2"]
)
def test_other_names_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"target .*allowed: ipu-mk2, ipu-bow, cpu or mpi"):
        parse_target(text)


def test_sizes_of_the_wrong_machine_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"'ipu-mk2:1x1473': tiles is 1473 and tiles_per_device 1472"):
        parse_target("ipu-mk2:1x1473")
    with pytest.raises(ConfigError, match=r"cpu takes only cores, cpu:4; for ranks write mpi:2x4"):
        parse_target("cpu:2x4")
    with pytest.raises(ConfigError, match=r"give ranks and cores a rank"):
        parse_target("mpi")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kind": "gpu"}, "kind is 'gpu'; allowed: ipu, cpu"),
        ({"tiles": 0}, "tiles is 0; allowed: whole numbers from 1"),
        ({"devices": True}, "devices is True"),
        ({"tiles": 4, "tiles_per_device": 3}, "tiles is 4 and tiles_per_device 3; a plan uses 1 to all"),
        ({"tiles_per_device": 2.0}, r"tiles_per_device 2\.0"),
        ({"clock_hz": math.inf}, "clock_hz is inf; give a number above 0"),
        ({"exchange": Exchange(bytes_per_cycle=0)}, "bytes_per_cycle is 0"),
        ({"links": Links(bytes_per_s=-1)}, "bytes_per_s is -1"),
    ],
)
def test_values_of_no_meaning_are_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        replace(CPU, **change)  # type: ignore[arg-type]


def test_from_dict_checks_keys() -> None:
    data = IPU_MK2.to_dict()
    with pytest.raises(ConfigError, match="target: is .*allowed keys: bytes_per_device, bytes_per_tile"):
        Target.from_dict({**data, "color": "blue"})
    with pytest.raises(ConfigError, match="target: .*missing 1 required positional argument: 'tiles'"):
        Target.from_dict({k: v for k, v in data.items() if k != "tiles"})
    with pytest.raises(ConfigError, match="links: is 7"):
        Target.from_dict({**data, "links": 7})


def test_more_devices_keep_their_size() -> None:
    assert parse_target("ipu-mk2").with_devices(4) == parse_target("ipu-mk2:4")
    assert parse_target("ipu-bow:2x64").with_devices(8) == parse_target("ipu-bow:8x64")
    assert parse_target("mpi:2x4").with_devices(3) == parse_target("mpi:3x4")


@pytest.mark.parametrize(("devices", "near"), [(3, "2 or 4"), (5, "4 or 8"), (63, "32 or 64"), (65, "64 or 128")])
def test_ipus_come_in_powers_of_two(devices: int, near: str) -> None:
    with pytest.raises(ConfigError, match=rf"target 'ipu-mk2:{devices}x64': {devices} IPUs; .*give {near}$"):
        parse_target(f"ipu-mk2:{devices}x64")
    network = Network.chain(Input(5), LIF(4), LI(3), delay=1)
    with pytest.raises(
        ConfigError, match=rf"{devices} replicas of 2 IPUs make {2 * devices} IPUs; .*give {near} replicas"
    ):
        make_plan(network, 2, 3, parse_target("ipu-bow:2x8"), replicas=devices)
    with pytest.raises(ConfigError, match=rf"parallel\.replicas: is {devices} with backend 'ipu-model'; .*give {near}"):
        make_engine("ipu-model", network, Training(3, "max", replicas=devices))
    assert parse_target(f"mpi:{devices}").devices == devices
