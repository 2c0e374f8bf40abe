"""Authenticate requests by bearer token or client certificate, and refuse those of others.

`tokens.py` compares tokens, knows when they expire, and counts wrong ones per address (`FailureLimit`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated

from fastapi import HTTPException, Request
from fastapi import Path as PathParameter
from fastapi.responses import JSONResponse
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from fedilc.errors import listed
from fedilc.runtimes.rest.address import is_loopback
from fedilc.runtimes.rest.http_server import Connection
from fedilc.runtimes.rest.tokens import FailureLimit, Kind, TokenFile, Tokens

SiloName = Annotated[str, PathParameter(description="the silo's name in the manifest", max_length=100)]


class Auth:
    """Checks of bearer tokens and client certificates.

    Wrong tokens are counted per address, and refused with 429 after ten per minute, whether or not the silo
    exists. A valid token is always accepted: behind a proxy all silos share an address, and one with a wrong
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
