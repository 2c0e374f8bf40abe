"""Listen for HTTP: the coordinator's address and its TLS, and the thread that serves it."""

from __future__ import annotations

import contextlib
import os
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import uvicorn
from fastapi import FastAPI

from fedilc.errors import ConfigError
from fedilc.runtimes.rest.audit import Audit
from fedilc.runtimes.rest.connections import Connections, raise_descriptor_limit
from fedilc.runtimes.rest.exposure import is_loopback, warn_if_public
from fedilc.runtimes.rest.http_server import Server
from fedilc.runtimes.rest.tokens import TokenFile, Tokens


@dataclass(frozen=True)
class Address:
    """The address on which a coordinator listens, and how its connections are protected."""

    host: str = "127.0.0.1"
    port: int = 8443
    certificate: Path | None = None
    key: Path | None = None
    insecure: bool = False
    allow_insecure: bool = False
    client_authority: Path | None = None

    def require_safe(self, tokens: Tokens | TokenFile | None) -> None:
        """Raise if tokens or gradients would be sent without TLS although nobody allowed it."""
        if (self.certificate is None) != (self.key is None):
            raise ConfigError("--cert and --key belong together; give both")
        for path in (self.certificate, self.key, self.client_authority):
            if path is not None and not path.exists():
                raise ConfigError(f"{path} does not exist; give certificates and key as PEM files")
        if self.client_authority is not None and self.certificate is None:
            raise ConfigError(
                "--client-ca asks clients for certificates over TLS: give --cert and --key as well"
            )
        warn_if_public(self.key, "the key of the coordinator's certificate")
        local = is_loopback(self.host)
        if self.certificate is None and not (self.insecure or self.allow_insecure):
            raise ConfigError(
                "give --cert and --key for TLS, or --insecure to do without TLS on a loopback address"
            )
        if self.certificate is None and not local and not self.allow_insecure:
            raise ConfigError(
                f"--insecure is for loopback addresses, and {self.host} is not one: give --cert and --key, "
                "or --allow-insecure if something else protects the connection"
            )
        if tokens is None and not (local and self.insecure):
            raise ConfigError(
                "give --tokens FILE (make it with `fedilc token NAME`), or --client-ca; only --insecure on a "
                "loopback address needs neither"
            )

    def bind(self) -> socket.socket:
        """Return a listening socket; raise if the address cannot be used."""
        family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
        try:
            return socket.create_server((self.host, self.port), family=family, backlog=512)
        except (OSError, OverflowError) as error:
            reason = getattr(error, "strerror", None) or error
            raise ConfigError(f"cannot listen on {self.host} port {self.port}: {reason}") from error

    def url(self, port: int) -> str:
        """Return the URL that silos and browsers use."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self.certificate else 'http'}://{host}:{port}"


@contextlib.contextmanager
def listening(app: FastAPI, address: Address, sock: socket.socket | None = None) -> Iterator[int]:
    """Serve `app` in a thread while the context lasts; yield the port.

    At the end, viewers that wait for events and silos that wait for a task are woken first.
    """
    with sock or address.bind() as bound:
        connections = Connections(app.state.silos, raise_descriptor_limit())
        app.state.connections = connections
        server = Server(_config(app, address), connections, app.state.audit.refused)
        thread = threading.Thread(target=server.run, args=([bound],), name="fedilc-http", daemon=True)
        thread.start()
        try:
            while not server.started:
                if not thread.is_alive():
                    raise ConfigError(f"{address.host} port {address.port} cannot be served")
                time.sleep(0.01)
            yield bound.getsockname()[1]
        finally:
            for notifier in app.state.notifiers:
                notifier.close()
            server.should_exit = True
            thread.join(10)


def notify_systemd(state: str) -> None:
    """Send a state such as READY=1 to systemd (sd_notify); do nothing outside a service of Type=notify."""
    path = os.environ.get("NOTIFY_SOCKET", "")
    if not path:
        return
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.connect("\0" + path[1:] if path.startswith("@") else path)
        sock.sendall(state.encode())


def watchdog_seconds() -> float:
    """Return how often systemd wants to hear that the service is alive: twice per its WatchdogSec."""
    microseconds = os.environ.get("WATCHDOG_USEC", "")
    return int(microseconds) / 2e6 if microseconds.isdecimal() else 30.0


async def _alive(audit: Audit) -> None:
    """Tell systemd from the event loop that requests are served; write the sums of repeated events."""
    notify_systemd("WATCHDOG=1")
    audit.flush()


def _config(app: FastAPI, address: Address) -> uvicorn.Config:
    try:
        config = uvicorn.Config(
            app,
            ws="none",
            log_level="critical",
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=1,
            lifespan="off",
            callback_notify=partial(_alive, app.state.audit),
            timeout_notify=watchdog_seconds(),  # type: ignore[arg-type]  # uvicorn takes fractions too
            ssl_certfile=address.certificate,
            ssl_keyfile=address.key,
            ssl_ca_certs=str(address.client_authority) if address.client_authority else None,
            ssl_cert_reqs=ssl.CERT_OPTIONAL if address.client_authority else ssl.CERT_NONE,
        )
        config.load()
    except (ssl.SSLError, OSError) as error:
        raise ConfigError(f"the certificate or key cannot be used: {error}") from error
    return config
