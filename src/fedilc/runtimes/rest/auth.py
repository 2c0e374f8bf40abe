"""Who may come in: bearer tokens, and the limit on wrong ones."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

from fastapi import HTTPException, Path, Request
from fastapi.responses import JSONResponse
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from fedilc.runtimes.rest.http_server import Accepted
from fedilc.runtimes.rest.loopback import is_loopback
from fedilc.runtimes.rest.tokens import FailureLimit, TokenFile, Tokens

SiloName = Annotated[str, Path(description="the silo's name in the manifest", max_length=100)]


class Doors:
    """Checks bearer tokens and client certificates, and slows down those who guess.

    Wrong tokens are counted by address, and answered with 429 after ten in a minute, the same whether or not
    the silo exists. A good token is always let in: behind a proxy all silos share an address, and one with a
    wrong token must not shut out the others; and 256 random bits are not guessed, at whatever rate.

    A certificate that the coordinator's `--client-ca` vouches for speaks for the silo that it names.
    """

    def __init__(self, tokens: Tokens | TokenFile | None) -> None:
        self._tokens = tokens
        self.limit = FailureLimit()

    @property
    def tokens(self) -> Tokens | None:
        """The tokens that are good now; None if everybody is let in."""
        return self._tokens.current() if self._tokens is not None else None

    async def enter(self, request: Request) -> None:
        """Let in every silo and viewer."""
        tokens, certified = self.tokens, _certified(request)
        owner = tokens.owner(_token(request)) if tokens is not None else None
        if tokens is not None and owner is None and not certified:
            self._refuse(request)
        _trust(request, owner or (f"silos/{min(certified)}" if certified else None))

    async def watch(self, request: Request) -> None:
        """Let in viewers; what a silo answered is no other silo's business."""
        if not self.may_watch(request):
            self._refuse(request)
        _trust(request, self.tokens.owner(_token(request)) if self.tokens is not None else None)

    def may_watch(self, request: Request) -> bool:
        """Return whether the request's token is a viewer's now; it may be revoked while events are sent."""
        tokens = self.tokens
        return tokens is None or tokens.is_viewer(_token(request))

    async def speak(self, request: Request, silo: SiloName) -> None:
        """Let in the silo itself."""
        tokens = self.tokens
        speaks = tokens is None or tokens.is_silo(silo, _token(request)) or silo in _certified(request)
        if not speaks:
            self._refuse(request)
        _trust(request, f"silos/{silo}" if tokens is not None else None)

    def require_carries(self, request: Request, carrier: str, silos: Iterable[str]) -> None:
        """Let in a sub-coordinator with these silos, if its token or its certificate is for all of them."""
        tokens = self.tokens
        if tokens is None:
            return
        for silo in silos:
            if silo not in tokens.carries.get(carrier, ()) and silo not in _certified(request):
                raise HTTPException(
                    403,
                    f"{carrier!r} may not answer for silo {silo[:100]!r}; whoever runs this coordinator "
                    f"allows it with `fedilc token {carrier} --carries`",
                )

    def _refuse(self, request: Request) -> None:
        wait = self.limit.failed(request.client.host if request.client else "?")
        if wait > 0:
            detail = f"too many wrong tokens from here; wait {wait:.0f} seconds"
            raise HTTPException(429, detail, {"Retry-After": str(int(wait) + 1)})
        detail = "this needs its bearer token; the coordinator's operator makes one with `fedilc token`"
        raise HTTPException(401, detail, {"WWW-Authenticate": "Bearer"})


def _token(request: Request) -> str:
    kind, _, token = request.headers.get("authorization", "").partition(" ")
    return token.strip() if kind.lower() == "bearer" else ""


def _connection(request: Request) -> Accepted | None:
    """The connection that a request came by; None without a network, as in tests."""
    found: Accepted | None = request.scope.get("state", {}).get("connection")
    return found


def _certified(request: Request) -> frozenset[str]:
    """The names that the client's certificate is for; none without one."""
    connection = _connection(request)
    return connection.names if connection is not None else frozenset()


def _trust(request: Request, credential: str | None) -> None:
    """Count the request's connection for its credential, no longer among those that have shown none."""
    connection = _connection(request)
    if connection is not None:
        connection.trust(credential)


class OnlyLoopbackNames:
    """Refuses requests for hosts other than this machine itself, if there are no tokens.

    A page on the web could otherwise let its own name point to 127.0.0.1 and have a browser on this machine
    ask for it (DNS rebinding).
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        host = Headers(scope=scope).get("host", "localhost") if scope["type"] == "http" else "localhost"
        if is_loopback(_without_port(host)):
            await self.app(scope, receive, send)
        else:
            detail = "without tokens, the coordinator answers to localhost and its addresses only"
            await JSONResponse({"detail": detail}, 421)(scope, receive, send)


def _without_port(host: str) -> str:
    """A host without its port.

    >>> [_without_port(host) for host in ("localhost:80", "[::1]:80", "[::1]", "127.0.0.1")]
    ['localhost', '::1', '::1', '127.0.0.1']
    """
    name, colon, port = host.rpartition(":")
    return (name if colon and port.isdecimal() else host).strip("[]")
