"""Answers that come faster than they are added up: in memory while there is room, else in the run folder.

If all silos answer at once, or over slow lines, their answers must not fill the memory: what does not fit
into `MEMORY_BYTES` goes to files without a name, which are gone with the process.
"""

from __future__ import annotations

import asyncio
import tempfile
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from fedilc.federation import Carried, Reply

MEMORY_BYTES = 12 << 20
READ_AT_ONCE = 16
TURN_SECONDS = 0.25


class Turns:
    """How many large bodies are read at once, since each may have 300 kB on their way to the application.

    A body that takes longer than a quarter of a second is read on, but does not keep others waiting any more:
    neither slow lines nor silos that stand still hold up a round.
    """

    def __init__(self, most: int = READ_AT_ONCE) -> None:
        self._free = asyncio.Semaphore(most)

    @asynccontextmanager
    async def one(self) -> AsyncIterator[None]:
        """While a body is read."""
        await self._free.acquire()
        held = True

        def release() -> None:
            nonlocal held
            if held:
                held = False
                self._free.release()

        timer = asyncio.get_running_loop().call_later(TURN_SECONDS, release)
        try:
            yield
        finally:
            timer.cancel()
            release()


class Spool:
    """How many bytes of answers are in memory now, and the folder for those beyond."""

    def __init__(self, folder: Path | None = None, most: int = MEMORY_BYTES) -> None:
        self.folder, self.most = folder, most
        self.held = 0
        self._larger: object = None
        self._lock = threading.RLock()  # a body may be collected while the lock is held

    def take(self, size: int) -> bool:
        """Count bytes in memory, if there is room."""
        with self._lock:
            if self.held + size > self.most:
                return False
            self.held += size
            return True

    def exceed(self, size: int, body: object) -> bool:
        """Count bytes of one body beyond the room, if no other does so: a full disk ends no round."""
        with self._lock:
            if self._larger not in (None, id(body)):
                return False
            self._larger = id(body)
            self.held += size
            return True

    def give_back(self, size: int, body: object) -> None:
        """Count bytes in memory no longer."""
        with self._lock:
            self.held -= size
            if self._larger == id(body):
                self._larger = None


@dataclass
class Body:
    """The body of a silo's request as it comes in."""

    spool: Spool
    size: int = 0
    _parts: list[bytes] = field(default_factory=list)
    _file: IO[bytes] | None = None
    _counted: int = 0

    def write(self, part: bytes) -> None:
        """Add a part; raises OSError if there is no room, neither in memory nor on the disk."""
        self.size += len(part)
        if self._file is None and self.spool.take(len(part)):
            self._keep(part)
            return
        if self._file is None:
            try:
                self._move_to_disk()
            except OSError:
                if not self.spool.exceed(len(part), self):
                    raise
                self._keep(part)
                return
        assert self._file is not None
        self._file.write(part)

    def _keep(self, part: bytes) -> None:
        self._counted += len(part)
        self._parts.append(part)

    def _move_to_disk(self) -> None:
        file = tempfile.TemporaryFile(dir=self.spool.folder)  # noqa: SIM115 - lives as long as the body
        file.writelines(self._parts)
        self._file = file
        self.forget()

    @property
    def on_disk(self) -> bool:
        """Whether there was no room for it in memory."""
        return self._file is not None

    def content(self) -> bytes:
        """Return all of it."""
        if self._file is not None:
            self._file.seek(0)
            return self._file.read()
        if len(self._parts) > 1:
            self._parts = [b"".join(self._parts)]
        return self._parts[0] if self._parts else b""

    def drop_parts(self) -> None:
        """Let go of the bytes; the tensors read from them take their place, and their count."""
        self._parts.clear()

    def forget(self) -> None:
        """Hold it in memory no longer."""
        self._parts.clear()
        self.spool.give_back(self._counted, self)
        self._counted = 0

    def __del__(self) -> None:
        self.forget()


@dataclass
class HeldReply:
    """An answer that was taken and waits for its turn: decoded, or as bytes on the disk."""

    silos: tuple[str, ...]
    _reply: Reply | Carried | None
    _read: Callable[[bytes], Reply | Carried]
    _body: Body | None = None

    def reply(self) -> Reply | Carried:
        """Return the answer, once."""
        reply, body = self._reply, self._body
        self._reply = self._body = None
        if reply is None:
            assert body is not None
            return self._read(body.content())
        if body is not None:
            body.forget()
        return reply


def hold(reply: Reply | Carried, read: Callable[[bytes], Reply | Carried], body: bytes | Body) -> HeldReply:
    """Hold an answer that is not added up yet; the bytes that it was read from are kept on the disk only."""
    if isinstance(body, bytes):
        return HeldReply(reply.silos, reply, read)
    if body.on_disk:
        return HeldReply(reply.silos, None, read, body)
    body.drop_parts()
    return HeldReply(reply.silos, reply, read, body)
