"""Wake asyncio waiters from any thread."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress


class Notifier:
    """Wake all waiters of an event loop; `listen` is given the function that does so from any thread."""

    def __init__(self, listen: Callable[[Callable[[], None]], None]) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._event = asyncio.Event()
        self._scheduled = False
        self.closed = False
        listen(self._wake)

    def attach(self) -> None:
        """Use the running loop; call this before you check whether there is anything to wait for."""
        self._loop = asyncio.get_running_loop()

    def _wake(self) -> None:
        if self._loop is not None and not self._scheduled:
            self._scheduled = True
            with suppress(RuntimeError):  # the loop is closed once the server has stopped
                self._loop.call_soon_threadsafe(self._notify_all)

    def _notify_all(self) -> None:
        self._scheduled = False
        self._event.set()
        self._event = asyncio.Event()

    def close(self) -> None:
        """Wake all waiters because the server stops; nobody waits again."""
        self.closed = True
        self._wake()

    async def wait(self, seconds: float) -> None:
        """Wait until woken or until the time is up; return at once if closed."""
        if not self.closed:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._event.wait(), seconds)
