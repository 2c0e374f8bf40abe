"""Authenticate requests by bearer token or client certificate, and refuse those of others.

Tokens are made and shown once, stored as hashes, compared in constant time, and expire.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Literal

from fastapi import HTTPException, Request
from fastapi import Path as PathParameter
from fastapi.responses import JSONResponse
from filelock import FileLock
from pydantic import AwareDatetime, BaseModel, StringConstraints, ValidationError
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from fedilc.errors import ConfigError, listed
from fedilc.runtimes.rest.address import is_loopback
from fedilc.runtimes.rest.http_server import Connection

Kind = Literal["silos", "viewers"]
NAME = re.compile(r"\w[\w.\- ]{0,98}\w|\w")
Hash = Annotated[str, StringConstraints(pattern="^[0-9a-f]{64}$")]
_NOBODY = "0" * 64  # the hash of no token: names without one take as long to refuse as others
_MAX_ADDRESSES = 10_000
_RETRY_SECONDS = 1.0
SiloName = Annotated[str, PathParameter(description="the silo's name in the manifest", max_length=100)]


class Auth:
    """Checks of bearer tokens and client certificates.

    Wrong tokens are counted per address, and refused with 429 after ten per minute, whether the silo exists
    or not. A valid token is always accepted: behind a proxy all silos share an address, and one with a wrong
    token must not block the others. Nobody guesses 256 random bits, however often they try.

    A certificate that the authority in `client_ca` has signed authenticates the silo that it names. An
    authority signs many things: a certificate counts only if it names one of the run's `silos`, or a silo or
    sub-coordinator of the token file.
    """

    def __init__(self, tokens: Tokens | TokenFile | None, silos: Iterable[str] = ()) -> None:
        self._tokens = tokens
        self._silos = frozenset(silos)
        self.limit = FailureLimit()

    @property
    def tokens(self) -> Tokens | None:
        """Return the tokens that are valid now; None if none are needed."""
        return self._tokens.current() if self._tokens is not None else None

    async def require_token(self, request: Request) -> None:
        """Refuse all but silos and viewers."""
        self._require(request, ("viewers", "silos"))

    async def require_viewer(self, request: Request) -> str | None:
        """Refuse all but viewers: a silo must not see what another replied. Return who it is, if known."""
        return self._require(request, ("viewers",))

    async def require_any_silo(self, request: Request) -> None:
        """Refuse all but silos: weights are for those who trained them."""
        self._require(request, ("silos",))

    def _require(self, request: Request, kinds: Sequence[Kind]) -> str | None:
        """Refuse a request without a token of these kinds, or a silo's certificate; return whose it is."""
        tokens = self.tokens
        owner = tokens.owner(_token(request), kinds) if tokens is not None else None
        if owner is None and "silos" in kinds:
            owner = next((f"silos/{name}" for name in sorted(self._certified(request))), None)
        if owner is None and tokens is not None:
            self._refuse(request)
        _trust(request, owner)
        return owner

    def is_viewer(self, request: Request) -> bool:
        """Return whether the request's token is a viewer's now; it may be revoked while events are sent."""
        tokens = self.tokens
        return tokens is None or tokens.is_viewer(_token(request))

    async def require_silo(self, request: Request, silo: SiloName) -> None:
        """Refuse all but the silo itself."""
        tokens = self.tokens
        is_silo = tokens is None or tokens.is_silo(silo, _token(request)) or silo in self._certified(request)
        if not is_silo:
            self._refuse(request)
        _trust(request, f"silos/{silo}" if tokens is not None else None)

    def require_carries(self, request: Request, name: str, silos: Iterable[str]) -> None:
        """Refuse a sub-coordinator whose token or certificate is not for all these silos."""
        tokens = self.tokens
        if tokens is None:
            return
        for silo in silos:
            if silo not in tokens.carries.get(name, ()) and silo not in self._certified(request):
                raise HTTPException(
                    403,
                    f"{name!r} may not reply for silo {silo[:100]!r}; whoever runs this coordinator "
                    f"allows it with `fedilc token {name}` and its option carries",
                )

    def _certified(self, request: Request) -> frozenset[str]:
        """Return the names in the client's certificate, if one of them is known here."""
        names, tokens = _certificate_names(request), self.tokens
        known = self._silos | (tokens.silos.keys() if tokens is not None else frozenset())
        return names if names & known else frozenset()

    def _refuse(self, request: Request) -> None:
        wait = self.limit.failed(request.client.host if request.client else "?")
        if wait > 0:
            detail = f"too many wrong tokens from this address; wait {wait:.0f} seconds"
            raise HTTPException(429, detail, {"Retry-After": str(int(wait) + 1)})
        names = _certificate_names(request)
        if names and not self._certified(request):
            detail = f"the certificate names {listed(sorted(map(repr, names)))[:200]}"
            raise HTTPException(403, f"{detail}, which is no silo of this run and is not in its token file")
        detail = "this needs a valid bearer token; the coordinator's operator makes one with `fedilc token`"
        raise HTTPException(401, detail, {"WWW-Authenticate": "Bearer"})


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


def _token(request: Request) -> str:
    kind, _, token = request.headers.get("authorization", "").partition(" ")
    return token.strip() if kind.lower() == "bearer" else ""


def connection_of(scope: Scope) -> Connection | None:
    """Return the connection of a request; None without a network, as in tests."""
    connection: Connection | None = scope.get("state", {}).get("connection")
    return connection


def _certificate_names(request: Request) -> frozenset[str]:
    """Return the names in the client's certificate; none without one."""
    connection = connection_of(request.scope)
    return connection.names if connection is not None else frozenset()


def _trust(request: Request, credential: str | None) -> None:
    """Count the request's connection for its credential, no longer as an unknown one."""
    connection = connection_of(request.scope)
    if connection is not None:
        connection.trust(credential)


class OnlyLoopbackNames:
    """Middleware that refuses requests for hosts other than this machine, if there are no tokens.

    Otherwise a web page could let its own name point to 127.0.0.1, and a browser on this machine would send
    its requests here (DNS rebinding).
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on requests to this machine's own names; refuse others."""
        host = Headers(scope=scope).get("host", "localhost") if scope["type"] == "http" else "localhost"
        if is_loopback(_without_port(host)):
            await self.app(scope, receive, send)
        else:
            detail = "without tokens, the coordinator serves only localhost and its addresses"
            await JSONResponse({"detail": detail}, 421)(scope, receive, send)


def _without_port(host: str) -> str:
    """Return a host without its port.

    >>> [_without_port(host) for host in ("localhost:80", "[::1]:80", "[::1]", "127.0.0.1")]
    ['localhost', '::1', '::1', '127.0.0.1']
    """
    name, colon, port = host.rpartition(":")
    return (name if colon and port.isdecimal() else host).strip("[]")


def require_name(name: str) -> None:
    """Raise if a name cannot be part of a URL or of a token file."""
    if not NAME.fullmatch(name):
        raise ConfigError(
            f"{name!r} cannot name a silo or viewer over HTTP; use up to 100 letters, digits, points, dashes "
            "and spaces, beginning and ending with a letter or digit"
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
            raise ConfigError(f"{name!r} already has a token in {path}; replace it with `replace=True`")
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
