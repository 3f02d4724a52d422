"""A race: one training step of the same network on the same spikes, by sparsesnn and by everyone else, in one run.

    ./dev bench rivals

Reading order: `catalog` (who races), `task` (what all compute), `contestants/` (how each computes it), `worker` (one
process a contestant), `race` (the rotation), `report` and `plot` (what is written), `environments` (where they live).
Workers run in foreign environments: what they import needs NumPy and nothing of sparsesnn.
"""
