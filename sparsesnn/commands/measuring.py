"""Flags shared by several benchmarks."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sparsesnn.bench import Workload

FLAGS: dict[str, dict[str, Any]] = {
    "net": {"default": "700-1024-1024-20", "metavar": "TEXT", "help": "the network"},
    "steps": {"type": int, "default": 100, "metavar": "T", "help": "time steps"},
    "batch": {"type": int, "default": 48, "metavar": "B", "help": "samples"},
    "input-activity": {"type": float, "default": 0.015, "metavar": "A", "help": "spikes per neuron and step"},
    "hidden-activity": {
        "type": float,
        "default": 0.02,
        "metavar": "A",
        "help": "spikes per hidden neuron and step, reached by scaling the weights",
    },
    "device": {
        "default": "cpu",
        "metavar": "NAME",
        "help": "device of the backends dense and gpu: cpu, cuda, cuda:0, …; with gpu, cpu means the first GPU",
    },
    "precision": {
        "default": "float32",
        "metavar": "P",
        "help": "precision of the dense backend's products: float32, tf32 (cuda), bfloat16, float16; its state stays float32",
    },
    "threads": {"type": int, "default": 0, "metavar": "N", "help": "worker threads; 0: all cores"},
    "repeats": {"type": int, "default": 15, "metavar": "N", "help": "timed steps"},
}


def add_parser(what: Any, name: str, text: str, examples: str, run: Any, flags: str) -> argparse.ArgumentParser:
    """The parser of one benchmark, with --json.

    Args:
        what: the parsers of `sparsesnn bench`.
        text: a short help, a colon, and the description above the flags.
        flags: names in `FLAGS`, with a default if it differs: "net steps=20".
    """
    help, _, description = text.partition(": ")
    parser: argparse.ArgumentParser = what.add_parser(
        name,
        help=help,
        description=description,
        epilog=examples,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(run=run)
    for flag, _, default in (word.partition("=") for word in flags.split()):
        known = dict(FLAGS[flag])
        known["help"] += " (default: %(default)s)"
        if default:
            known["default"] = default  # argparse parses a text default like an argument
        parser.add_argument(f"--{flag}", **known)
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser


def workload_of(options: argparse.Namespace, **more: Any) -> Workload:
    """The workload from the flags net, steps, batch and both activities; `more`: its other arguments."""
    from sparsesnn.bench import Workload

    return Workload(
        net=options.net,
        n_steps=options.steps,
        n_samples=options.batch,
        input_activity=options.input_activity,
        hidden_activity=options.hidden_activity,
        **more,
    )
