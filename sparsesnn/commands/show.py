"""`sparsesnn show`: draw the response of a trained network to one sample."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparsesnn.commands import neuron_files
from sparsesnn.errors import ConfigError
from sparsesnn.wording import printable

if TYPE_CHECKING:
    from torch import Tensor

    from sparsesnn.output import Output

EXAMPLES = """\
examples:
  sparsesnn show runs/a --sample 3                  spikes of every population, potentials of its most active neurons
  sparsesnn show runs/a --sample 3 --neurons 12 --split valid --out sample.svg

the picture shows time in milliseconds if the data's steps have a width, and the names of classes if the data has them."""


def register(commands: Any) -> None:
    parser = commands.add_parser(
        "show",
        help="draw the response of a trained network to one sample",
        description="Draws how a trained network responds to one sample: spikes, membrane potentials and the readout.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(run=_show)
    parser.add_argument("checkpoint", type=Path, metavar="RUN", help="a run folder, or the checkpoint.json in it")
    parser.add_argument(
        "--sample", type=int, default=0, metavar="K", help="number of the sample in the part, from 0 (default: 0)"
    )
    neuron_files.add_flag(parser)
    parser.add_argument("--split", choices=("test", "valid", "train"), default="test", help="default: test")
    parser.add_argument(
        "--neurons",
        type=int,
        default=5,
        metavar="N",
        help="number of neurons per population whose potential is drawn (default: 5)",
    )
    parser.add_argument(
        "--data", metavar="DIR", help="the data set's files (default: as in training), or FILE.py:FUNCTION"
    )
    parser.add_argument("--weights", choices=("best", "last"), default="best", help="default: best")
    parser.add_argument("--out", type=Path, metavar="FILE", help="png, svg or pdf; default: RUN/sample-K.png")


def _show(options: argparse.Namespace) -> int:
    import torch

    from sparsesnn.decoding import decode
    from sparsesnn.layers import fires
    from sparsesnn.train import plots
    from sparsesnn.train.evaluation import load_run
    from sparsesnn.train.output_plots import verdict

    run = load_run(options.checkpoint, data=options.data, weights=options.weights)
    config, part = run.config, run.part(options.split)
    if not 0 <= options.sample < len(part):
        raise ConfigError(f"--sample: is {options.sample}; the {options.split} part has 0 to {len(part) - 1}")
    if options.neurons < 0:
        raise ConfigError(f"--neurons: is {options.neurons}; give 0 or more")
    index = part.indices[options.sample : options.sample + 1]
    spikes, labels = part.event_set.batch(index), torch.from_numpy(part.event_set.batch_labels(index))
    with torch.no_grad():
        output = run.model(spikes)
        firing = [name for name, p in run.network.populations.items() if fires(p)]
        chosen = {name: _most_active(output, name, options.neurons) for name in firing if options.neurons}
        output = run.model(spikes, record=chosen)
    task = run.engine.training.task
    decoded = decode(output, run.engine.training.decoding, run.n_classes)
    folder = options.checkpoint if options.checkpoint.is_dir() else options.checkpoint.parent
    out = options.out or folder / f"sample-{options.sample}.png"
    dt_us = part.event_set.dt_us
    try:
        plots.plot_raster(
            run.network, spikes, output, labels, decoded, out,
            title=f"{config.data.name}, {options.split} sample {options.sample}",
            task=task,
            dt_ms=None if dt_us is None else dt_us / 1e3,
            names=part.class_names,
        )  # fmt: skip
    except OSError as error:
        raise ConfigError(f"--out: {out} cannot be written ({error.strerror}); give another file") from None
    if not task.is_plain:
        print(printable(f"{out}: {verdict(task, decoded, labels)}"))
        return 0
    names = part.class_names or [str(k) for k in range(run.n_classes)]
    print(printable(f"{out}: class {names[int(labels[0])]}, read as {names[int(decoded[0].argmax())]}"))
    return 0


def _most_active(output: Output, name: str, n: int) -> Tensor:
    """Ids of the most active neurons, ascending."""
    counts = output.counts(name)[0]
    ids: Tensor = counts.argsort(descending=True, stable=True)[:n].sort().values
    return ids
