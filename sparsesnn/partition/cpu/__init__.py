"""Plans for cores and MPI ranks: tiles of the engine (`tiles.py`) dealt to them (`slabs.py`), and their memory."""
