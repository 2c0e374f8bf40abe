"""Store replies that arrive faster than they are added up: in memory while there is room, else on disk.

If all silos reply at once, or over slow connections, their replies must not fill the memory: what does not
fit into `MEMORY_BYTES` is written to temporary files, which are deleted with the process.
"""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from fedilc.federation import AggregatedReply, Reply

MEMORY_BYTES = 12 << 20


class Spool:
    """The count of bytes of replies in memory, and the folder for replies that do not fit."""

    def __init__(self, folder: Path | None = None, max_bytes: int = MEMORY_BYTES) -> None:
        self.folder, self.max_bytes = folder, max_bytes
        self.held = 0
        self._larger: object = None
        self._lock = threading.RLock()  # a body may be collected while the lock is held

    def take(self, size: int) -> bool:
        """Count bytes in memory; return whether there is room."""
        with self._lock:
            if self.held + size > self.max_bytes:
                return False
            self.held += size
            return True

    def exceed(self, size: int, body: object) -> bool:
        """Let one body at a time exceed the limit, so that a full disk does not end the round."""
        with self._lock:
            if self._larger not in (None, id(body)):
                return False
            self._larger = id(body)
            self.held += size
            return True

    def give_back(self, size: int, body: object) -> None:
        """Stop counting bytes in memory."""
        with self._lock:
            self.held -= size
            if self._larger == id(body):
                self._larger = None


@dataclass
class Body:
    """The body of a silo's request while it is received."""

    spool: Spool
    size: int = 0
    _parts: list[bytes] = field(default_factory=list)
    _file: IO[bytes] | None = None
    _counted: int = 0

    def write(self, part: bytes) -> None:
        """Add a part; raise OSError if there is no room, neither in memory nor on disk."""
        self.size += len(part)
        if self._file is None and not self.spool.take(len(part)):
            try:
                self._move_to_disk()
            except OSError:
                if not self.spool.exceed(len(part), self):
                    raise
        if self._file is not None:
            self._file.write(part)
        else:
            self._counted += len(part)
            self._parts.append(part)

    def _move_to_disk(self) -> None:
        file = tempfile.TemporaryFile(dir=self.spool.folder)  # noqa: SIM115 - lives as long as the body
        file.writelines(self._parts)
        self._file = file
        self.forget()

    @property
    def on_disk(self) -> bool:
        """Return whether the body is on disk, because there was no room in memory."""
        return self._file is not None

    def content(self) -> bytes:
        """Return the whole body."""
        if self._file is not None:
            self._file.seek(0)
            return self._file.read()
        if len(self._parts) > 1:
            self._parts = [b"".join(self._parts)]
        return self._parts[0] if self._parts else b""

    def drop_parts(self) -> None:
        """Release the bytes, but keep counting them: the decoded tensors take as much memory."""
        self._parts.clear()

    def forget(self) -> None:
        """Release the body from memory."""
        self._parts.clear()
        self.spool.give_back(self._counted, self)
        self._counted = 0

    def __del__(self) -> None:
        self.forget()


class SpooledReply:
    """An accepted reply that waits to be added up: decoded, or as bytes if its body is on disk."""

    def __init__(
        self, reply: Reply | AggregatedReply, read: Callable[[bytes], Reply | AggregatedReply], body: Body
    ) -> None:
        self.silos = reply.silos
        self._reply = None if body.on_disk else reply
        self._read, self._body = read, body
        if not body.on_disk:
            body.drop_parts()

    def reply(self) -> Reply | AggregatedReply:
        """Return the reply, which is no longer kept here; call this only once."""
        reply, self._reply = self._reply, None
        if reply is None:
            return self._read(self._body.content())
        self._body.forget()
        return reply
