"""What all tests share: settings of the engine are put back, Hypothesis does not race a busy machine, and the heart of the suite has a mark."""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest
import torch
from hypothesis import settings

import sparsesnn
from sparsesnn import _core
from sparsesnn.wording import printable

# On a loaded machine an example may take any time; the examples themselves are the same in each run.
settings.register_profile("sparsesnn", deadline=None, derandomize=True)
settings.load_profile("sparsesnn")


#: the folders whose fast tests are the heart of the suite, which `./dev test` runs
HEART = ("description", "engine", "gradients")
#: with some rows of every other folder
SMOKE = (
    "cli/test_cli.py::test_train_print_rerun_and_eval",
    "cli/test_commands_data.py::test_build_verify_info_clear",
    "conversion/test_snntorch.py::test_static_layers_in_front_stay",
    "data/test_binning.py::test_rules_for_duplicates",
    "data/test_cache.py::test_round_trip_is_the_identity",
    "data/test_stream.py::test_the_slices_of_all_ranks_are_the_batch_of_one",
    "dense/test_dense.py::test_network_gradients_are_the_reference",
    "dense/test_dense_modes.py::test_networks_agree",
    "gpu/test_cubins.py::test_every_damage_is_noticed_and_repaired",
    "gpu/test_cuda_faults.py::test_a_kernel_that_fails_is_named",
    "gpu/test_training.py::test_the_other_engine_goes_on_from_a_state",
    "ipu/test_ipu_train.py::test_a_resumed_run_ends_with_the_same_bits",
    "plan/test_cost.py::test_a_prediction_is_what_the_emulated_machine_counts",
    "plan/test_plan.py::test_ranks_get_slabs_of_the_engine",
    "ranks/test_comm.py::test_ranks_as_threads",
    "ranks/test_sharded.py::test_hooks_of_one_rank_alone_hold_nobody_up",
    "studies/test_sweep.py::test_work_is_counted_by_hand",
    "train/test_checkpoint.py::test_no_damage_goes_unnoticed",
    "train/test_engines.py::test_all_engines_take_the_same_steps",
    "train/test_train.py::test_a_run_learns_and_leaves_its_result",
)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks the heart."""
    for item in items:
        path = item.path.relative_to(Path(__file__).parent)
        is_slow = item.get_closest_marker("slow") is not None
        row = f"{path.as_posix()}::{item.name.partition('[')[0]}"
        if row in SMOKE or (path.parts[0] in HEART and not is_slow):
            item.add_marker("heart")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Names of files that are not UTF-8 are escaped in reports: workers could not send them, and all tests would end."""
    report = yield
    texts = [str(report.longrepr or ""), *(text for section in report.sections for text in section)]
    if any("\ud800" <= c <= "\udfff" for text in texts for c in text):
        report.longrepr = report.longrepr and printable(report.longrepr, keep="\n\t")
        report.sections = [(name, printable(text, keep="\n\t")) for name, text in report.sections]
    return report


@pytest.fixture(autouse=True)
def engine_settings_are_restored() -> Iterator[None]:
    """Threads, instruction set and PyTorch's seed do not leak from one test into the next."""
    isa, threads = sparsesnn.build_info()["isa"], sparsesnn.num_threads()
    torch.manual_seed(0)
    yield
    sparsesnn.set_isa(isa)
    sparsesnn.set_num_threads(threads)


@pytest.fixture
def choices() -> Callable[..., AbstractContextManager[None]]:
    """`choices(backward_rows=8)`: the engine with other limits (`host/src/machine/choices.h`), until the block ends."""

    @contextmanager
    def changed(**values: int) -> Iterator[None]:
        before = {name: _core.set_choice(name, value) for name, value in values.items()}
        try:
            yield
        finally:
            for name, value in before.items():
                _core.set_choice(name, value)

    return changed


@pytest.fixture(autouse=True)
def texts_of_other_tests_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """A set with other texts than an earlier one warns; sets of other tests do not count."""
    monkeypatch.setattr("sparsesnn.datasets.classes._seen", [])


@pytest.fixture(params=[1, 2, 3])
def threads(request: pytest.FixtureRequest) -> int:
    """The test runs with 1, 2 and 3 threads."""
    sparsesnn.set_num_threads(request.param)
    return int(request.param)


@pytest.fixture(params=["base", "avx2", "avx512"])
def isa(request: pytest.FixtureRequest) -> str:
    """The test runs with each instruction set; those that this machine cannot run are skipped, and counted."""
    if request.param not in sparsesnn.build_info()["isa_supported"]:
        pytest.skip(f"this machine or this build has no {request.param}")
    sparsesnn.set_isa(request.param)
    return str(request.param)


@pytest.fixture
def fake_sdk(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """`import poptorch` and `import popdist` find the fakes, and our ops run on the emulated machine."""
    names = {"poptorch", "popdist", "fake_popart"}
    for name in [name for name in sys.modules if name.split(".")[0] in names]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(str(Path(__file__).parent / "fakes" / "python"))
    monkeypatch.setattr("sparsesnn.poptorch.library._loaded", "ipu.gp")
    yield
    for name in [name for name in sys.modules if name.split(".")[0] in names]:
        del sys.modules[name]
