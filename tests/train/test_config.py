"""The configuration: round trips, precedence, and errors that name the key."""

from __future__ import annotations

import argparse
import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparsesnn import datasets
from sparsesnn.config import Config, NetConfig, all_options, differences
from sparsesnn.config.flags import add_flags
from sparsesnn.config.flags import given as given_flags
from sparsesnn.config.tables import flatten, merge, nested, read_assignment, read_toml
from sparsesnn.errors import ConfigError, DescriptionError
from sparsesnn.layers import LI, LIF, AdLIF, CubaLIF, Input, catalog, decays
from sparsesnn.layers.checks import PerNeuron
from sparsesnn.network import Connection, Network
from sparsesnn.options import option, options_of

CONFIGS = Path(__file__).resolve().parents[2] / "configs"


@pytest.mark.parametrize("name", datasets.NAMES)
def test_every_data_set_has_a_whole_configuration_that_reads_back(name: str) -> None:
    config = Config.resolve({"data": {"name": name}})
    assert Config.from_toml(config.to_toml()) == config
    assert Config.from_dict(json.loads(json.dumps(config.to_dict(), allow_nan=False))) == config
    assert set(config.to_dict()["data"]) >= set(datasets.defaults(name))


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.toml")), ids=lambda p: p.name)
def test_recipes_are_valid(path: Path) -> None:
    assert Config.from_toml(path.read_text(), path.name).data.name in datasets.NAMES


def test_infinity_and_lists_survive_toml_and_json() -> None:
    config = Config.resolve({"net": {"grad_threshold": -math.inf, "beta": [0.5, 0.25, 0.125]}})
    for again in (Config.from_toml(config.to_toml()), Config.from_dict(json.loads(json.dumps(config.to_dict())))):
        assert again == config
        assert again.net.neurons["grad_threshold"] == -math.inf
        assert again.net.neurons["beta"] == (0.5, 0.25, 0.125)


def read_back(config: Config) -> list[Config]:
    """From TOML, from strict JSON."""
    return [
        Config.from_toml(config.to_toml()),
        Config.from_dict(json.loads(json.dumps(config.to_dict(), allow_nan=False))),
    ]


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name == "nmnist" else pytest.mark.slow) for name in datasets.NAMES]
)
def test_every_option_reads_back_at_its_bounds(name: str) -> None:
    base, n_read = {"data": {"name": name}}, 0
    for key, known in Config.resolve(base).options().items():
        bounds = [known.low, known.high, known.none, -math.inf, math.inf, [0.5, -math.inf], True, False, *known.texts]
        for value in (bound for bound in bounds if bound is not None and key != "data.name"):
            try:
                config = Config.resolve(base, nested(key.split("."), value))
            except ConfigError:
                continue  # not allowed, alone or with the defaults of the others
            n_read += 1
            assert read_back(config) == [config, config], (key, value)
            assert Config.from_toml(config.to_toml()).to_toml() == config.to_toml(), (key, value)
    assert n_read > 100


@pytest.mark.parametrize("model", [LIF, AdLIF, CubaLIF])
def test_every_argument_of_a_population_reads_back_at_its_bounds(model: Any) -> None:
    infinite = 0
    for key, known in options_of(model).items():
        bounds = [known.low, known.high, -math.inf, math.inf, (0.5, -math.inf, 0.25), True, *known.texts]
        for value in (bound for bound in bounds if bound is not None and key != "n"):
            try:
                population = model(**{"n": 3, "capacity": 2, key: value})
            except DescriptionError:
                continue
            infinite += -math.inf in (value if isinstance(value, tuple) else (value,))
            network = Network.chain(Input(7), population, LI(3))
            config = Config.resolve({"net": network.to_dict()})
            assert read_back(config) == [config, config], (key, value)
            assert [again.net.network(7, 3) for again in read_back(config)] == [network, network], (key, value)
    assert infinite > 1


