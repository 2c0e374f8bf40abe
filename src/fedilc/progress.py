"""Progress of work that this process does itself: whoever starts it may show how far it is."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

Show = Callable[[str, int, int], None]  # is called with what is counted, how many are done, and all of them
T = TypeVar("T")
_show: ContextVar[Show | None] = ContextVar("show", default=None)


LINE_SECONDS = 5.0


def seldom(say: Callable[[str], object]) -> Show:
    """Return what says how far work is, if the last line, or this call, was a few seconds ago."""
    said = time.monotonic()

    def show(what: str, done: int, total: int) -> None:
        nonlocal said
        if time.monotonic() - said >= LINE_SECONDS:
            said = time.monotonic()
            say(f"{what}: {done} of {total}")

    return show


@contextmanager
def showing(show: Show) -> Iterator[None]:
    """Call `show` whenever work that is done inside, by this thread, says how far it is."""
    token = _show.set(show)
    try:
        yield
    finally:
        _show.reset(token)


def tell(what: str, done: int, total: int) -> None:
    """Say how far some work is, to those who show it."""
    if (show := _show.get()) is not None:
        show(what, done, total)


def counted(what: str, things: Sequence[T]) -> Iterator[T]:
    """Yield things to work on, and tell how many are done.

    >>> with showing(lambda *state: print(*state)):
    ...     found = [2 * number for number in counted("numbers", [1, 2])]
    numbers 0 2
    numbers 1 2
    numbers 2 2
    """
    for done, thing in enumerate(things):
        tell(what, done, len(things))
        yield thing
    tell(what, len(things), len(things))
