from __future__ import annotations

import json
import os
import warnings
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

from sparsesnn import datasets
from sparsesnn.cli import main
from sparsesnn.datasets import EventSet, cache
from sparsesnn.train import plots

pytestmark = pytest.mark.filterwarnings("always:nmnist:UserWarning")

PNG = b"\x89PNG\r\n\x1a\n"


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("SPARSESNN_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)


def write_nmnist(folder: Path, n_test: int = 1) -> str:
    """A tiny N-MNIST: three training recordings, `n_test` test recordings."""
    rng = np.random.default_rng(0)
    parts = [("Train", 0, 1), ("Train", 0, 2), ("Train", 7, 3), *(("Test", 7, k) for k in range(n_test))]
    for part, label, number in parts:
        path = folder / "NMNIST" / part / str(label) / f"{number:05}.bin"
        path.parent.mkdir(parents=True, exist_ok=True)
        events = np.stack([*rng.integers(0, 34, (2, 60)), rng.integers(0, 4, 60), *rng.integers(0, 255, (2, 60))], 1)
        path.write_bytes(events.astype(np.uint8).tobytes())
    return str(folder)


def run(capsys, *arguments: str) -> tuple[int, str, str]:
    code = main(["data", *arguments])
    said = capsys.readouterr()
    return code, said.out, said.err


def test_build_verify_info_clear(tmp_path, capsys):
    folder = write_nmnist(tmp_path / "files")
    code, out, err = run(capsys, "build", "nmnist", "--data", folder, "--set", "data.pool=2")
    assert code == 0
    assert "train: 3 samples, 63 steps, 578 neurons, 10 classes" in out
    assert "test: 1 sample," in out
    assert out.count("  made, ") == 2
    assert "180 events: " in out
    assert err.count("sparsesnn: warning: nmnist: ") == 2
    assert "3 of the 60,000 recordings of the train part" in err

    _, out, _ = run(capsys, "build", "nmnist", "--data", folder, "--set", "data.pool=2")
    assert out.count("  cached already, ") == 2
    _, out, _ = run(capsys, "build", "nmnist", "--data", folder, "--split", "test", "--workers", "2")
    assert "test: 1 sample, 63 steps, 2,312 neurons" in out
    assert "train: " not in out

    code, out, _ = run(capsys, "info")
    assert code == 0
    assert "3 cached files" in out
    assert "3 samples, 63 steps, 578 neurons" in out
    assert "pool 2, saccade 0, sensor [17, 17, 2], stabilise false" in out
    _, out, _ = run(capsys, "info", "--json")
    table = json.loads(out)
    assert table["folder"] == str(tmp_path / "cache")
    assert [entry["split"] for entry in table["files"]] == ["test", "test", "train"]
    assert {entry["n_spikes"] + entry["n_lost"] + entry["n_merged"] for entry in table["files"]} == {60, 180}

    code, out, _ = run(capsys, "verify")
    assert (code, out.count("whole    nmnist-")) == (0, 3)
    (train,) = (tmp_path / "cache").glob("nmnist-train-*")
    content = bytearray(train.read_bytes())
    content[-1] ^= 4
    train.write_bytes(content)
    code, out, err = run(capsys, "verify", "nmnist")
    assert (code, out.count("whole    "), out.count("damaged  ")) == (1, 2, 1)
    assert f"damaged  {train.name}: " in out
    assert "content that does not match its checksum" in out
    assert "1 of 3 cached files are damaged; remove them" in err
    train.write_bytes(content[:100])
    _, out, _ = run(capsys, "info")
    assert "cannot be read: " in out
    (tmp_path / "cache" / "shd-train-0123456789abcdef.safetensors").write_bytes(
        safetensors.numpy.save({"ids": np.zeros(3, np.uint16)}, {"format": str(cache.FORMAT_VERSION)})
    )
    _, out, _ = run(capsys, "info", "shd")
    assert "cannot be read: " in out
    assert "holds no event set (KeyError: 'n_spikes')" in out
    assert run(capsys, "clear", "shd")[1].startswith("removed  shd-train-0123456789abcdef")

    assert run(capsys, "clear", "shd")[1].startswith("0 files, 0.0 MB")
    code, out, _ = run(capsys, "clear", "nmnist")
    assert (code, out.count("removed  nmnist-")) == (0, 3)
    assert list((tmp_path / "cache").iterdir()) == []


@pytest.mark.filterwarnings("always:.*doing so now:UserWarning")
def test_warnings_of_the_cache_look_like_all_others(tmp_path, capsys):
    folder = write_nmnist(tmp_path / "files")
    arguments = ("build", "nmnist", "--data", folder, "--split", "train")
    assert run(capsys, *arguments)[0] == 0
    (kept,) = (tmp_path / "cache").glob("nmnist-train-*")
    kept.write_bytes(b"half")
    code, out, err = run(capsys, *arguments)
    assert (code, "  made, " in out) == (0, True)
    assert f"sparsesnn: warning: {kept}: the event cache has 4 bytes" in err
    assert all(line.startswith("sparsesnn: warning: ") for line in err.splitlines())


def test_the_parts_that_training_would_read(tmp_path, capsys):
    folder = write_nmnist(tmp_path / "files", n_test=0)
    code, out, err = run(capsys, "build", "nmnist", "--data", folder)
    assert code == 1
    assert "train: 3 samples" in out
    assert "Test is a folder" in err
    code, out, _ = run(capsys, "build", "nmnist", "--data", folder, "--set", "data.test=random:0.2")
    assert (code, "test: " in out) == (0, False)


def test_options_come_from_a_configuration(tmp_path, capsys):
    folder = write_nmnist(tmp_path / "files")
    (tmp_path / "run.toml").write_text('[data]\nname = "nmnist"\npool = 17\ncache_dir = "elsewhere"\n')
    code, out, _ = run(capsys, "build", "--config", "run.toml", "--data", folder, "--split", "train")
    assert (code, "8 neurons" in out) == (0, True)
    assert len(list((tmp_path / "elsewhere").iterdir())) == 1
    _, out, _ = run(capsys, "info", "--cache", "elsewhere")
    assert "1 cached file, " in out
    _, out, _ = run(capsys, "build", "--config", "run.toml", "--data", folder, "--split", "test", "--cache", "third")
    assert len(list((tmp_path / "third").iterdir())) == 1


def test_sets_that_are_not_cached(capsys):
    code, out, _ = run(capsys, "build", "synthetic", "--set", "data.n_samples=7", "--split", "test")
    assert code == 0
    assert "test: 7 samples" in out
    assert "not cached: made again each time" in out


@pytest.mark.parametrize("name", datasets.NAMES)
def test_info_says_what_a_data_set_is(capsys, name):
    code, out, _ = run(capsys, "info", name)
    assert code == 0
    assert "License: " in out
    assert "Cite: " in out
    assert f"Parts: {', '.join(datasets.split_names(name))}." in out
    for option in datasets.defaults(name):
        assert f"  data.{option} = " in out
    assert f"0 cached files, 0.0 MB, in {Path.cwd() / 'cache'}" in out


@pytest.mark.parametrize("name", ["nmnist", "dvsgesture"])
def test_cameras_say_their_unit_order(capsys, name):
    assert "id = x + W·(y + H·p)" in run(capsys, "info", name)[1]


# ---- pictures ----------------------------------------------------------------------------------------------------


def test_show_draws_a_sample(tmp_path, capsys):
    pytest.importorskip("matplotlib")
    folder = write_nmnist(tmp_path / "files")
    code, out, _ = run(capsys, "show", "nmnist", "--data", folder, "--sample", "2", "--out", "seven.png")
    assert (code, out) == (0, "nmnist, train sample 2: class 7, drawn to seven.png\n")
    assert (tmp_path / "seven.png").read_bytes().startswith(PNG)
    code, out, _ = run(capsys, "show", "synthetic", "--split", "test", "--set", "data.n_samples=3")
    assert (code, out) == (0, "synthetic, test sample 0: class 0, drawn to synthetic-test-0.png\n")
    assert (tmp_path / "synthetic-test-0.png").read_bytes().startswith(PNG)
    code, _, err = run(capsys, "show", "synthetic", "--sample", "3", "--set", "data.n_samples=3")
    assert code == 2
    assert "--sample: is 3; the part 'train' has 3 samples, 0 to 2" in err
    code, _, err = run(capsys, "show", "synthetic", "--out", "absent/a.png")
    assert code == 2
    assert "--out: absent/a.png cannot be written (No such file or directory)" in err


def test_show_animates_a_camera(tmp_path, capsys):
    image = pytest.importorskip("PIL.Image")
    pytest.importorskip("matplotlib")
    t = np.array([0.0, 10.0, 40.0, 89.0])
    arrays = {"x": [0, 4, 4, 1], "y": [3, 2, 2, 0], "p": [0, 1, 1, 0], "sample": [0] * 4, "label": [0]}
    np.savez(tmp_path / "mine.npz", t_ms=t, **arrays)
    window = [
        "--set",
        "data.dt_ms=10",
        "--set",
        "data.n_steps=9",
        "--set",
        "data.test=none",
        "--set",
        "data.valid=none",
    ]
    code, out, err = run(capsys, "show", str(tmp_path / "mine.npz"), *window)
    assert (code, err) == (0, "")
    assert [line.rpartition("drawn to ")[2] for line in out.splitlines()] == [
        "events-train-0.png",
        "events-train-0.gif, 4 times slower than real time",
    ]
    with image.open(tmp_path / "events-train-0.gif") as animation:
        shown = []
        for k in range(animation.n_frames):
            animation.seek(k)
            inked = np.argwhere(np.asarray(animation.convert("RGB"))[25::51, 25::51].sum(2) < 700)
            shown.append((animation.info["duration"], inked.tolist()))
        assert animation.size == (255, 204)
    # equal frames are one that lasts longer
    assert shown == [(40, [[3, 0]]), (40, [[2, 4]]), (80, []), (40, [[2, 4]]), (120, []), (40, [[0, 1]])]
    code, _, err = run(capsys, "show", "synthetic", "--out", "a.gif")
    assert code == 2
    assert "--out: is a.gif; only data from a camera can be animated, not synthetic; use .png" in err


@pytest.mark.parametrize("name", ["nmnist", "dvsgesture"])
def test_show_animates_recordings(name, tmp_path, capsys):
    image = pytest.importorskip("PIL.Image")
    folder = Path(os.environ.get("SPARSESNN_TEST_DATA", "")) / {"dvsgesture": "dvs_gesture"}.get(name, name)
    if not os.environ.get("SPARSESNN_TEST_DATA") or not folder.is_dir():
        pytest.skip("needs the recordings ($SPARSESNN_TEST_DATA)")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the copy is a part of the set
        code, out, _ = run(capsys, "show", name, "--data", str(folder), "--sample", "3", "--out", "a.gif")
    assert code == 0
    assert "drawn to a.gif" in out
    with image.open(tmp_path / "a.gif") as animation:
        assert 10 <= animation.n_frames <= 100
        assert 200 <= max(animation.size) <= 300


@pytest.mark.parametrize("duplicates", ["binary", "count:3"])
def test_a_frame_shows_every_spike_where_it_is(tmp_path, monkeypatch, duplicates):
    pytest.importorskip("matplotlib")
    events = ([0, 1, 1, 25], [2 + 5 * 3, 4 + 5 * 2, 4 + 5 * 2, 0 + 5 * (3 + 4)])  # 5 x 4 pixels, 2 polarities
    event_set = EventSet.from_events(
        [events], [0], n_neurons=40, n_steps=26, dt_us=1.0, duplicates=duplicates, n_classes=1,
        description={"sensor": [5, 4, 2], "classes": ["wave"]},
    )  # fmt: skip
    drawn = {}
    monkeypatch.setattr(plots, "save", lambda figure, path, title: drawn.update(figure=figure, title=title))
    plots.plot_sample(event_set, 0, tmp_path / "a.png", title="toy")
    assert drawn["title"] == "toy: class 0 (wave), 3 spikes in 26 steps"
    panels = drawn["figure"].axes
    assert len(panels) == 12
    ink = [1.0 - np.asarray(axes.images[0].get_array()) for axes in panels]
    assert ink[0].shape == (4, 5, 3)
    where = {k: np.argwhere(image.sum(2) > 0).tolist() for k, image in enumerate(ink) if image.any()}
    assert where == {0: [[2, 4], [3, 2]], 11: [[3, 0]]}
    assert (ink[0][2, 4].sum() > ink[0][3, 2].sum()) == (duplicates == "count:3")  # two events, or one
    blue, orange = ink[0][2, 4], ink[11][3, 0]
    assert blue[0] > blue[2]  # blue leaves blue light, orange takes it
    assert orange[2] > orange[0]
    assert [axes.get_title() for axes in (panels[0], panels[11])] == ["step 0 to 1", "step 23 to 25"]


def test_an_empty_sample_is_drawn(tmp_path):
    pytest.importorskip("matplotlib")
    for sensor in ({}, {"sensor": [3, 2, 1]}):
        event_set = EventSet.from_events(
            [([], [])], [0], n_neurons=6, n_steps=1, dt_us=1.0, description=sensor, n_classes=1
        )
        plots.plot_sample(event_set, 0, tmp_path / "a.png", title="empty")
        assert (tmp_path / "a.png").read_bytes().startswith(PNG)


# ---- wrong calls -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["build"], "data build: the data set is missing; name one, or give --config FILE"),
        (["show"], "data show: the data set is missing"),
        (["build", "nmnits"], f"data.name: is 'nmnits'; did you mean 'nmnist'? allowed: {', '.join(datasets.NAMES)}"),
        (["info", "nmnits"], f"unknown data set 'nmnits'; did you mean 'nmnist'? allowed: {', '.join(datasets.NAMES)}"),
        (["clear", "nmnits"], "unknown data set 'nmnits'"),
        (["build", "synthetic", "--set", "data.steps=3"], "data: unknown key 'steps'; did you mean 'n_steps'?"),
        (["build", "synthetic", "--split", "valid"], "synthetic has no split 'valid'; allowed: train, test"),
        (["build", "--config", "absent.toml"], "--config: absent.toml cannot be read"),
    ],
)
def test_wrong_calls_say_what_is_allowed(capsys, arguments, message):
    code, _, err = run(capsys, *arguments)
    assert code == 2
    assert message in err


def test_a_damaged_source_is_an_error(tmp_path, capsys):
    folder = write_nmnist(tmp_path / "files")
    (tmp_path / "files" / "NMNIST" / "Train" / "0" / "00002.bin").write_bytes(b"1234")
    code, _, err = run(capsys, "build", "nmnist", "--data", folder)
    assert code == 1
    assert "00002.bin: has 4 bytes, which is not a multiple of the 5 bytes" in err
    assert list((tmp_path / "cache").iterdir()) == []


def test_help_of_every_command(capsys):
    for what in ([], ["info"], ["build"], ["verify"], ["clear"], ["show"]):
        with pytest.raises(SystemExit) as ended:
            main(["data", *what, "--help"])
        assert ended.value.code == 0
        assert "usage: sparsesnn data" in capsys.readouterr().out
