"""`sparsesnn save`: write a trained network as a folder for `sparsesnn.Model.load` and Hugging Face's hub."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from sparsesnn.commands import neuron_files

EXAMPLES = """\
examples:
  sparsesnn save runs/a models/digits
  sparsesnn save runs/a models/digits --weights last --overwrite

the folder has model.safetensors, config.json and a card, README.md. In Python:
  model = sparsesnn.Model.load("models/digits")
  model.push_to_hub("owner/digits")                  needs pip install 'sparsesnn[hub]'"""


def register(commands: Any) -> None:
    parser = commands.add_parser(
        "save",
        help="write a trained network as a folder to share",
        description="Writes the weights of a trained network, its description and a model card to a folder.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(run=_save)
    parser.add_argument("checkpoint", type=Path, metavar="RUN", help="a run folder, or the checkpoint.json in it")
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="folder to write")
    neuron_files.add_flag(parser)
    parser.add_argument("--weights", choices=("best", "last"), default="best", help="default: best")
    parser.add_argument("--overwrite", action="store_true", help="replace the model that FOLDER holds")


def _save(options: argparse.Namespace) -> int:
    from sparsesnn.train.evaluation import load_run
    from sparsesnn.wording import count, printable

    saved = load_run(options.checkpoint, weights=options.weights)
    saved.save(options.folder, overwrite=options.overwrite)
    n_weights = saved.network.n_weights()
    print(
        printable(
            f"{options.folder}: {count(n_weights, 'weight')} after epoch {saved.epoch}, config.json and README.md"
        )
    )
    return 0
