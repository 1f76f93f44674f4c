"""Chains of relations."""
