"""Optimisers by name, for the server and for local steps."""

from fedilc.optimizers.optimizers import register

__all__ = ["register"]
