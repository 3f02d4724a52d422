"""Studies of sparsesnn itself, which take minutes to hours: `./dev bench sweep`, `./dev bench convergence`."""
