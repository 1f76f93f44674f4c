"""Cancelling antonyms."""
