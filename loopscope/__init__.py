"""Loopscope: read, steer and patch looped transformers."""

__version__ = "0.1.0"
