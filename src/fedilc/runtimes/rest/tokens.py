"""Bearer tokens: made once, shown once, kept as hashes, compared in constant time."""

from __future__ import annotations

import hashlib
import hmac
import json
import re
import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from fedilc.errors import ConfigError
from fedilc.federation.checkpoint import write_atomically

Kind = Literal["silos", "viewers"]
NAME = re.compile(r"[\w.\- ]{1,100}")
_NOBODY = hashlib.sha256(b"nobody").hexdigest()


def _hash(token: str) -> str:
    """Tokens are 256 random bits, so that one round of SHA-256 is enough."""
    return hashlib.sha256(token.encode()).hexdigest()


@dataclass(frozen=True)
class Tokens:
    """Who may speak for which silo, and who may watch."""

    silos: dict[str, str] = field(default_factory=dict)
    viewers: dict[str, str] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path) -> Tokens:
        """The tokens of a file that `add_token` wrote."""
        try:
            found = json.loads(path.read_text())
            kinds = {key: found.get(key, {}) for key in ("silos", "viewers")}
            if not all(isinstance(v, str) for kind in kinds.values() for v in kind.values()):
                raise ValueError("a token's hash is not text")
            return cls(**kinds)
        except OSError as error:
            raise ConfigError(
                f"the token file {path} cannot be read ({error.strerror}); make it with `fedilc token NAME "
                f"--tokens {path}`"
            ) from error
        except (ValueError, AttributeError, TypeError) as error:
            raise ConfigError(f"{path} is not a token file: {error}; make a new one") from error

    def is_silo(self, name: str, token: str) -> bool:
        """Whether the token is that of this silo."""
        return hmac.compare_digest(self.silos.get(name, _NOBODY), _hash(token))

    def may_watch(self, token: str) -> bool:
        """Whether the token is any viewer's or any silo's."""
        found = [
            hmac.compare_digest(known, _hash(token))
            for known in (*self.viewers.values(), *self.silos.values())
        ]
        return any(found)


def add_token(path: Path, name: str, kind: Kind = "silos", replace: bool = False) -> str:
    """Make a token for a name and keep its hash; the token itself is returned and kept nowhere."""
    if not NAME.fullmatch(name):
        raise ConfigError(
            f"{name!r} cannot name a silo or viewer; use letters, digits, spaces, points, dashes, at most 100"
        )
    tokens = Tokens.read(path) if path.exists() else Tokens()
    known = {"silos": dict(tokens.silos), "viewers": dict(tokens.viewers)}
    if name in known[kind] and not replace:
        raise ConfigError(f"{name!r} has a token in {path} already; make it a new one with --replace")
    token = secrets.token_urlsafe(32)
    known[kind][name] = _hash(token)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, (json.dumps(known, indent=2) + "\n").encode())
        path.chmod(0o600)
    except OSError as error:
        raise ConfigError(f"the token file {path} cannot be written: {error.strerror}") from error
    return token


class FailureLimit:
    """How often an address may fail to show a good token in a while."""

    def __init__(
        self, most: int = 10, seconds: float = 60.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.most, self.seconds, self.clock = most, seconds, clock
        self._failures: dict[str, list[float]] = {}
        self._lock = threading.Lock()

    def blocked(self, address: str) -> float:
        """For how many seconds the address must wait; 0 if it need not."""
        with self._lock:
            times = self._recent(address)
            return self.seconds - (self.clock() - times[0]) if len(times) >= self.most else 0.0

    def failed(self, address: str) -> None:
        """Remember a failure."""
        with self._lock:
            self._failures.setdefault(address, []).append(self.clock())
            if len(self._failures) > 10_000:
                self._failures = {key: times for key in self._failures if (times := self._recent(key))}

    def _recent(self, address: str) -> list[float]:
        times = [t for t in self._failures.get(address, []) if self.clock() - t < self.seconds][-self.most :]
        if address in self._failures:
            self._failures[address] = times
        return times
