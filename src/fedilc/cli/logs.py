"""The option --log-format: log lines with time and level on stderr, as text or JSON."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Annotated

import typer

from fedilc.errors import ConfigError, printable

LogFormat = Annotated[
    str | None,
    typer.Option(help="text or json: write a line with time and level to stderr per event."),
]


def log_to_stderr(kind: str | None) -> None:
    """Log the package's events on stderr in a format; do nothing if it is None."""
    if kind is None:
        return
    if kind not in ("text", "json"):
        raise ConfigError(f"--log-format {kind!r} is unknown; choose text or json")
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Lines(kind))
    logger = logging.getLogger("fedilc")
    logger.handlers, logger.propagate = [handler], False
    logger.setLevel(logging.INFO)


class _Lines(logging.Formatter):
    """One line per event: its time in UTC, its level, what happened, and the facts."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind

    def format(self, record: logging.LogRecord) -> str:
        when = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        facts = getattr(record, "facts", {})
        event = printable(record.getMessage())
        if self.kind == "json":
            line = {"time": when, "level": record.levelname.lower(), "logger": record.name, "event": event}
            return json.dumps(line | facts, default=str)
        details = "".join(f" {key}={json.dumps(value, default=str)}" for key, value in facts.items())
        return f"{when} {record.levelname.lower():7} {event}{details}"
