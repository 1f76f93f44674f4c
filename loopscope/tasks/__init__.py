"""Tasks: tokens, targets and evaluation populations."""
