"""Which candidates a full list keeps: a hash says where the choice starts, so that no id is favored and every run repeats.

Runs under Python 3.8 too, for `sparsesnn.poptorch`.
"""

from __future__ import annotations

from typing import Any

import torch

from sparsesnn.splitmix import MASK, splitmix


def population_seed(seed: int, population: int) -> int:
    """The seed of one population, so that two of them do not drop the same ids.

    Args:
        seed: of the model.
        population: index in the network, the input counted.
    """
    return splitmix(splitmix(seed & MASK) ^ population)


def list_seed(of_population: int, training_step: int) -> int:
    """The seed of a population's lists in one forward pass; what the engines are told.

    Args:
        of_population: see `population_seed`.
        training_step: forward passes of training up to this one; 0 in evaluation, which so repeats.
    """
    return of_population ^ training_step


def next_training_step(layer: Any) -> int:
    """The training step of a forward pass that begins a sequence: counted in training, 0 in evaluation.

    Training: `layer.training`, with gradients enabled.
    """
    return count_training_step(layer) if layer.training and torch.is_grad_enabled() else 0


def count_training_step(layer: Any) -> int:
    """Counts one more training step of a layer, and returns its number; 0 where the layer does not count.

    A layer with a capacity counts in its buffer `training_steps`. A `state_dict` holds it, so that a run that resumes
    repeats. Without a capacity there is nothing to choose.
    """
    if layer.training_steps is None:
        return 0
    step = int(layer.training_steps) + 1
    layer.training_steps.fill_(step)
    return step


def rotation(seed: int, step: int, sample: int) -> int:
    """Where the choice starts in the list of a time step and a sample; `seed`: see `list_seed`."""
    return splitmix(splitmix(splitmix(seed) ^ step) ^ sample)
