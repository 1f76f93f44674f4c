"""Looped language models: released checkpoints as models that can be run, read, steered and patched."""
