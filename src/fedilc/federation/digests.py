"""Digests by which a run's files are found to be as they were written."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Any

_KEY = "digest"


def chain_digest(lines: Iterable[bytes], head: str = "") -> str:
    """Return the digest of lines in their order, after those whose digest is `head`.

    >>> chain_digest([b"a", b"b"]) == chain_digest([b"b"], chain_digest([b"a"]))
    True
    >>> chain_digest([b"a", b"b"]) == chain_digest([b"b", b"a"])
    False
    """
    for line in lines:
        head = hashlib.sha256(head.encode() + line).hexdigest()
    return head


def with_digest(value: Mapping[str, Any], length: int = 64) -> dict[str, Any]:
    """Return a JSON object with the digest of its content, in `length` hexadecimal digits."""
    return {**value, _KEY: json_digest(value)[:length]}


def has_digest(value: Mapping[str, Any]) -> bool:
    """Return whether a JSON object has a digest, right or not."""
    return _KEY in value


def check_digest(value: Mapping[str, Any]) -> dict[str, Any]:
    """Return a JSON object without its digest, or raise ValueError if its content is another.

    >>> check_digest(with_digest({"round": 3}))
    {'round': 3}
    >>> check_digest(with_digest({"round": 3}) | {"round": 4})
    Traceback (most recent call last):
    ValueError: its content does not match its digest
    """
    content = {key: entry for key, entry in value.items() if key != _KEY}
    told = value.get(_KEY)
    if not isinstance(told, str) or not told or not json_digest(content).startswith(told):
        raise ValueError("its content does not match its digest")
    return content


def json_digest(value: Mapping[str, Any]) -> str:
    """Return the SHA-256 of a JSON object in canonical form."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()
