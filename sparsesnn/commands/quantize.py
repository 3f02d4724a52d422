"""`sparsesnn quantize`: write the weights of a trained network as integers."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from sparsesnn.commands import neuron_files

EXAMPLES = """\
examples:
  sparsesnn train digits --set train.weight_dtype=int8 --out runs/a    train with rounded weights
  sparsesnn quantize runs/a net.safetensors
  sparsesnn eval runs/a --integers net.safetensors                     accuracy with these integers
  sparsesnn quantize runs/b net.safetensors --bits 4                   from a run trained with float32 weights"""


def register(commands: Any) -> None:
    parser = commands.add_parser(
        "quantize",
        help="write the weights of a trained network as integers",
        description="Writes int8 weights and a float32 scale per receiving neuron; weight = integer × scale.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(run=_quantize)
    parser.add_argument("checkpoint", type=Path, metavar="RUN", help="a run folder, or the checkpoint.json in it")
    parser.add_argument("file", type=Path, metavar="FILE", help="file to write (safetensors)")
    parser.add_argument("--bits", type=int, choices=(8, 4), help="default: as in training, else 8")
    neuron_files.add_flag(parser)
    parser.add_argument("--weights", choices=("best", "last"), default="best", help="default: best")


def _quantize(options: argparse.Namespace) -> int:
    from sparsesnn.integers import save
    from sparsesnn.rounding import BITS
    from sparsesnn.train.evaluation import load_run

    saved = load_run(options.checkpoint, weights=options.weights)
    trained = saved.model.weight_dtype
    kind = f"int{options.bits}" if options.bits else trained if trained in BITS else "int8"
    save(saved.model, options.file, kind)
    print(f"{options.file}: {kind} weights after epoch {saved.epoch}, {options.file.stat().st_size:,} bytes")
    if trained != kind:
        print(f"the run was trained with {trained} weights; train with train.weight_dtype={kind} for the best accuracy")
    return 0
