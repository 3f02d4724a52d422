"""Plans for IPUs.

| file | holds |
|---|---|
| `placement.py` | the fastest plan that fits, or an error that proposes changes |
| `strategies.py` | the number of neurons in a shard, by population |
| `layout.py` | the tile of each shard; collectors and reducers |
| `memory.py` | bytes of every tile, item by item |
| `vertices.py` | vertices of the program |
| `work.py` | cycles of one tile, and the assumptions behind them |
| `traffic.py`, `cost.py` | supersteps of all tiles: the prediction |
| `sweeps.py`, `sweep_tables.py` | predictions over activity and numbers of IPUs |
"""
