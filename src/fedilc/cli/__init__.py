"""The command `fedilc`, one module per subcommand."""

from fedilc.cli.app import app, main

__all__ = ["app", "main"]
