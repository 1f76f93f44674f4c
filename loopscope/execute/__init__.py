"""Running programs: the plain run that defines them, and the executor that computes only what can differ."""
