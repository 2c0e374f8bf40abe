"""`fedilc serve --upstream`: a sub-coordinator, which replies to the coordinator above for its own silos."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fedilc.cli.join import read_token
from fedilc.errors import ConfigError, StoppedError, printable

if TYPE_CHECKING:
    from rich.console import Console

    from fedilc.runtimes.rest.address import Address
    from fedilc.runtimes.rest.task_queue import TaskQueue
    from fedilc.runtimes.rest.tokens import TokenFile, Tokens


@dataclass(frozen=True)
class Upstream:
    """The coordinator above, and how to reach it."""

    url: str
    silo: str | None
    token_file: Path | None
    ca: Path | None
    client_cert: Path | None
    client_key: Path | None
    allow_insecure: bool

    def serve(
        self,
        console: Console,
        out: Path | None,
        address: Address,
        tokens: Tokens | TokenFile | None,
        round_timeout: float,
    ) -> None:
        """Serve silos for the coordinator above until its run is over."""
        from fedilc.runtimes.rest.address import warn_if_public
        from fedilc.runtimes.rest.http_client import HttpClient
        from fedilc.runtimes.rest.sub_coordinator import SubCoordinator, serve_below

        if self.silo is None:
            raise ConfigError("--upstream needs --silo NAME, the name that the coordinator above knows")
        name, said = self.silo, set[str]()

        def say(sentence: str) -> None:
            if sentence not in said and not sentence.startswith("round "):
                said.add(sentence)
                console.print(f"{name}: {printable(sentence)}", markup=False, soft_wrap=True)

        def ready(url: str, queue: TaskQueue) -> None:
            awaited = f"waiting for {', '.join(queue.silos)}; manifest {queue.manifest.hash[:16]}"
            above = f"silos join at {url}, and the page is there; their sums are sent to {self.url}"
            for sentence in (above, awaited):
                console.print(printable(sentence), markup=False, soft_wrap=True)
            sys.stdout.flush()

        for secret, what in ((self.token_file, "the token"), (self.client_key, "the key of --client-cert")):
            warn_if_public(secret, what)
        certificate = self.client_cert, self.client_key
        token = read_token(self.token_file)
        http = HttpClient(self.url, token, self.ca, None, self.allow_insecure, *certificate, log=say)
        folder = out or Path("runs") / name
        try:
            outcome = serve_below(
                SubCoordinator(http, name, round_timeout, say), folder, address, tokens, ready
            )
        except KeyboardInterrupt:
            raise StoppedError("stopped; run the same command to continue; silos wait for it") from None
        finally:
            http.close()
        sys.stdout.write(f"{name}: the run is over: {printable(outcome)}\n")
