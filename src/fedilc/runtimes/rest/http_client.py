"""A silo's connection to the coordinator: made again whenever it breaks, with pauses that grow and vary."""

from __future__ import annotations

import json
import random
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx

from fedilc.errors import ConfigError, FedILCError, printable
from fedilc.runtimes.rest.loopback import is_loopback

POLL_SECONDS = 25.0
LONGEST_PAUSE = 30.0
LONGEST_RETRY_AFTER = 120.0
MOST_BYTES = 4 << 20


class CoordinatorError(FedILCError):
    """The coordinator refuses this silo, or is not the one it joined."""


@dataclass(frozen=True)
class Answer:
    """What came back: a status and a body of limited size."""

    status: int
    body: bytes
    place: str | None = None
    media: str = ""

    def json(self) -> Any:
        """The body as JSON, None where it is none."""
        try:
            return json.loads(self.body)
        except (ValueError, RecursionError):
            return None

    @property
    def reason(self) -> str:
        """The one sentence of a refusal."""
        found = self.json()
        detail = found.get("detail") if isinstance(found, dict) else None
        if isinstance(detail, str):
            return printable(detail)[:500]
        where = f" and points to {printable(self.place)[:200]}" if self.place else ""
        return f"it answers {self.status}{where}"


@dataclass
class Line:
    """A coordinator's address, and how to keep calling it.

    The environment's proxy settings are followed, except to this machine itself.
    """

    url: str
    token: str | None
    authority: Path | None = None
    give_up_after: float | None = None
    allow_insecure: bool = False
    certificate: Path | None = None
    key: Path | None = None
    tell: Callable[[str], None] = lambda _: None
    sleep: Callable[[float], None] = time.sleep
    _client: httpx.Client = field(init=False)
    dice: random.Random = field(default_factory=random.Random)

    def __post_init__(self) -> None:
        host = self._host()
        headers = {"Accept-Encoding": "identity"}
        if self.token is not None:
            if (
                not self.token.isascii()
                or not self.token.isprintable()
                or " " in self.token
                or not self.token
            ):
                raise ConfigError(
                    "the token file does not hold a token; it is one line that `fedilc token` shows"
                )
            headers["Authorization"] = f"Bearer {self.token}"
        timeout = httpx.Timeout(20.0, read=POLL_SECONDS + 60.0, write=120.0)
        try:
            self._client = httpx.Client(
                base_url=self.url,
                headers=headers,
                verify=self._trusted(),
                timeout=timeout,
                trust_env=not is_loopback(host),
            )
        except (ValueError, ImportError) as error:
            raise ConfigError(f"the environment's proxy settings cannot be used: {error}") from error

    def _host(self) -> str:
        """The host of the address, or one sentence about what is wrong with it."""
        try:
            url = urlsplit(self.url)
            host, _port = url.hostname, url.port
            httpx.URL(self.url)
        except (httpx.InvalidURL, ValueError) as error:
            raise ConfigError(f"{self.url!r} is not an address like https://host:8443 ({error})") from error
        if url.scheme not in ("http", "https") or not host:
            raise ConfigError(f"{self.url!r} is not an address like https://host:8443")
        if url.scheme == "http" and not is_loopback(host) and not self.allow_insecure:
            raise ConfigError(
                f"{self.url} has no TLS, and token and gradients would travel in the open: use https://, or "
                "--allow-insecure if something else protects the connection"
            )
        return host

    def _trusted(self) -> ssl.SSLContext:
        try:
            if self.authority is None:
                context = httpx.create_ssl_context()
            else:
                context = ssl.create_default_context(cafile=str(self.authority))
        except (OSError, ssl.SSLError) as error:
            raise ConfigError(
                f"the authority's certificate {self.authority} cannot be used: {error}"
            ) from error
        if self.certificate is not None:
            try:
                context.load_cert_chain(self.certificate, self.key)
            except (OSError, ssl.SSLError) as error:
                raise ConfigError(f"--client-cert and --client-key cannot be used: {error}") from error
        return context

    def close(self) -> None:
        """Hang up."""
        self._client.close()

    def call(self, method: str, path: str, most: int = MOST_BYTES, **options: Any) -> Answer:
        """Make a request until it is answered; 5xx and 429 are waited out as well."""
        retries = Retries(self)
        while True:
            wait = 0.0
            try:
                with self._client.stream(method, path, **options) as response:
                    if response.status_code < 500 and response.status_code not in (408, 429):
                        return self._answer(response, most)
                    trouble = f"it answers {response.status_code}"
                    wait = _seconds(response.headers.get("retry-after", ""))
            except httpx.RequestError as error:
                trouble = str(error) or type(error).__name__
                self._require_hope(trouble, error)
            retries.pause(trouble, wait)

    def _answer(self, response: httpx.Response, most: int) -> Answer:
        """Read an answer as it is: what is encoded, against our wish, could be of any size once decoded."""
        encoding = response.headers.get("content-encoding", "identity")
        if encoding.strip().lower() != "identity":
            raise CoordinatorError(
                f"{self.url} sends an answer encoded as {printable(encoding)[:50]!r}, which was not asked "
                "for; let no proxy compress it"
            )
        parts, size = [], 0
        for part in response.iter_raw():
            size += len(part)
            if size > most:
                raise CoordinatorError(f"{self.url} sends more than the {most} bytes that this can take")
            parts.append(part)
        headers = response.headers
        media = headers.get("content-type", "")
        return Answer(response.status_code, b"".join(parts), headers.get("location"), media)

    def _require_hope(self, trouble: str, error: Exception) -> None:
        """Raise where to call again would change nothing."""
        if "CERTIFICATE_VERIFY_FAILED" in trouble:
            raise CoordinatorError(
                f"the certificate of {self.url} is not to be trusted: {trouble}; if its authority is one of "
                "your own, name that with --ca FILE"
            ) from error
        if "WRONG_VERSION_NUMBER" in trouble or "RECORD_LAYER_FAILURE" in trouble:
            raise CoordinatorError(f"{self.url} does not speak TLS; is its address http://?") from error
        if isinstance(error, httpx.UnsupportedProtocol | httpx.LocalProtocolError):
            raise CoordinatorError(f"{self.url} cannot be called: {trouble}") from error


@dataclass
class Retries:
    """Pauses between attempts at one thing, which grow and vary, until it is time to give up."""

    line: Line
    _since: float = field(default_factory=time.monotonic)
    _pause: float = 0.2

    def pause(self, trouble: str, least: float = 0.0) -> None:
        """Wait before the next attempt, at least so many seconds; raises when the time is over."""
        line = self.line
        wait = max(least, self._pause * line.dice.uniform(0.5, 1.5))
        left = None if line.give_up_after is None else self._since + line.give_up_after - time.monotonic()
        if left is not None and left <= 0:
            raise CoordinatorError(f"{line.url} could not be reached for {line.give_up_after:g} s: {trouble}")
        line.tell(f"waiting for the coordinator ({trouble})")
        line.sleep(wait if left is None else min(wait, left))
        self._pause = min(LONGEST_PAUSE, 2 * self._pause)


def _seconds(text: str) -> float:
    """A Retry-After in seconds; dates and nonsense are no reason to wait longer than otherwise."""
    try:
        return min(LONGEST_RETRY_AFTER, max(0.0, float(text)))
    except ValueError:
        return 0.0
