"""The choice of candidates for a full list: a hash decides where it starts, so that no id is favored and runs are reproducible.

Also works in Python 3.8, for `sparsesnn.poptorch`.
"""

from __future__ import annotations

from typing import Any

import torch

from sparsesnn.splitmix import MASK, splitmix


def population_seed(seed: int, population: int) -> int:
    """The seed of one population, so that different populations do not drop the same ids.

    Args:
        seed: of the model.
        population: index in the network, including the input.
    """
    return splitmix(splitmix(seed & MASK) ^ population)


def list_seed(of_population: int, training_step: int) -> int:
    """The seed of a population's lists in one forward pass, as passed to the engines.

    Args:
        of_population: see `population_seed`.
        training_step: number of training's forward passes including this one; 0 in evaluation, which is thus repeatable.
    """
    return of_population ^ training_step


def next_training_step(layer: Any) -> int:
    """The training step of a forward pass that begins a sequence: counted in training, 0 in evaluation.

    Training means `layer.training` with gradients enabled.
    """
    return count_training_step(layer) if layer.training and torch.is_grad_enabled() else 0


def count_training_step(layer: Any) -> int:
    """Counts one more training step of a layer, and returns its number; 0 if the layer does not count.

    A layer with a capacity counts in its buffer `training_steps`, which is part of the `state_dict`, so that resumed runs
    are reproducible. Without a capacity there is nothing to choose.
    """
    if layer.training_steps is None:
        return 0
    step = int(layer.training_steps) + 1
    layer.training_steps.fill_(step)
    return step


def rotation(seed: int, step: int, sample: int) -> int:
    """The start of the choice for the list of a time step and a sample; `seed`: see `list_seed`."""
    return splitmix(splitmix(splitmix(seed) ^ step) ^ sample)
