"""Bearer tokens: made and shown once, stored as hashes, compared in constant time, with an expiry date.

`auth.py` uses them to admit or refuse a request.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Literal

from filelock import FileLock
from pydantic import AwareDatetime, BaseModel, StringConstraints, ValidationError

from fedilc.errors import ConfigError

Kind = Literal["silos", "viewers"]
NAME = re.compile(r"\w[\w.\- ]{0,98}\w|\w")
Hash = Annotated[str, StringConstraints(pattern="^[0-9a-f]{64}$")]
_NOBODY = "0" * 64
_MAX_ADDRESSES = 10_000
_RETRY_SECONDS = 1.0


def require_name(name: str) -> None:
    """Raise if a name cannot be part of a URL or of a token file."""
    if not NAME.fullmatch(name):
        raise ConfigError(
            f"{name!r} cannot name a silo or viewer over HTTP; use letters, digits, points, dashes and "
            "spaces, beginning and ending with a letter or digit, at most 100"
        )


def _hash(token: str) -> str:
    """Return a token's hash; tokens are 256 random bits, so one round of SHA-256 is enough."""
    return hashlib.sha256(token.encode()).hexdigest()


class Tokens(BaseModel):
    """The content of a token file.

    It has the hashes of the tokens of silos and viewers, when a token such as that of "silos/north" expires,
    and which silos a sub-coordinator may reply for.
    """

    silos: dict[str, Hash] = {}
    viewers: dict[str, Hash] = {}
    expires: dict[str, AwareDatetime] = {}
    carries: dict[str, list[str]] = {}

    @classmethod
    def read(cls, path: Path) -> Tokens:
        """Read a file that `add_token` wrote."""
        try:
            return cls.model_validate_json(path.read_bytes())
        except OSError as error:
            raise ConfigError(
                f"the token file {path} cannot be read ({error.strerror}); make it with `fedilc token NAME`"
            ) from error
        except ValidationError as error:
            first = error.errors(include_input=False)[0]
            where = ".".join(map(str, first["loc"]))
            reason = f"{where}: {first['msg']}" if where else first["msg"]
            raise ConfigError(f"{path} is not a token file ({reason}); make a new one") from error

    def current(self) -> Tokens:
        """Return these tokens; those of a `TokenFile` may change."""
        return self

    def admits(self, silo: str) -> bool:
        """Return whether a silo has a token, or a sub-coordinator with a token may reply for it."""
        below = any(silo in silos and name in self.silos for name, silos in self.carries.items())
        return silo in self.silos or below

    def is_silo(self, name: str, token: str) -> bool:
        """Return whether the token is that of this silo."""
        same = hmac.compare_digest(self.silos.get(name, _NOBODY), _hash(token))
        return same and self._is_valid("silos", name)

    def is_viewer(self, token: str) -> bool:
        """Return whether the token is any viewer's."""
        return self.owner(token, ("viewers",)) is not None

    def owner(self, token: str, kinds: Sequence[Kind] = ("viewers", "silos")) -> str | None:
        """Return whose token it is, such as "silos/north"; None if it is nobody's."""
        given = _hash(token)
        known = {
            f"{kind}/{name}": hmac.compare_digest(hashed, given) and self._is_valid(kind, name)
            for kind in kinds
            for name, hashed in self.of(kind).items()
        }
        return next((name for name, same in known.items() if same), None)

    def of(self, kind: Kind) -> dict[str, Hash]:
        """Return the hashes of silos' or viewers' tokens by name."""
        return self.silos if kind == "silos" else self.viewers

    def _is_valid(self, kind: Kind, name: str) -> bool:
        end = self.expires.get(f"{kind}/{name}")
        return end is None or datetime.now(UTC) < end


