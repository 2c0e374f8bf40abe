"""Who may come in: bearer tokens, and the limit on wrong ones."""

from __future__ import annotations

from typing import Annotated

from fastapi import HTTPException, Path, Request

from fedilc.runtimes.rest.tokens import FailureLimit, Tokens

SiloName = Annotated[str, Path(description="the silo's name in the manifest", max_length=100)]


class Doors:
    """Checks bearer tokens, and slows down those who guess.

    Wrong tokens are counted by address and by the silo they claim to be, and answered with 429 after ten
    in a minute. A good token is always let in: behind a proxy all silos share an address, and one with a
    wrong token must not shut out the others; and 256 random bits are not guessed, at whatever rate.
    """

    def __init__(self, tokens: Tokens | None) -> None:
        self.tokens = tokens
        self.limit = FailureLimit()

    async def enter(self, request: Request) -> None:
        """Let in every silo and viewer."""
        if self.tokens is not None and not self.tokens.is_known(_token(request)):
            self._refuse(request, "")
        _trust(request)

    async def watch(self, request: Request) -> None:
        """Let in viewers; what a silo answered is no other silo's business."""
        if self.tokens is not None and not self.tokens.is_viewer(_token(request)):
            self._refuse(request, "")
        _trust(request)

    async def speak(self, request: Request, silo: SiloName) -> None:
        """Let in the silo itself."""
        if self.tokens is not None and not self.tokens.is_silo(silo, _token(request)):
            self._refuse(request, silo if silo in self.tokens.silos else "")
        _trust(request)

    def _refuse(self, request: Request, claim: str) -> None:
        address = request.client.host if request.client else "?"
        wait = self.limit.failed(f"{address} {claim}")
        if wait > 0:
            detail = f"too many wrong tokens from here; wait {wait:.0f} seconds"
            raise HTTPException(429, detail, {"Retry-After": str(int(wait) + 1)})
        detail = "this needs its bearer token; the coordinator's operator makes one with `fedilc token`"
        raise HTTPException(401, detail, {"WWW-Authenticate": "Bearer"})


def _token(request: Request) -> str:
    kind, _, token = request.headers.get("authorization", "").partition(" ")
    return token.strip() if kind.lower() == "bearer" else ""


def _trust(request: Request) -> None:
    """Exempt the request's connection from the limits on those that have shown no token."""
    connection = request.scope.get("state", {}).get("connection")
    if connection is not None:
        connection.trust()