@given(
    table=st.fixed_dictionaries(
        {
            "optim": st.fixed_dictionaries(
                {
                    "lr": st.floats(0, 1e3),
                    "name": st.sampled_from(["adam", "adamw", "sgd"]),
                    "warmup_epochs": st.floats(0, 99),
                }
            ),
            "train": st.fixed_dictionaries({"seed": st.integers(0, 2**63 - 1), "epochs": st.integers(1, 1000)}),
            "net": st.fixed_dictionaries(
                {"beta": st.floats(0, 1), "threshold": st.floats(1e-3, 100), "bias": st.booleans()}
            ),
            "augment": st.fixed_dictionaries({"event_drop": st.floats(0, 1), "time_shift": st.integers(0, 99)}),
        }
    )
)
def test_any_values_survive_toml_and_json_exactly(table: dict[str, Any]) -> None:
    config = Config.resolve(table)
    assert Config.from_toml(config.to_toml()) == config
    assert Config.from_dict(json.loads(json.dumps(config.to_dict(), allow_nan=False))) == config
    flat = flatten(config.to_dict())
    assert all(flat[key] == value for key, value in flatten(table).items())


def test_later_tables_win_over_earlier_ones_and_over_the_data_set() -> None:
    file = {"data": {"name": "digits"}, "train": {"epochs": 7, "batch": 11}}
    config = Config.resolve(file, {"train": {"epochs": 9}})
    assert (config.train.epochs, config.train.batch) == (9, 11)
    assert config.optim.lr == Config.resolve({"data": {"name": "digits"}}).optim.lr


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"optim": {"learning_rte": 1.0}}, "optim: unknown key 'learning_rte'; .*allowed: name, lr, "),
        ({"optim": {"momentun": 0.5}}, "did you mean 'momentum'"),
        ({"trian": {"epochs": 1}}, "unknown key 'trian'; did you mean 'train'.* allowed: data, net, loss"),
        ({"net": {"surrogate": {"kidn": "atan"}}}, "net.surrogate: unknown key 'kidn'; did you mean 'kind'"),
        ({"net": {"surrogate": {"kind": "tanh"}}}, "net.surrogate.kind: is 'tanh'; allowed: fast_sigmoid"),
        ({"data": {"name": "nmnis"}}, "data.name: is 'nmnis'; did you mean 'nmnist'. allowed: digits"),
        ({"data": {"name": "digits", "n_setps": 3}}, "data: unknown key 'n_setps'; did you mean 'n_steps'"),
        ({"data": {"name": "digits", "n_steps": "long"}}, "data.n_steps: is 'long'; allowed: whole numbers, 8 to"),
        ({"data": 3}, "data: is 3; give a table"),
        ({"train": {"epochs": 2.5}}, r"train.epochs: is 2.5; allowed: whole numbers, 1 to 1000000"),
        ({"train": {"epochs": 0}}, "train.epochs: is 0; allowed: whole numbers, 1 to"),
        ({"train": {"epochs": True}}, "train.epochs: is True"),
        ({"train": {"tensorboard": 1}}, "train.tensorboard: is 1; allowed: true or false"),
        ({"train": {"backend": "cuda"}}, "train.backend: is 'cuda'; allowed: cpu, gpu, dense"),
        ({"train": {"dense_mode": "slow"}}, "train.dense_mode: is 'slow'; allowed: auto, step, hoist, fused"),
        (
            {"train": {"dense_mode": "step"}},
            "train.dense_mode: is 'step' with backend 'cpu'; only backend 'dense' reads it",
        ),
        ({"optim": {"lr": "fast"}}, "optim.lr: is 'fast'; allowed: numbers, 0 or more, such as 0.001"),
        (
            {"optim": {"schedule": "cosin"}},
            "optim.schedule: is 'cosin'; did you mean 'cosine'. allowed: cosine, constant",
        ),
        ({"optim": {"lr": math.nan}}, "optim.lr: is nan; allowed: 0 or more"),
        ({"optim": {"lr": math.inf}}, "optim.lr: is inf; allowed: 0 or more, finite"),
        ({"optim": {"lr": -1.0}}, "optim.lr: is -1.0"),
        ({"optim": {"lr": 10**400}}, "optim.lr: is 1000.*allowed: 0 or more"),
        ({"data": {"runs_code": True}}, "data: unknown key 'runs_code'"),
        ({"optim": {"schedule": "step"}}, "optim.schedule: is 'step'; allowed: cosine, constant"),
        ({"loss": {"label_smoothing": 1.0}}, "loss.label_smoothing"),
        ({"loss": {"decoding": "best"}}, "loss.decoding: is 'best'; allowed: auto, max"),
        ({"init": {"layers": {"hidden": "much"}}}, "init.layers.hidden: is 'much'"),
        ({"net": {"tau_range": [5.0]}}, r"net.tau_range: is \[5.0\]; give two time constants"),
        ({"net": {"tau_range": [9.0, 5.0]}}, r"net.tau_range: is \[9.0, 5.0\]"),
        ({"augment": {"event_drop": 1.5}}, "augment.event_drop: is 1.5; allowed: 0 to 1"),
        (
            {"net": {"populations": {"input": {"model": "Input", "n": 3}}, "beta": 0.5}},
            "populations describe the whole network, so beta would",
        ),
    ],
)
def test_what_is_wrong_is_named(table: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Config.resolve(table)


@pytest.mark.parametrize("text", ["[data", "a = 1\na = 2", "[" * 20_000])
def test_text_that_is_not_toml(text: str) -> None:
    with pytest.raises(ConfigError, match=r"mine\.toml: is not TOML"):
        Config.from_toml(text, "mine.toml")


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("epoch = 3", r"^mine\.toml: train: unknown key 'epoch'; did you mean 'epochs'"),
        ("lr = 0.1", r"^mine\.toml: train: unknown key 'lr'; .*; it is in \[optim\]$"),
        ("epochs = 'x'", r"^mine\.toml: train.epochs: is 'x'"),
    ],
)
def test_a_wrong_entry_of_a_file_names_the_file(entry: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Config.from_toml(f"[train]\n{entry}\n", "mine.toml")
    table = read_toml(f"[train]\n{entry}\n", "mine.toml")
    with pytest.raises(ConfigError, match="^optim.lr: is 'fast'"):
        Config.resolve(read_toml("[optim]\nlr = 1", "mine.toml"), {"optim": {"lr": "fast"}})
    with pytest.raises(ConfigError, match=message):
        Config.resolve(table, {"train": {"seed": 1}})


def test_a_text_becomes_a_network_with_the_arguments_of_the_section() -> None:
    table = {
        "text": "auto-5r-6c-auto", "beta": 0.5, "alpha": 0.25, "capacity": 3, "delay": 1,
        "surrogate": {"kind": "atan", "slope": 2.0}, "readout_beta": 0.75, "readout_bias": True,
    }  # fmt: skip
    network = Config.resolve({"net": table}).net.network(7, 3)
    populations = network.populations
    assert populations["input"] == Input(7)
    hidden = populations["hidden1"], populations["hidden2"]
    assert isinstance(hidden[0], LIF)
    assert network.is_recurrent("hidden1")
    assert (hidden[0].beta, hidden[0].capacity, hidden[0].surrogate.kind) == (0.5, 3, "atan")
    assert isinstance(hidden[1], CubaLIF)
    assert hidden[1].alpha == 0.25
    assert populations["output"] == LI(3, beta=0.75, bias=True)
    assert {c.delay for c in network.connections} == {1}


def test_a_spiking_readout_is_read_by_counts() -> None:
    config = Config.resolve({"net": {"text": "auto-5-autos"}})
    network = config.net.network(7, 3)
    assert isinstance(network.populations["output"], LIF)
    assert config.loss.decoding_for(network) == "count"
    wrong = Config.resolve({"net": {"text": "auto-5-autos"}, "loss": {"decoding": "max"}})
    with pytest.raises(ConfigError, match="'output' is spiking; allowed: count"):
        wrong.loss.decoding_for(network)


def test_a_network_that_does_not_fit_the_data_comes_with_the_text_that_does() -> None:
    with pytest.raises(ConfigError, match=r"data has 13 neurons and 4 classes; write --net 13-256r-8-4$"):
        Config.resolve({"net": {"text": "700-256r-8-20"}}).net.network(13, 4)
    with pytest.raises(ConfigError, match=r"write --net 13-256r-7s$"):
        Config.resolve({"net": {"text": "700-256r-20s"}}).net.network(13, 7)
    with pytest.raises(ConfigError, match="^net '700-x-20'"):
        Config.resolve({"net": {"text": "700-x-20"}}).net.network(700, 20)


def test_a_population_code_fits() -> None:
    assert Config.resolve({"net": {"text": "13-5-12"}}).net.network(13, 4).populations["output"].n == 12


def test_a_network_can_be_described_population_by_population() -> None:
    network = Network(
        {"a": Input(7), "b": LIF(5, grad_threshold=-math.inf), "c": CubaLIF(4), "d": LI(3)},
        (Connection("a", "b"), Connection("b", "c", 2), Connection("a", "c"), Connection("c", "d")),
    )
    config = Config.resolve({"net": network.to_dict()})
    for again in (Config.from_toml(config.to_toml()), Config.from_dict(json.loads(json.dumps(config.to_dict())))):
        assert again.net.network(7, 3) == network
    assert set(config.to_dict()["net"]) == {"populations", "connections"}
    with pytest.raises(ConfigError, match="set n = 9 for 'a' and n = 2 for 'd'"):
        config.net.network(9, 2)
    replaced = Config.resolve({"net": network.to_dict()}, {"net": {"text": "7-8-3"}})
    assert replaced.net.network(7, 3).populations["hidden"].n == 8


def test_differences_that_forbid_to_continue() -> None:
    old = Config.resolve({"data": {"name": "digits"}, "optim": {"schedule": "cosine"}})
    gpu = old.with_values({"train": {"backend": "gpu", "device": "cuda:1"}})
    assert differences(old, gpu) == differences(gpu, old) == []
    dense = old.with_values({"train": {"backend": "dense"}})
    assert differences(gpu, dense) == ["train.device: 'cuda:1' → 'cpu'", "train.backend: 'gpu' → 'dense'"]
    assert differences(dense, dense.with_values({"train": {"device": "cuda"}})) == ["train.device: 'cpu' → 'cuda'"]
    assert differences(old, old.with_values({"train": {"threads": 3}, "data": {"dir": "/elsewhere"}})) == []
    changed = differences(old, old.with_values({"train": {"seed": 9}, "net": {"beta": 0.5}}))
    assert changed == ["net.beta: 0.95 → 0.5", "train.seed: 0 → 9"]
    assert differences(old, old.with_values({"train": {"epochs": 99}})) == ["train.epochs: 30 → 99"]
    steady = old.with_values({"optim": {"schedule": "constant"}})
    assert differences(steady, steady.with_values({"train": {"epochs": 99}})) == []
    assert differences(steady, steady.with_values({"train": {"epochs": 3}})) == ["train.epochs: 30 → 3"]


@pytest.mark.parametrize(
    ("text", "table"),
    [
        ("optim.lr=1e-3", {"optim": {"lr": 1e-3}}),
        ("net.reset = zero", {"net": {"reset": "zero"}}),
        ("net.surrogate.slope=25", {"net": {"surrogate": {"slope": 25}}}),
        ("net.grad_threshold=-inf", {"net": {"grad_threshold": -math.inf}}),
        ("train.plots=false", {"train": {"plots": False}}),
        ("data.valid=speakers:4,5", {"data": {"valid": "speakers:4,5"}}),
        ("net.beta=[0.5, 0.25]", {"net": {"beta": [0.5, 0.25]}}),
    ],
)
def test_assignments(text: str, table: dict[str, Any]) -> None:
    assert read_assignment(text) == table


@pytest.mark.parametrize("text", ["lr=1", "optim.lr", "optim..lr=1", "=3"])
def test_assignments_without_a_section_or_a_value(text: str) -> None:
    with pytest.raises(ConfigError, match=r"write section\.key=value"):
        read_assignment(text)


def test_merge_leaves_its_arguments_alone() -> None:
    low: dict[str, Any] = {"a": {"b": 1}}
    assert merge(low, {"a": {"c": 2}}) == {"a": {"b": 1, "c": 2}}
    assert low == {"a": {"b": 1}}


def test_tau_range_spreads_the_decays_of_hidden_neurons() -> None:
    config = Config.resolve({"data": {"name": "digits"}, "net": {"text": "6-4r-2", "tau_range": [5.0, 50.0]}})
    network = config.net.network(6, 2)
    assert network.populations["hidden"].beta == decays((5.0, 50.0), 4)
    assert network.populations["output"].beta == 0.95
    assert Config.from_toml(config.to_toml()) == config


def test_time_constants_in_milliseconds() -> None:
    times = {"tau_ms": 20.0, "tau_syn_ms": 5.0, "readout_tau_ms": 50.0}
    config = Config.resolve({"data": {"name": "shd"}, "net": {"text": "6-4r-3c-2", **times}})
    network = config.net.network(6, 2, dt_ms=2.5)
    assert network.populations["hidden1"].beta == network.populations["hidden2"].beta == math.exp(-2.5 / 20)
    assert network.populations["hidden2"].alpha == math.exp(-2.5 / 5)
    assert network.populations["output"].beta == math.exp(-2.5 / 50)
    assert Config.from_toml(config.to_toml()) == config
    spread = Config.resolve({"net": {"text": "6-4r-2", "tau_range_ms": [20.0, 300.0]}}).net.network(6, 2, 2.5)
    assert spread.populations["hidden"].beta == decays((8.0, 120.0), 4)
    for name, value in {**times, "tau_range_ms": (20.0, 300.0)}.items():
        with pytest.raises(ConfigError, match=f"net.{name}: is .*the steps of this data have no width.*per step"):
            Config.resolve({"net": {"text": "6-4r-2", name: value}}).net.network(6, 2)


@pytest.mark.parametrize(
    ("net", "message"),
    [
        ({"tau_ms": 20.0, "beta": 0.9}, r"net.tau_ms: is 20\.0, but net.beta is 0\.9 as well; remove one"),
        ({"tau_range_ms": [20.0, 30.0], "beta": 0.9}, "net.tau_range_ms: is .* but net.beta is"),
        ({"tau_syn_ms": 20.0, "alpha": 0.5}, r"net.tau_syn_ms: is 20\.0, but net.alpha is 0\.5"),
        ({"readout_tau_ms": 20.0, "readout_beta": 0.5}, r"net.readout_tau_ms: is 20\.0, but net.readout_beta is 0\.5"),
        ({"tau_ms": 20.0, "tau_range": [5.0, 9.0]}, "net: tau_range and tau_ms are given; give one of"),
        ({"tau_ms": -1.0}, r"net.tau_ms: is -1\.0; allowed: 0 or more"),
        (
            {"tau_range_ms": [30.0, 20.0]},
            r"net.tau_range_ms: is \[30\.0, 20\.0\]; give two time constants in milliseconds",
        ),
    ],
)
def test_time_constants_that_contradict(net: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Config.resolve({"net": net})


def test_a_printed_configuration_explains_every_option_and_reads_back() -> None:
    config = Config.resolve(
        {"data": {"name": "shd", "dir": "inf"}, "net": {"grad_threshold": -math.inf, "capacity": 3}}
    )
    text = config.to_toml()
    assert Config.from_toml(text) == config, "a text of the letters inf stays a text"
    lines = text.splitlines()
    keys = [k for k, line in enumerate(lines) if " = " in line and not line.startswith("#")]
    assert len(keys) > 80
    assert all(lines[k - 1].startswith("# ") for k in keys), "every option is below its meaning"
    assert "# learning rate after the warm-up (0 or more)" in lines


def test_the_arguments_of_a_new_neuron_model_are_options_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    @dataclass(frozen=True)
    class AdaptiveOption(LIF):
        rho: PerNeuron = option(0.75, "decay of the adaptation per step", low=0, high=1)

    models = {**catalog.MODELS, "AdaptiveOption": AdaptiveOption}
    monkeypatch.setattr(catalog, "MODELS", models)
    config = Config.resolve({"net": {"rho": 0.5}})
    assert config.net.neurons["rho"] == 0.5
    assert "# decay of the adaptation per step (0 to 1, or a list of them)\nrho = 0.5\n" in config.to_toml()
    assert Config.from_toml(config.to_toml()) == config
    assert config.net.network(128, 10) == Config.resolve({}).net.network(128, 10), "LIF does not read it"
    parser = argparse.ArgumentParser()
    add_flags(parser)
    assert given_flags(parser.parse_args(["--net.rho", "0.25"])) == {"net": {"rho": 0.25}}
    with pytest.raises(ConfigError, match="net.rho: is 1.5; allowed: 0 to 1"):
        Config.resolve({"net": {"rho": 1.5}})


def test_every_option_is_a_flag_and_the_last_one_counts() -> None:
    parser = argparse.ArgumentParser()
    add_flags(parser)
    text = "--net.beta [0.5,0.25] --train.seed 4 --seed 5 --no-plots --data.dt_ms 2.5 --download --net.text 7-5-3"
    options = parser.parse_args([*text.split(), "--data", "2024", "--set", "init.layers.hidden=0.5"])
    assert given_flags(options) == {
        "net": {"beta": [0.5, 0.25], "text": "7-5-3"},
        "train": {"seed": 5, "plots": False},
        "data": {"dt_ms": 2.5, "download": True, "dir": "2024"},
        "init": {"layers": {"hidden": 0.5}},
    }
    with pytest.raises(
        ConfigError, match="--set net.text=9-3: net.text is given by a flag as well, as '7-5-3'; remove one"
    ):
        given_flags(parser.parse_args(["--net", "7-5-3", "--set", "net.text=9-3"]))
    flags = {flag for action in parser._actions for flag in action.option_strings}
    assert {f"--{name}" for name in all_options()} <= flags


def test_options_without_effect_are_refused() -> None:
    with pytest.raises(ConfigError, match="train.keep_every: is 3 with backend 'cpu'; only backend"):
        Config.resolve({"train": {"keep_every": 3}})
    with pytest.raises(ConfigError, match="net: unknown key 'dt_ms'"):
        Config.resolve({"net": {"dt_ms": 3}})
    with pytest.raises(ConfigError, match="net.neurons: unknown key 'slow'"):
        NetConfig(neurons={"slow": 3})


def test_a_copy_of_connections_for_each_delay() -> None:
    table = {"text": "7-5r-6-3", "delays": [0, 3, 8], "recurrent_delays": [1, 4]}
    network = Config.resolve({"net": table}).net.network(7, 3)
    assert [c.name for c in network.connections] == [
        *("input->hidden1", "input->hidden1@3", "input->hidden1@8"),
        *("hidden1->hidden2", "hidden1->hidden2@3", "hidden1->hidden2@8", "hidden2->output"),
        *("hidden1->hidden1", "hidden1->hidden1@4"),
    ]
    assert network.delays_text("hidden1") == "delays input 0, 3, 8; hidden1 1, 4"
    assert network.delays_text("output", " ({})") == ""
    in_ms = {"text": "7-5r-6-3", "delays_ms": [0, 7.4, 20], "recurrent_delays_ms": [2.5, 10]}
    assert Config.resolve({"net": in_ms}).net.network(7, 3, dt_ms=2.5) == network


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"delays": [0, 2, 2]}, r"net.delays: is \[0, 2, 2\].*\[0, 2, 2\] in steps; give delays that differ"),
        ({"delays_ms": [0, 1, 9]}, r"net.delays_ms: is \[0.0, 1.0, 9.0\], which is \[0, 0, 2\] in steps"),
        ({"delays": [0, -1]}, "net.delays: is -1; allowed: .*0 to"),
        ({"delays": [1], "delays_ms": [1]}, "net: delays and delays_ms are given; give one of"),
        ({"delays": [1], "delay": 2}, "net: delay and delays are given; give one of"),
        ({"text": "7-3", "delays": [1]}, "net.delays: .*'7-3' has no hidden population"),
        ({"text": "7-5-3", "recurrent_delays": [1]}, "net.recurrent_delays: .*'7-5-3' has no recurrent population"),
        ({"recurrent_delays_ms": [1]}, "delay is 0; allowed: .*a recurrent connection needs at least 1"),
    ],
)
def test_delays_that_fit_nothing(table: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Config.resolve({"net": {"text": "7-5r-3", **table}}).net.network(7, 3, dt_ms=5.0)
    if {"delays_ms", "recurrent_delays_ms"} & set(table) and len(table) == 1:
        with pytest.raises(ConfigError, match="no width in milliseconds.*delays in steps"):
            Config.resolve({"net": {"text": "7-5r-3", **table}}).net.network(7, 3)


def test_neurons_begin_with_parameters_of_their_own() -> None:
    table = {"text": "7-5ra-4-3", "initial": {"a": [0, 1]}, "initial_tau_ms": {"beta": [10, 20], "rho": [100, 300]}}
    network = Config.resolve({"net": table}).net.network(7, 3, dt_ms=10.0)
    first, second = (network.populations[f"hidden{k}"] for k in (1, 2))
    assert sorted(first.a) == pytest.approx([0.1, 0.3, 0.5, 0.7, 0.9])
    assert sorted(-10 / math.log(beta) for beta in first.beta) == pytest.approx([11, 13, 15, 17, 19])
    assert sorted(-10 / math.log(beta) for beta in second.beta) == pytest.approx([11.25, 13.75, 16.25, 18.75])
    order = [sorted(x).index(x[0]) for x in (first.a, first.beta, first.rho)]
    assert [first.a[k] for k in range(5)] != sorted(first.a), "each parameter has its own order"
    assert len({tuple(sorted(range(5), key=x.__getitem__)) for x in (first.a, first.beta, first.rho)}) == 3, order
    assert isinstance(network.populations["output"].beta, float)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"initial": {"a": [0, 1]}}, "net.initial: 'a' is not a parameter of the hidden neurons of '7-5-3'"),
        ({"initial_tau_ms": {"rho": [9, 10]}}, "net.initial_tau_ms: 'rho' is not a parameter"),
        ({"initial": {"beta": [0.5]}}, r"net.initial.beta: is \[0.5\]; give the lowest and the highest"),
        ({"initial": {"beta": [0.5, 0.25]}}, r"net.initial.beta: is \[0.5, 0.25\]"),
        ({"initial": {"beta": [0.5, 1.5]}}, "beta"),
        ({"initial": {"beta": [0, 1]}, "initial_tau_ms": {"beta": [9, 10]}}, "both have beta; remove it"),
        ({"initial_tau_ms": {"beta": [0, 10]}}, r"net.initial_tau_ms.beta: is .*0.*above 0|initial_tau_ms"),
    ],
)
def test_initial_parameters_that_fit_nothing(table: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Config.resolve({"net": {"text": "7-5-3", **table}}).net.network(7, 3, dt_ms=5.0)
