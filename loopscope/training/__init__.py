"""Training: backbones, map fitting, the counter-based data streams, checkpoints."""
