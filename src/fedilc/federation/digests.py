"""Digests that show whether a run's JSON files and history are as they were written."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Any

_KEY = "digest"


def chain_digest(lines: Iterable[bytes], head: str = "") -> str:
    """Return the digest of lines in order, which follow the lines whose digest is `head`.

    >>> chain_digest([b"a", b"b"]) == chain_digest([b"b"], chain_digest([b"a"]))
    True
    >>> chain_digest([b"a", b"b"]) == chain_digest([b"b", b"a"])
    False
    """
    for line in lines:
        head = hashlib.sha256(head.encode() + line).hexdigest()
    return head


def with_digest(value: Mapping[str, Any], length: int = 64) -> dict[str, Any]:
    """Return a JSON object with a digest of its content, of `length` hexadecimal digits."""
    return {**value, _KEY: json_digest(value)[:length]}


def has_digest(value: Mapping[str, Any]) -> bool:
    """Return whether a JSON object has a digest, valid or not."""
    return _KEY in value


def check_digest(value: Mapping[str, Any]) -> dict[str, Any]:
    """Return a JSON object without its digest; raise ValueError if the digest is not that of its content.

    >>> check_digest(with_digest({"round": 3}))
    {'round': 3}
    >>> check_digest(with_digest({"round": 3}) | {"round": 4})
    Traceback (most recent call last):
    ValueError: its content does not match its digest
    """
    content = {key: entry for key, entry in value.items() if key != _KEY}
    stored = value.get(_KEY)
    if not isinstance(stored, str) or not stored or not json_digest(content).startswith(stored):
        raise ValueError("its content does not match its digest")
    return content


def json_digest(value: Mapping[str, Any]) -> str:
    """Return the SHA-256 of a JSON object in canonical form."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()
