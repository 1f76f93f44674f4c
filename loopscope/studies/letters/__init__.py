"""The letter walk of language models."""
