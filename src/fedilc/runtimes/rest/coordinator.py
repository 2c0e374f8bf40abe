"""A coordinator: the training loop in this thread, HTTP in another, both at one board."""

from __future__ import annotations

import contextlib
import ipaddress
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import uvicorn
from fastapi import FastAPI
from torch import nn

from fedilc.assembly import Outline
from fedilc.callbacks import Callback, Run
from fedilc.config import Experiment
from fedilc.errors import ConfigError
from fedilc.federation import Record, RunFolder, Runtime, Task
from fedilc.runtimes.rest.app import make_app
from fedilc.runtimes.rest.board import Board
from fedilc.runtimes.rest.manifest import Manifest, ModelSpec, Wire, make_manifest
from fedilc.runtimes.rest.runtime import RestRuntime
from fedilc.runtimes.rest.tokens import Tokens
from fedilc.training import Result, Training

FAREWELL_SECONDS = 15.0


@dataclass(frozen=True)
class Address:
    """Where the coordinator listens, and how its connections are protected."""

    host: str = "127.0.0.1"
    port: int = 8443
    certificate: Path | None = None
    key: Path | None = None
    insecure: bool = False
    allow_insecure: bool = False

    def require_safe(self, tokens: Tokens | None) -> None:
        """Raise where tokens or gradients would travel in the open without being told to."""
        if (self.certificate is None) != (self.key is None):
            raise ConfigError("--cert and --key belong together; give both")
        for path in (self.certificate, self.key):
            if path is not None and not path.exists():
                raise ConfigError(f"{path} does not exist; give the certificate and key as PEM files")
        local = _is_loopback(self.host)
        if self.certificate is None and not (self.insecure or self.allow_insecure):
            raise ConfigError(
                "give --cert and --key for TLS, or --insecure to go without on this machine's own address"
            )
        if self.certificate is None and not local and not self.allow_insecure:
            raise ConfigError(
                f"--insecure is for loopback addresses, and {self.host} is not one: give --cert and --key, "
                "or --allow-insecure if something else protects the connection"
            )
        if tokens is None and not (local and self.insecure):
            raise ConfigError(
                "give --tokens FILE (make it with `fedilc token NAME`); only --insecure on a loopback "
                "address goes without"
            )

    def bind(self) -> socket.socket:
        """A socket that listens, or one sentence about why it cannot."""
        family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
        try:
            return socket.create_server((self.host, self.port), family=family, backlog=512)
        except (OSError, OverflowError) as error:
            reason = getattr(error, "strerror", None) or error
            raise ConfigError(f"cannot listen on {self.host} port {self.port}: {reason}") from error

    def url(self, port: int) -> str:
        """How silos and browsers call it."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self.certificate else 'http'}://{host}:{port}"


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


@contextlib.contextmanager
def listening(app: FastAPI, address: Address) -> Iterator[int]:
    """Serve `app` in a thread while the context lasts; yields the port."""
    sock = address.bind()
    try:
        config = uvicorn.Config(
            app,
            log_level="error",
            access_log=False,
            timeout_graceful_shutdown=2,
            lifespan="off",
            ssl_certfile=address.certificate,
            ssl_keyfile=address.key,
        )
        config.load()
    except (ssl.SSLError, OSError) as error:
        sock.close()
        raise ConfigError(f"the certificate or key cannot be used: {error}") from error
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, args=([sock],), name="fedilc-http", daemon=True)
    thread.start()
    try:
        while not server.started and thread.is_alive():
            time.sleep(0.01)
        yield sock.getsockname()[1]
    finally:
        server.should_exit = True
        thread.join(10)
        sock.close()


class Watch(Callback):
    """Puts every completed round on the board."""

    def __init__(self, board: Board) -> None:
        self.board = board
        self._since = time.perf_counter()

    def on_start(self, run: Run) -> None:
        self.board.history.extend(run.history)
        self._since = time.perf_counter()

    def on_round(self, _run: Run, record: Record) -> None:
        now = time.perf_counter()
        self.board.record(record, now - self._since)
        self._since = now


def coordinate(
    settings: Experiment,
    outline: Outline,
    spec: ModelSpec,
    model: nn.Module,
    out: Path,
    address: Address,
    tokens: Tokens | None,
    *,
    round_timeout: float = 600.0,
    wire: Wire = "exact",
    columns: list[str] | None = None,
    callbacks: Sequence[Callback] = (),
    ready: Callable[[str, Manifest], None] | None = None,
) -> Result:
    """Train over silos that join by HTTP; continues the run that `out` holds, if it is this one.

    `ready` is called with the address and the manifest once silos can join.
    """
    address.require_safe(tokens)
    boards: list[Board] = []

    def connect(task: Task, trained: nn.Module, _outputs: int) -> Runtime:
        manifest = make_manifest(
            settings.name, settings.algorithm, task, settings, outline.silos, trained, spec, wire, columns
        )
        if tokens is not None:
            missing = [silo for silo in outline.silos if silo not in tokens.silos]
            if missing:
                raise ConfigError(
                    f"silo {missing[0]!r} has no token; make one with `fedilc token {missing[0]}`"
                )
        boards.append(Board(manifest))
        return RestRuntime(boards[0], settings.min_silos or len(outline.silos), round_timeout)

    training = Training(outline, model, settings.algorithm, settings, connect)
    board = boards[0]
    with listening(make_app(board, tokens), address) as port:
        if ready is not None:
            ready(address.url(port), board.manifest)
        facts = {"experiment": settings.name, "wire": wire, "runtime": "rest"}
        resume = RunFolder(out).settings_file.exists()
        result = training.run([*callbacks, Watch(board)], out, resume, facts)
        board.finish(result.stopped or "complete")
        _say_goodbye(board)
    return result


def _say_goodbye(board: Board) -> None:
    """Stay until the silos that are here have been told that the run is over."""
    ended, deadline = time.time(), time.monotonic() + FAREWELL_SECONDS
    here = [silo for silo in board.silos.values() if silo.state in ("waiting", "working", "answered")]
    while time.monotonic() < deadline and any((silo.last_seen or 0) < ended for silo in here):
        time.sleep(0.05)
    time.sleep(0.2)
