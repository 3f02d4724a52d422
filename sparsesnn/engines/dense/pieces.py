"""PyTorch's products of many rows on the engine's threads, with bits that do not depend on the number of threads.

The shape of the product alone decides how the rows are cut into pieces. PyTorch computes each piece with one thread, and sums over
rows are added piece by piece. If PyTorch has several threads, as in a program that uses `Model` directly, it gets all rows at once.
"""

from __future__ import annotations

import functools
import itertools
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import numpy as np
import torch

from sparsesnn import _core

Made = TypeVar("Made")

#: most pieces, and fewest multiply-adds per piece: smaller products are slower, by a fifth at 1 << 21
MOST, LEAST_PRODUCTS = 8, 1 << 23


def in_pieces(n_rows: int, work: Callable[[slice], Made], *, n_products: int, n_weights: int = 0) -> list[Made]:
    """Runs `work` on each piece of the rows; returns the results in order.

    Args:
        n_products: multiply-adds per row.
        n_weights: weights for which each piece computes a gradient; a piece needs at least 64 multiply-adds per weight.
    """
    total = n_rows * n_products
    n = max(1, min(MOST, n_rows, total // max(LEAST_PRODUCTS, 64 * n_weights)))
    if n == 1 or torch.get_num_threads() > 1:
        return [work(slice(0, n_rows))]
    edges = np.linspace(0, n_rows, n + 1).round().astype(int).tolist()
    pieces = [slice(first, last) for first, last in itertools.pairwise(edges)]
    n_threads = min(_core.num_threads(), n)
    if n_threads == 1:
        return [work(rows) for rows in pieces]
    mode = torch.is_inference_mode_enabled()  # each thread has its own setting, also for gradients

    @torch.no_grad()
    def of_thread(rows: slice) -> Made:
        with torch.inference_mode(mode):
            return work(rows)

    return list(_pool(os.getpid(), n_threads).map(of_thread, pieces))


@functools.lru_cache(maxsize=1)
def _pool(process: int, n_threads: int) -> ThreadPoolExecutor:
    """Threads of this process; a forked process does not inherit them. OpenMP's number of threads is set in each of them."""
    return ThreadPoolExecutor(n_threads, "sparsesnn-dense", initializer=torch.set_num_threads, initargs=(1,))
