"""A silo's HTTP client, which retries with growing random pauses until a response comes."""

from __future__ import annotations

import json
import random
import re
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol
from urllib.parse import urlsplit

import httpx

from fedilc.errors import ConfigError, FedILCError, printable
from fedilc.runtimes.rest.address import is_loopback
from fedilc.storage.run_folder import PREPROCESSING

POLL_SECONDS = 25.0
MAX_PAUSE_SECONDS = 30.0
MAX_RETRY_AFTER_SECONDS = 120.0
MAX_BYTES = 4 << 20
MAX_DESCRIPTION_BYTES = 16 << 20
MAX_MODEL_BYTES = (1 << 30) + (1 << 20)  # 2**28 numbers, the largest network that a silo builds by default
PUBLISHED_WEIGHTS = "best-validation.safetensors"
Kind = Literal["event", "round", "waiting"]


class CoordinatorError(FedILCError):
    """The coordinator refuses this silo, or is not the one it joined."""


@dataclass(frozen=True)
class Response:
    """A status and a body of limited size."""

    status: int
    body: bytes
    location: str | None = None
    media: str = ""

    def json(self) -> Any:
        """Return the body as JSON, or None if it is not JSON."""
        try:
            return json.loads(self.body)
        except (ValueError, RecursionError):
            return None

    @property
    def reason(self) -> str:
        """Return the reason of a refusal in one sentence."""
        body = self.json()
        detail = body.get("detail") if isinstance(body, dict) else None
        if isinstance(detail, str):
            return printable(detail)[:500]
        where = f" and points to {printable(self.location)[:200]}" if self.location else ""
        return f"it responds with status {self.status}{where}"


class SiloLog(Protocol):
    """A function that receives a sentence on what a silo does, and its kind: a round, waiting, an event."""

    def __call__(self, sentence: str, kind: Kind = "event", /) -> None:
        """Receive a sentence."""


def no_log(_sentence: str, _kind: Kind = "event", /) -> None:
    """Ignore a sentence."""


