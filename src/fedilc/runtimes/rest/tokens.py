"""Bearer tokens: made once, shown once, kept as hashes, compared in constant time."""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import re
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from filelock import FileLock

from fedilc.errors import ConfigError

Kind = Literal["silos", "viewers"]
NAME = re.compile(r"\w[\w.\- ]{0,98}\w|\w")
_HASH = re.compile(r"[0-9a-f]{64}")
_NOBODY = "0" * 64
_MOST_REMEMBERED = 10_000


def require_name(name: str) -> None:
    """Raise where a name cannot be part of an address or of a token file."""
    if not NAME.fullmatch(name):
        raise ConfigError(
            f"{name!r} cannot name a silo or viewer over HTTP; use letters, digits, points, dashes and "
            "spaces, beginning and ending with a letter or digit, at most 100"
        )


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
            if not all(_HASH.fullmatch(v) for kind in kinds.values() for v in kind.values()):
                raise ValueError("it holds what is not a token's hash")
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

    def is_viewer(self, token: str) -> bool:
        """Whether the token is any viewer's."""
        return _is_any(list(self.viewers.values()), token)

    def is_known(self, token: str) -> bool:
        """Whether the token is any viewer's or any silo's."""
        return _is_any([*self.viewers.values(), *self.silos.values()], token)


def _is_any(known: list[str], token: str) -> bool:
    given = _hash(token)
    found = [hmac.compare_digest(hashed, given) for hashed in known]
    return any(found)


def add_token(path: Path, name: str, kind: Kind = "silos", replace: bool = False) -> str:
    """Make a token for a name and keep its hash; the token itself is returned and kept nowhere."""
    require_name(name)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(path.with_name(path.name + ".lock"), timeout=10):
            tokens = Tokens.read(path) if path.exists() else Tokens()
            known = {"silos": dict(tokens.silos), "viewers": dict(tokens.viewers)}
            if name in known[kind] and not replace:
                raise ConfigError(f"{name!r} has a token in {path} already; make it a new one with --replace")
            token = secrets.token_urlsafe(32)
            known[kind][name] = _hash(token)
            _write_private(path, json.dumps(known, indent=2) + "\n")
    except OSError as error:
        raise ConfigError(
            f"the token file {path} cannot be written: {error.strerror or 'another process holds it'}"
        ) from error
    return token


def _write_private(path: Path, text: str) -> None:
    """Replace a file by one that only its owner can read, from its first byte on."""
    temporary = path.with_name(path.name + ".tmp")
    temporary.unlink(missing_ok=True)
    with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


class FailureLimit:
    """How often somebody may fail to show a good token in a while."""

    def __init__(
        self, most: int = 10, seconds: float = 60.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.most, self.seconds, self.clock = most, seconds, clock
        self._failures: dict[str, deque[float]] = {}
        self._lock = threading.Lock()

    def failed(self, who: str) -> float:
        """Count a failure; for how many seconds they should wait, 0 if this was not one too many."""
        with self._lock:
            now = self.clock()
            times = self._failures.pop(who, deque())
            while times and now - times[0] >= self.seconds:
                times.popleft()
            self._failures[who] = times
            if len(self._failures) > _MOST_REMEMBERED:
                self._failures.pop(next(iter(self._failures)))
            if len(times) >= self.most:
                return self.seconds - (now - times[0])
            times.append(now)
            return 0.0
