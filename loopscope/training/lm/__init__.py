"""Training one language model, or a map on one."""
