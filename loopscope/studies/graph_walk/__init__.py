"""Walks on permutation graphs."""
