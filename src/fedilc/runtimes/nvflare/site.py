"""A site's side of a job: it joins the run once, then executes tasks; all messages are bytes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from torch import Tensor

from fedilc.errors import ProtocolError
from fedilc.federation.client import SiloClient
from fedilc.runtimes.nvflare.local_config import SiteConfig
from fedilc.runtimes.remote.client import make_client
from fedilc.runtimes.remote.manifest import Manifest, read_manifest
from fedilc.runtimes.remote.wire import pack_reply, unpack_request

BODY = "fedilc"
JOIN = "join"
STEP = "step"
TASKS = (JOIN, STEP)


class Site:
    """One site in one job; it stays in one process and keeps its silo and the last weights in memory.

    The silo's state between rounds is in `state_folder`, which outlives the job.
    """

    def __init__(
        self,
        site: str,
        config: SiteConfig,
        home: Path,
        log: Callable[[str], None],
        state_folder: Path | None = None,
    ) -> None:
        self.silo = config.silo or site
        self._config = config
        self._make_silo = config.make_silo(self.silo, home, log)
        self._log = log
        self._state_folder = state_folder
        self.joined: tuple[Manifest, SiloClient] | None = None
        self._held = ""

    def execute(self, task: str, body: bytes) -> bytes:
        """Return the body of the result of a task."""
        return self._join(body) if task == JOIN else self._step(body)

    def _join(self, body: bytes) -> bytes:
        try:
            values = json.loads(body)
        except ValueError as error:
            raise ProtocolError(f"the server's manifest is not JSON: {error}") from error
        manifest = read_manifest(values)
        if self.silo not in manifest.silos:
            names = ", ".join(manifest.silos)
            raise ProtocolError(f"the run {manifest.run!r} has no silo {self.silo!r}, only {names}")
        build, device = self._config.build(), self._config.device
        client = make_client(manifest, self.silo, self._make_silo, build, device, self._state_folder)
        self.joined, self._held = (manifest, client), ""
        self._log(f"silo {self.silo!r} joins {manifest.run}, {manifest.algorithm}, {manifest.rounds} rounds")
        return json.dumps({"silo": self.silo, "manifest": manifest.hash}).encode()

    def _step(self, body: bytes) -> bytes:
        if self.joined is None:
            raise ProtocolError("the server sent a step before the run's manifest")
        manifest, client = self.joined
        weights: dict[str, Tensor] = {name: p.detach() for name, p in client.bench.parameters.items()}
        received = unpack_request(body, manifest, self._held, weights)
        if received.run != manifest.hash:
            raise ProtocolError("the server sent a step of another run than the manifest's")
        if self.silo not in received.request.silos:
            raise ProtocolError(f"the server sent silo {self.silo!r} a step for other silos")
        reply = client.answer(received.request)
        self._held = received.weights
        return pack_reply(reply, manifest)
