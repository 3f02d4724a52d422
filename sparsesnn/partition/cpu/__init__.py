"""Plans for cores and MPI ranks: slabs of neurons on ranks (`slabs.py`, by `sparsesnn/placement.py`), and their memory."""
