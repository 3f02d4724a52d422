"""See `sparsesnn.engines`."""
