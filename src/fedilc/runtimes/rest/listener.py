"""Start and stop serving an app: the thread, its TLS, and what systemd is told.

What is started is the server of `http_server.py`, whose connections `connections.py` counts.
"""

from __future__ import annotations

import contextlib
import os
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from functools import partial

import uvicorn
from fastapi import FastAPI

from fedilc.errors import ConfigError
from fedilc.runtimes.rest.address import Address
from fedilc.runtimes.rest.audit import Audit
from fedilc.runtimes.rest.connections import Connections, raise_descriptor_limit
from fedilc.runtimes.rest.http_server import Server


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