@dataclass
class HttpClient:
    """A client of one coordinator, which retries until it succeeds or `give_up_after` seconds have passed.

    It uses the environment's proxy settings, except for a coordinator on this machine.
    """

    url: str
    token: str | None
    authority: Path | None = None
    give_up_after: float | None = None
    allow_insecure: bool = False
    certificate: Path | None = None
    key: Path | None = None
    log: SiloLog = no_log
    sleep: Callable[[float], None] = time.sleep
    _client: httpx.Client = field(init=False)
    rng: random.Random = field(default_factory=random.Random)

    def __post_init__(self) -> None:
        host = self._host()
        headers = {"Accept-Encoding": "identity"}
        if self.token is not None:
            if not re.fullmatch(r"[\x21-\x7e]+", self.token):
                raise ConfigError(
                    "the token file does not hold a token; a token is the single line that `fedilc token` "
                    "prints"
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
        """Return the host of the address; raise if the address is not usable or not safe."""
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
                f"{self.url} has no TLS, so others could read the token and gradients: use https://, "
                "or `allow_insecure=True` if something else protects the connection"
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
                raise ConfigError(f"`client_cert` and `client_key` cannot be used: {error}") from error
        return context

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def call(self, method: str, path: str, max_bytes: int = MAX_BYTES, **options: Any) -> Response:
        """Send a request until a response comes; retry 408, 429 and 5xx too."""
        retries = Retries(self)
        while True:
            wait = 0.0
            try:
                with self._client.stream(method, path, **options) as response:
                    if response.status_code < 500 and response.status_code not in (408, 429):
                        return self._read(response, max_bytes)
                    trouble = f"it responds with status {response.status_code}"
                    wait = _seconds(response.headers.get("retry-after", ""))
            except httpx.RequestError as error:
                trouble = str(error) or type(error).__name__
                self._require_retryable(trouble, error)
            retries.pause(trouble, wait)

    def _read(self, response: httpx.Response, max_bytes: int) -> Response:
        """Read a response of limited size; refuse an encoded one, whose size after decoding is unknown."""
        encoding = response.headers.get("content-encoding", "identity")
        if encoding.strip().lower() != "identity":
            raise CoordinatorError(
                f"{self.url} sends a response encoded as {printable(encoding)[:50]!r}, which was not asked "
                "for; switch off compression in the proxy"
            )
        parts, size = [], 0
        for part in response.iter_raw():
            size += len(part)
            if size > max_bytes:
                raise CoordinatorError(f"{self.url} sends more than the {max_bytes} bytes expected")
            parts.append(part)
        location, media = response.headers.get("location"), response.headers.get("content-type", "")
        return Response(response.status_code, b"".join(parts), location, media)

    def _require_retryable(self, trouble: str, error: Exception) -> None:
        """Raise if a retry cannot help."""
        reason = _tls_reason(error)
        if reason == "CERTIFICATE_VERIFY_FAILED":
            raise CoordinatorError(
                f"the certificate of {self.url} is not trusted: {trouble}; if you have your own certificate "
                "authority, name it with `ca=FILE`"
            ) from error
        if reason in ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE"):
            raise CoordinatorError(
                f"{self.url} does not use TLS; does its address begin with http://?"
            ) from error
        if isinstance(error, httpx.UnsupportedProtocol | httpx.LocalProtocolError):
            raise CoordinatorError(f"{self.url} cannot be called: {trouble}") from error


def _tls_reason(error: BaseException | None) -> str | None:
    """Return OpenSSL's name of the fault, from the TLS error that caused this one; None without one."""
    while error is not None and not isinstance(error, ssl.SSLError):
        error = error.__cause__ or error.__context__
    return None if error is None else error.reason


@dataclass
class Retries:
    """Growing random pauses between the attempts of one request, until it is time to give up."""

    http: HttpClient
    _since: float = field(default_factory=time.monotonic)
    _pause: float = 0.2

    def pause(self, trouble: str, least: float = 0.0) -> None:
        """Wait `least` seconds or longer before the next attempt; raise if the time is up."""
        http = self.http
        wait = max(least, self._pause * http.rng.uniform(0.5, 1.5))
        left = None if http.give_up_after is None else self._since + http.give_up_after - time.monotonic()
        if left is not None and left <= 0:
            raise CoordinatorError(f"{http.url} could not be reached for {http.give_up_after:g} s: {trouble}")
        http.log(f"waiting for the coordinator ({trouble})", "waiting")
        http.sleep(wait if left is None else min(wait, left))
        self._pause = min(MAX_PAUSE_SECONDS, 2 * self._pause)


def _seconds(text: str) -> float:
    """Return a Retry-After in seconds; 0 if it is a date or not valid."""
    try:
        return min(MAX_RETRY_AFTER_SECONDS, max(0.0, float(text)))
    except ValueError:
        return 0.0


def fetch_run(client: HttpClient, folder: Path) -> None:
    """Download the files of a published run that `fedilc.load` needs into a folder."""
    about = _get_published(client, "/v1/model", MAX_DESCRIPTION_BYTES).json()
    if not isinstance(about, dict) or not isinstance(about.get("run"), dict):
        raise CoordinatorError(f"{client.url} does not respond with a model")
    (folder / "run.json").write_text(json.dumps(about["run"]))
    if about.get("preprocessing") is not None:
        (folder / PREPROCESSING).write_text(json.dumps(about["preprocessing"]))
    weights = _get_published(client, "/v1/model/weights", MAX_MODEL_BYTES)
    (folder / PUBLISHED_WEIGHTS).write_bytes(weights.body)


def _get_published(client: HttpClient, path: str, max_bytes: int) -> Response:
    response = client.call("GET", path, max_bytes)
    if response.status in (401, 403):
        raise ConfigError(
            f"{client.url} refuses the model: {response.reason}; give a silo's token with `token_file`"
        )
    if response.status != 200:
        raise CoordinatorError(
            f"{client.url} publishes no model ({response.reason}); its operator can publish one with `fedilc "
            "serve` and the option view"
        )
    return response
