"""Plans for IPUs.

| file | holds |
|---|---|
| `placement.py` | the fastest plan that fits, or a refusal with changes that help |
| `strategies.py` | neurons of a shard, by population |
| `layout.py` | which tile gets which shard; collectors and reducers |
| `memory.py` | bytes of every tile, item by item |
| `vertices.py` | vertices of the program |
| `work.py` | cycles of one tile, and the assumptions behind them |
| `traffic.py`, `cost.py` | supersteps of all tiles: the prediction |
| `sweeps.py`, `sweep_tables.py` | predictions over activity and numbers of IPUs |
"""
