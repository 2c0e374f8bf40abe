"""What happened in a run over HTTP: audit.jsonl in the run folder, the log, and counters for metrics."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from fedilc.errors import printable

LOGGER = logging.getLogger("fedilc.coordinator")
logging.getLogger("fedilc").addHandler(logging.NullHandler())  # without --log-format, no bare words
WINDOW_SECONDS = 60.0
MAX_KINDS = 200
_WARNINGS = {"refused", "set aside", "lost", "nonsense"}


@dataclass
class Audit:
    """Writes events down; refusals of one kind are added up, one line per minute.

    Without a file, events are logged and counted only. If the file cannot be written, that is logged once per
    minute: the run does not end for it. Every method may be called from any thread.
    """

    file: Path | None = None
    clock: Callable[[], float] = time.time
    refusals: Counter[int] = field(default_factory=Counter)
    _repeated: Counter[tuple[int, str, str]] = field(default_factory=Counter)
    _since: float = field(default=0.0)
    _failed: float = field(default=0.0)
    _lock: threading.RLock = field(default_factory=threading.RLock)

    def event(self, event: str, **facts: Any) -> None:
        """Write down that something happened, at once."""
        with self._lock:
            line = {"time": self._now(), "event": event, **facts}
            text = json.dumps(line, ensure_ascii=False, default=str)
            level = logging.WARNING if event in _WARNINGS else logging.INFO
            LOGGER.log(level, event, extra={"facts": facts})
            if self.file is None:
                return
            try:
                with self.file.open("a", encoding="utf-8") as file:
                    file.write(text + "\n")
            except OSError as error:
                if self.clock() - self._failed > WINDOW_SECONDS:
                    self._failed = self.clock()
                    LOGGER.error("the audit file %s cannot be written: %s", self.file, error.strerror)

    def refused(self, status: int, address: str, reason: str) -> None:
        """Count a refused request; per minute, the first of a kind is written and the others summed."""
        with self._lock:
            self.refusals[status] += 1
            self.flush()
            kind = (status, address, printable(reason)[:200])
            if kind not in self._repeated and len(self._repeated) >= MAX_KINDS:
                kind = (status, "others", "")
            if kind not in self._repeated:
                self.event("refused", status=status, address=address, reason=kind[2])
                self._repeated[kind] = 0
            else:
                self._repeated[kind] += 1

    def flush(self, now: bool = False) -> None:
        """Write the sums of refusals, once per minute or `now`."""
        with self._lock:
            if not now and self.clock() - self._since < WINDOW_SECONDS:
                return
            self._since = self.clock()
            repeated, self._repeated = self._repeated, Counter()
            for (status, address, reason), times in repeated.items():
                if times:
                    self.event("refused", status=status, address=address, reason=reason, times=times)

    def _now(self) -> str:
        return datetime.fromtimestamp(self.clock(), UTC).isoformat(timespec="milliseconds")


class AuditedRefusals:
    """Counts and writes down every refused request; that a run is over (410) is no refusal."""

    def __init__(self, app: ASGIApp, audit: Audit) -> None:
        self.app, self.audit = app, audit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        status = 0

        async def watched(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            elif status >= 400 and status != 410:
                address = scope["client"][0] if scope.get("client") else "?"
                self.audit.refused(status, address, _reason(message.get("body", b"")))
                status = 0
            await send(message)

        await self.app(scope, receive, watched if scope["type"] == "http" else send)


def _reason(body: bytes) -> str:
    """The sentence of a refusal."""
    try:
        return str(json.loads(body)["detail"])
    except (ValueError, KeyError, TypeError):
        return ""
