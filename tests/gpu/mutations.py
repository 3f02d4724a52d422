"""Removes barriers and bounds of codelets/gpu, one at a time, and checks that the comparison with the engine `cpu` notices.

`python tests/gpu/mutations.py --all` tries every change, `--sample` the six of the fast tests, numbers those changes; `--list` prints
them. Each change runs in a separate process that trains a few networks on the emulated device and on `cpu`. It is found if the
device refuses a kernel, numbers differ, or the process does not end. The script fails if a change is missed that is not in
EQUIVALENT, or if one of EQUIVALENT is found.
"""

from __future__ import annotations

import argparse
import math
import os
import re
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from random_networks import Case, differences

from sparsesnn.engines.dropout import Dropout
from sparsesnn.engines.gpu import emulated
from sparsesnn.engines.optimizers import Updates
from sparsesnn.layers import LI, LIF, CubaLIF, Input
from sparsesnn.network import Connection, Network
from sparsesnn.surrogate import fast_sigmoid

#: of processor time, for one change
SECONDS = 120
#: changes without an effect, and why
EQUIVALENT = {
    "deliver_grad.cu: if (!some) continue": "adds a sum of zeros; only the sign of a zero may change",
    "dot.h: if (n_full)": "add_blocks adds nothing of 0 blocks",
    "step.cu: if (a.n_loops)": "one more barrier; without loops no one needs it",
    "update.cu: if (a.clips)": "without clipping the factor is 1",
    "update.cu: if (a.clips) #2": "the same",
    "update.cu: if (weight_decay != 0.0f)": "adds a product with 0; only the sign of a zero may change",
}
#: the changes that the fast tests try
SAMPLE = (
    "deliver_grad.cu: bool exists = j < n_listed",
    "dot.h: if (tile >= n_tiles) break",
    "step.cu: without barrier();",
    "step.cu: without if (a.n_loops) barrier();",
    "step_grad.cu: without barrier(); #2",
    "update.cu: if (k >= a.n) return",
)


@dataclass(frozen=True)
class Change:
    """One change of a source.

    Args:
        path: below the folder of sources.
        begin, end: the characters that are replaced.
        name: file, changed text, and its number among equal ones.
    """

    path: str
    begin: int
    end: int
    by: str
    name: str

    def apply(self, sources: Path) -> None:
        text = (sources / self.path).read_text()
        (sources / self.path).write_text(text[: self.begin] + self.by + text[self.end :])


def changes(sources: Path) -> list[Change]:
    """All changes, in the order of files and lines."""
    every: list[Change] = []
    folder = sources / "codelets" / "gpu"
    for path in sorted([*folder.glob("*.cu"), *folder.glob("*.h")]):
        if path.name == "device.h":
            continue
        text = re.sub(r"//[^\n]*", lambda match: " " * len(match[0]), path.read_text())
        for begin, end, by, what in sorted([*barriers(text), *guards(text), *conditions(text)]):
            name = f"{path.name}: {what}"
            number = sum(re.sub(r" #\d+$", "", change.name) == name for change in every)
            relative = str(path.relative_to(sources))
            every.append(Change(relative, begin, end, by, f"{name} #{number + 1}" if number else name))
    return every


def barriers(text: str) -> Iterator[tuple[int, int, str, str]]:
    for match in re.finditer(r"\b(warp_)?barrier\(\);", text):
        before = text[text.rindex("\n", 0, match.start()) + 1 : match.start()].strip()
        yield match.start(), match.end(), ";", f"without {before} {match[0]}".replace("  ", " ")


def guards(text: str) -> Iterator[tuple[int, int, str, str]]:
    """Conditions of statements without an alternative: of those that leave it never holds, of others always."""
    for match in re.finditer(r"(?<!else )\bif \(", text):
        begin = match.end()
        end = closing(text, begin)
        after = after_statement(text, end + 1)
        if not re.match(r"\s*else\b", text[after:]):
            leaves = re.search(r"\b(continue|return|break);[\s}]*$", text[end + 1 : after])
            condition = " ".join(text[begin:end].split())
            yield begin, end, "false" if leaves else "true", f"if ({condition}){' ' + leaves[1] if leaves else ''}"


def conditions(text: str) -> Iterator[tuple[int, int, str, str]]:
    """Named comparisons always hold."""
    for match in re.finditer(r"\b(?:const )?bool (\w+) = ([^;]*[<>][^;]*);", text):
        yield match.start(2), match.end(2), "true", f"bool {match[1]} = {' '.join(match[2].split())}"


def closing(text: str, begin: int) -> int:
    """The bracket that closes the one before `begin`."""
    depth = 1
    for k in range(begin, len(text)):
        depth += {"(": 1, ")": -1}.get(text[k], 0)
        if depth == 0:
            return k
    raise AssertionError(text[begin : begin + 80])


def after_statement(text: str, begin: int) -> int:
    """The place after the statement that begins there."""
    depth = 0
    for k in range(begin, len(text)):
        depth += {"{": 1, "}": -1, "(": 1, ")": -1}.get(text[k], 0)
        if depth == 0 and text[k] in ";}":
            return k + 1
    return len(text)


# ---- trying them ---------------------------------------------------------------------------------------------------


