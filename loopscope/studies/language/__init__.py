"""What the three studies of language models share."""
