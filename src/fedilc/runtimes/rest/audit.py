"""Record the events of a run over HTTP: audit.jsonl in the run folder, the log, and counters for metrics."""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from fedilc.errors import printable
from fedilc.storage.files import parse_json, with_digest

LOGGER = logging.getLogger("fedilc.coordinator")
logging.getLogger("fedilc").addHandler(logging.NullHandler())  # without a log format, nothing is printed
WINDOW_SECONDS = 60.0
MAX_BYTES = 64 << 20
KEPT_FILES = 9
DIGITS = 16
MAX_KINDS = 200
_TAIL_BYTES = 1 << 16
_WARNINGS = {"refused", "set aside", "left out", "lost", "nonsense"}
Kind = tuple[tuple[str, str | int], ...]


@dataclass
class Audit:
    """The event log of a coordinator: one line per event, each with a digest.

    A repeated event is written once per minute, and then how often it occurred. Without a file, events are
    only logged and counted. A file that cannot be written is logged once per minute, and the run continues.
    At 64 MB a new file is begun, and the nine files before it are kept as audit-1.jsonl (the latest) to
    audit-9.jsonl. Every method may be called from any thread.
    """

    file: Path | None = None
    clock: Callable[[], float] = time.time
    refusals: Counter[int] = field(default_factory=Counter)
    _repeated: defaultdict[str, Counter[Kind]] = field(default_factory=lambda: defaultdict(Counter))
    _since: float = field(default=0.0)
    _failed: float = field(default=0.0)
    _lock: threading.RLock = field(default_factory=threading.RLock)

    def event(self, event: str, **facts: Any) -> None:
        """Write an event at once."""
        with self._lock:
            now = datetime.fromtimestamp(self.clock(), UTC).isoformat(timespec="milliseconds")
            line = with_digest({"time": now, "event": event, **facts}, DIGITS)
            level = logging.WARNING if event in _WARNINGS else logging.INFO
            LOGGER.log(level, event, extra={"facts": facts})
            if self.file is None:
                return
            try:
                _append(self.file, json.dumps(line, ensure_ascii=False).encode() + b"\n")
            except OSError as error:
                if self.clock() - self._failed > WINDOW_SECONDS:
                    self._failed = self.clock()
                    LOGGER.error("the audit file %s cannot be written: %s", self.file, error.strerror)

    def repeated(self, event: str, kind: Mapping[str, str | int], **facts: Any) -> None:
        """Write the first event of a kind per minute, and count the others."""
        with self._lock:
            self.flush()
            key = tuple(kind.items())
            if key in self._repeated[event]:
                self._repeated[event][key] += 1
            else:
                self._repeated[event][key] = 0
                self.event(event, **kind, **facts)

    def refused(self, status: int, address: str, reason: str) -> None:
        """Count a refused request."""
        with self._lock:
            self.refusals[status] += 1
            kind: dict[str, str | int] = {"status": status, "address": address}
            kind["reason"] = printable(reason)[:200]
            known = self._repeated["refused"]
            if len(known) >= MAX_KINDS and tuple(kind.items()) not in known:
                kind |= {"address": "others", "reason": ""}
            self.repeated("refused", kind)

    def flush(self, now: bool = False) -> None:
        """Write how often events were repeated, once per minute or `now`."""
        with self._lock:
            if not now and self.clock() - self._since < WINDOW_SECONDS:
                return
            self._since = self.clock()
            repeated = dict(self._repeated)
            self._repeated.clear()
            for event, kinds in repeated.items():
                for kind, times in kinds.items():
                    if times:
                        self.event(event, **dict(kind), times=times)


def _append(path: Path, line: bytes) -> None:
    """Append a line; remove the incomplete line that a crash or a full disk may have left."""
    if path.exists() and path.stat().st_size >= MAX_BYTES:
        numbered = [path.with_stem(f"{path.stem}-{number}") for number in range(1, KEPT_FILES + 1)]
        for older, newer in reversed(list(pairwise([path, *numbered]))):
            if older.exists():
                older.replace(newer)
    with path.open("a+b") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - _TAIL_BYTES))
        tail = file.read()
        whole = size - len(tail) + tail.rfind(b"\n") + 1
        if whole < size:
            file.truncate(whole)
        file.write(line)


class AuditedRefusals:
    """Middleware that records every refused request; 410 (the run is over) is not a refusal."""

    def __init__(self, app: ASGIApp, audit: Audit) -> None:
        self.app, self.audit = app, audit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, and record it if it is refused."""
        status = 0

        async def observed_send(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            elif status >= 400 and status != 410:
                address = scope["client"][0] if scope.get("client") else "?"
                self.audit.refused(status, address, _reason(message.get("body", b"")))
                status = 0
            await send(message)

        await self.app(scope, receive, observed_send if scope["type"] == "http" else send)


def _reason(body: bytes) -> str:
    """Return the reason in the body of a refusal."""
    try:
        return str(parse_json(body)["detail"])
    except (ValueError, KeyError, TypeError):
        return ""
