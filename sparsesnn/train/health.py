"""Warnings during a run: it diverges, or populations are silent or run away."""

from __future__ import annotations

from sparsesnn.layers import fires
from sparsesnn.network import Network
from sparsesnn.train.metrics import Progress

#: a run diverges if its loss is this many times that of its first step
DIVERGED = 1000.0
#: a population runs away if it fires more spikes per neuron and step
RUNAWAY = 0.5
#: a population is silent if it fires nothing in this share of the batches
SILENT = 0.5


def new_warnings(network: Network, progress: Progress, valid_loss: float | None) -> list[str]:
    """New problems in the epoch that ends, with advice; each problem is reported once until it is over.

    Args:
        network: populations with fixed activity are not checked.
        progress: with the sums of the epoch; records the reported problems.
        valid_loss: the epoch's; None without validation.
    """
    problems = _wrong(network, progress, valid_loss)
    new = [text for key, text in problems.items() if key not in progress.warned]
    progress.warned = tuple(problems)
    return new


def _wrong(network: Network, progress: Progress, valid_loss: float | None) -> dict[str, str]:
    problems, tally, first = {}, progress.tally, progress.first_loss
    loss = tally.loss if valid_loss is None else max(tally.loss, valid_loss)
    if 0 < DIVERGED * first < loss:
        problems["loss"] = (
            f"the loss is {loss:.4g}, more than {DIVERGED:,.0f} times that of the first step ({first:.4g}): training "
            "diverges; lower optim.lr, set optim.clip_norm = 1, or give optim.warmup_epochs"
        )
    for name, population in network.populations.items():
        if not fires(population) or population.activity == "fixed":
            continue
        silent, activity = tally.silent.get(name, 0), tally.activity.get(name, 0.0)
        if tally.n_batches and silent >= SILENT * tally.n_batches:
            problems[f"{name} silent"] = (
                f"{name} fired no spike in {silent:,} of {tally.n_batches:,} batches, so it learns little or nothing; raise "
                "init.activity, lower its threshold or optim.lr, or penalize silence (loss.lower, loss.strength_lower)"
            )
        elif activity > RUNAWAY:
            problems[f"{name} runs away"] = (
                f"{name} fires {activity:.3f} spikes per neuron and step, more than {RUNAWAY:g}, which costs time and carries "
                "little information; lower init.activity or optim.lr, raise its threshold, or penalize activity (loss.upper, "
                "loss.strength_upper)"
            )
    return problems
