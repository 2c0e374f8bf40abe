"""Lets an event loop wait for what other threads change."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress


class Wakeup:
    """A bell for everybody who waits; `listen` is given what rings it, from whatever thread."""

    def __init__(self, listen: Callable[[Callable[[], None]], None]) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._event = asyncio.Event()
        self._ringing = False
        self.closed = False
        listen(self._wake)

    def attach(self) -> None:
        """Hear the bell in the running loop; to be called before looking whether there is need to wait."""
        self._loop = asyncio.get_running_loop()

    def _wake(self) -> None:
        if self._loop is not None and not self._ringing:
            self._ringing = True
            with suppress(RuntimeError):  # the loop is closed when the server stops
                self._loop.call_soon_threadsafe(self._ring)

    def _ring(self) -> None:
        self._ringing = False
        self._event.set()
        self._event = asyncio.Event()

    def close(self) -> None:
        """The server stops: wake everybody, and let nobody wait again."""
        self.closed = True
        self._wake()

    async def wait(self, seconds: float) -> None:
        """Until the bell rings, or the time is over; not at all once it is closed."""
        if not self.closed:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._event.wait(), seconds)