def cases() -> dict[str, Case]:
    """Networks that reach every line of the kernels, the quickest first."""
    options = {"n_classes": 5, "updates": Updates(clip_norm=0.5, weight_decay=0.01, name="adam", ema=0.9)}
    learns = {"learn_beta": True, "surrogate": fast_sigmoid(2.0)}
    chain = Network(
        {
            "input": Input(30),
            "a": LIF(70, reset="zero", detach_reset=False, grad_threshold=0.2, bias=True, **learns),
            "b": CubaLIF(7, reset="subtract", detach_reset=True, grad_threshold=-math.inf, **learns),
            "output": LI(5, learn_beta=True),
        },
        [
            Connection("input", "a"),
            *(Connection("a", "a", delay=delay) for delay in (1, 3)),
            *(Connection(pre, "b", delay=delay) for pre, delay in (("input", 6), ("a", 1))),
            Connection("b", "b", delay=2),
            Connection("a", "output"),
            Connection("b", "output"),
        ],
    )
    wide = Network(
        {
            "input": Input(3),
            "a": LIF(9, grad_threshold=-math.inf, detach_reset=False),
            "b": LIF(4130, bias=True),
            "output": LI(5),
        },
        [Connection("input", "a"), Connection("a", "b"), Connection("b", "output")],
    )
    limited = Network(
        {
            "input": Input(20),
            "a": LIF(
                70, capacity=9, reset="zero", detach_reset=False, grad_threshold=-math.inf, surrogate=fast_sigmoid(2.0)
            ),
            "b": LIF(20),
            "output": LI(5),
        },
        [
            Connection("input", "a"),
            Connection("a", "a", delay=1),
            Connection("a", "b"),
            Connection("a", "output"),
            Connection("b", "output"),
        ],
    )
    given = Network(
        {
            "input": Input(18, currents=True),
            **{name: LIF(18, grad_threshold=-math.inf) for name in "ab"},
            "output": LI(5),
        },
        [*(Connection("input", name) for name in "ab"), Connection("a", "b"), Connection("b", "output")],
    )
    adamw = {**options, "updates": Updates(name="adamw", weight_decay=0.01)}
    sgd = {**options, "updates": Updates(name="sgd", momentum=0.0)}
    return {
        "limited": Case(
            limited, 5, 9, 0.4, 2.0, {**options, "decoding": "mean", "dropout": Dropout(neurons=0.2, spikes=0.3)}
        ),
        "chain": Case(chain, 7, 11, 0.2, 2.0, {**options, "decoding": "mean"}),
        "currents": Case(given, 3, 75, 0.0, 2.0, {**adamw, "decoding": "max", "options": {"weight_dtype": "bfloat16"}}),
        "constant currents": Case(given, 3, 2, 0.0, 2.0, {**sgd, "decoding": "max"}, constant=True),
        "many samples": Case(chain, 3, 75, 0.2, 2.0, {**adamw, "decoding": "max"}),
        "wide": Case(wide, 3, 2, 0.6, 2.0, {**sgd, "decoding": "sum"}),
    }


def compare() -> str:
    """Compares both engines: the first error or difference, or "" if there is none."""
    for name, case in cases().items():
        differ = differences(case)
        if differ:
            return f"{name}: {', '.join(differ)}"
    return ""


def attempt(change: Change | None, check: Callable[[], str]) -> str:
    """The answer of `check` in a separate process with changed kernels."""
    with tempfile.TemporaryDirectory() as folder:
        sources = Path(folder)
        for name in ("codelets", "host/src/gpu"):
            shutil.copytree(emulated.PACKAGE / name, sources / name)
        if change is not None:
            change.apply(sources)
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            signal.setitimer(signal.ITIMER_PROF, SECONDS)
            emulated.PACKAGE = sources
            try:
                answer = check()
            except BaseException as error:
                answer = f"{type(error).__name__}: {error}"
            os.write(write, answer[:2000].encode())
            os._exit(0)
        os.close(write)
        received = b""
        while block := os.read(read, 4096):
            received += block
        os.close(read)
        status = os.waitpid(child, 0)[1]
    ended = os.waitstatus_to_exitcode(status)
    if ended and not received:
        return f"ended by {signal.Signals(-ended).name}" if ended < 0 else f"ended with {ended}"
    return received.decode()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("numbers", type=int, nargs="*")
    for flag in ("--all", "--sample", "--list"):
        parser.add_argument(flag, action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(1)
    os.environ["SPARSESNN_GPU"] = "emulated"
    every = changes(emulated.PACKAGE)
    unknown = {*EQUIVALENT, *SAMPLE} - {change.name for change in every}
    if unknown:
        raise SystemExit(f"no such changes: {sorted(unknown)}")
    chosen = [
        (k, change)
        for k, change in enumerate(every)
        if args.all or args.list or k in args.numbers or (args.sample and change.name in SAMPLE)
    ]
    if args.list:
        print(*(f"{k:3} {change.name}" for k, change in chosen), sep="\n")
        return
    answer = attempt(None, compare)
    if answer:
        raise SystemExit(f"without a change: {answer}")
    wrong = 0
    for k, change in chosen:
        start = time.monotonic()
        answer = attempt(change, compare)
        expected = bool(answer) != (change.name in EQUIVALENT)
        wrong += not expected
        verdict = ("found" if answer else "equivalent") if expected else ("FOUND" if answer else "MISSED")
        print(f"{k:3} {verdict:10} {time.monotonic() - start:5.1f} s  {change.name}: {answer[:230]}", flush=True)
    print(f"{len(chosen) - wrong} of {len(chosen)} changes are as expected")
    sys.exit(wrong > 0)


if __name__ == "__main__":
    main()
