"""Parity of bit strings."""