class TokenFile:
    """The tokens of a file, read again when it changes: a revoked token is refused at once.

    If the file cannot be read any more, the tokens read before stay valid, and `log` is called.
    """

    def __init__(self, path: Path, log: Callable[[str], None] = lambda _: None) -> None:
        self.path, self.log = path, log
        self._seen = self._stamp()
        self._tokens = Tokens.read(path)
        self.retry_at = 0.0

    def current(self) -> Tokens:
        """Return the tokens that are in the file now."""
        stamp = self._stamp()
        if stamp != self._seen and time.monotonic() >= self.retry_at:
            try:
                self._tokens = Tokens.read(self.path)
                self._seen = stamp
                self.log(f"the token file {self.path} was read again")
            except (ConfigError, OSError) as error:
                self.retry_at = time.monotonic() + _RETRY_SECONDS
                self.log(f"{error}; the tokens read before stay valid")
        return self._tokens

    def _stamp(self) -> tuple[int, int, int] | None:
        try:
            stored = self.path.stat()
        except OSError:
            return None
        return stored.st_mtime_ns, stored.st_size, stored.st_ino


def add_token(
    path: Path,
    name: str,
    kind: Kind = "silos",
    replace: bool = False,
    days: float | None = None,
    carries: Sequence[str] = (),
) -> str:
    """Make a token for a name and store its hash; return the token, which is stored nowhere.

    It is valid for `days`, or until it is replaced or revoked. With it, a sub-coordinator may reply for the
    silos in `carries`.
    """
    for one in (name, *carries):
        require_name(one)
    with _editing(path) as tokens:
        if name in tokens.of(kind) and not replace:
            raise ConfigError(f"{name!r} has a token in {path} already; replace it with `replace=True`")
        token = secrets.token_urlsafe(32)
        tokens.of(kind)[name] = _hash(token)
        tokens.expires.pop(f"{kind}/{name}", None)
        if carries:
            tokens.carries[name] = list(carries)
        if days is not None:
            end = datetime.now(UTC) + timedelta(days=days)
            tokens.expires[f"{kind}/{name}"] = end.replace(microsecond=0)
    return token


def revoke_token(path: Path, name: str, kind: Kind = "silos") -> None:
    """Revoke a name's token; a running coordinator refuses it from the next request on."""
    if not path.exists():
        raise ConfigError(f"{path} does not exist; name the token file with `tokens`")
    with _editing(path) as tokens:
        if tokens.of(kind).pop(name, None) is None:
            some = ", ".join(tokens.of(kind)) or "nobody"
            raise ConfigError(f"{name!r} has no token in {path}; its {kind} are {some}")
        tokens.expires.pop(f"{kind}/{name}", None)
        if kind == "silos":
            tokens.carries.pop(name, None)


@contextmanager
def _editing(path: Path) -> Iterator[Tokens]:
    """Yield the content of a token file, and write it at the end, locked against other processes."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(path.with_name(path.name + ".lock"), timeout=10):
            tokens = Tokens.read(path) if path.exists() else Tokens()
            yield tokens
            _write_private(path, tokens.model_dump_json(indent=2) + "\n")
    except OSError as error:
        raise ConfigError(
            f"the token file {path} cannot be written: {error.strerror or 'another process holds it'}"
        ) from error


def _write_private(path: Path, text: str) -> None:
    """Replace a file; only its owner, or those who could read it before, can read the new one."""
    temporary = path.with_name(path.name + ".tmp")
    temporary.unlink(missing_ok=True)
    with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        if path.exists():
            before = path.stat()
            with suppress(PermissionError):
                os.fchown(file.fileno(), before.st_uid, before.st_gid)
            os.fchmod(file.fileno(), before.st_mode & 0o770)
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


class FailureLimit:
    """A limit on how often an address may show a wrong token per minute."""

    def __init__(
        self, max_failures: int = 10, seconds: float = 60.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.max_failures, self.seconds, self.clock = max_failures, seconds, clock
        self.failures: dict[str, list[float]] = {}
        self._lock = threading.Lock()

    def failed(self, who: str) -> float:
        """Count a failure; return the seconds to wait, 0 if the limit is not reached."""
        with self._lock:
            now = self.clock()
            times = [then for then in self.failures.pop(who, []) if now - then < self.seconds]
            self.failures[who] = times
            if len(self.failures) > _MAX_ADDRESSES:
                self.failures.pop(next(iter(self.failures)))
            if len(times) >= self.max_failures:
                return self.seconds - (now - times[0])
            times.append(now)
            return 0.0
