"""Keep freed memory inside the process while gradients are computed.

glibc returns every large block to the system as soon as it is freed. The activations of a chunk are such
blocks, and the next chunk needs them again: up to 40 % of a round of the paper's CNN went into the kernel,
which unmaps pages and clears new ones. From its first gradient on, a `ModelRunner` keeps freed blocks in the
heap, where they are used again; when the last one is gone, they are returned.
"""

from __future__ import annotations

import ctypes
import platform
import threading
import weakref
from functools import cache
from typing import Any

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # mallopt's own numbers
_KEEP = 2**31 - 1
_RETURN = 32 << 20  # glibc's own upper bound for the sizes it adapts to

_lock = threading.Lock()
_users = 0


def keep_freed_memory(owner: object) -> None:
    """Keep what is freed for as long as `owner` exists; without effect if the C library is not glibc."""
    global _users
    if _glibc() is None:
        return
    with _lock:
        _users += 1
        if _users == 1:
            _set_thresholds(_KEEP)
    weakref.finalize(owner, _release).atexit = False


def return_freed_memory(least: int) -> None:
    """Give blocks of at least this many bytes back to the system when they are freed.

    For a process that holds large messages for a moment, in many threads: glibc would keep up to 32 MB of
    freed blocks in the heap of each.
    """
    if _glibc() is not None:
        _glibc().mallopt(_MMAP_THRESHOLD, least)


def _release() -> None:
    global _users
    with _lock:
        _users -= 1
        if _users == 0:
            _set_thresholds(_RETURN)
            _glibc().malloc_trim(0)


def _set_thresholds(size: int) -> None:
    _glibc().mallopt(_MMAP_THRESHOLD, size)
    _glibc().mallopt(_TRIM_THRESHOLD, size)


@cache
def _glibc() -> Any:
    return ctypes.CDLL(None) if platform.libc_ver()[0] == "glibc" else None
