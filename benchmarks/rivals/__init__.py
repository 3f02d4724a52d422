"""A race: one training step of the same network on the same spikes, by sparsesnn and other libraries, in one run.

    ./dev bench rivals

Reading order: `catalog` (the contestants), `task` (their common task), `contestants/` (their code), `worker` (one
process a contestant), `race` (the rotation), `report` and `plot` (the output), `environments` (their Python environments).
Workers run in other environments: modules that they import need only NumPy, not sparsesnn.
"""
