"""`sparsesnn onnx`: write one time step of a trained network as an ONNX file."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from sparsesnn.commands import neuron_files

EXAMPLES = """\
examples:
  sparsesnn onnx runs/a step.onnx
  sparsesnn onnx runs/a step.onnx --weights last

the graph runs one time step: spikes [B, N] and states in, output and next states out, all float32, states zero at first.
Needs the packages onnx and onnxscript: pip install 'sparsesnn[onnx]'."""


def register(commands: Any) -> None:
    parser = commands.add_parser(
        "onnx",
        help="write one time step of a trained network as an ONNX file",
        description="Writes one time step of a trained network as an ONNX graph, for runtimes without sparsesnn.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(run=_export)
    parser.add_argument("checkpoint", type=Path, metavar="RUN", help="a run folder, or the checkpoint.json in it")
    parser.add_argument("file", type=Path, metavar="FILE", help="file to write")
    neuron_files.add_flag(parser)
    parser.add_argument("--weights", choices=("best", "last"), default="best", help="default: best")


def _export(options: argparse.Namespace) -> int:
    from sparsesnn.onnx import export
    from sparsesnn.train.evaluation import load_run

    saved = load_run(options.checkpoint, weights=options.weights)
    step = export(saved.model, options.file)
    print(f"{options.file}: one time step, the weights after epoch {saved.epoch}")
    print(f"inputs: spikes [B, {step.n_input}]")
    for name, shape in zip(step.state_names, step.state_shapes, strict=True):
        print(f"  {name} [{', '.join(map(str, shape))}], returned as next_{name}")
    return 0
