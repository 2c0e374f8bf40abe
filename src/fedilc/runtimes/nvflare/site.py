"""A site's side of a job, without NVIDIA FLARE's classes: it joins the run once, then executes steps."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from fedilc.errors import ProtocolError
from fedilc.federation.client import SiloClient
from fedilc.runtimes.nvflare.local_config import SiteConfig
from fedilc.runtimes.remote.client import make_client
from fedilc.runtimes.remote.manifest import Manifest, read_manifest, require_silo
from fedilc.runtimes.remote.wire import pack_reply, unpack_request

BODY = "fedilc"
JOIN = "join"
STEP = "step"
TASKS = (JOIN, STEP)


class Site:
    """One site in one job: it keeps its silo and the last weights in memory, in one process.

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
        require_silo(self.silo, manifest.run, manifest.silos)
        build, device = self._config.build(), self._config.device
        client = make_client(manifest, self.silo, self._make_silo, build, device, self._state_folder)
        self.joined, self._held = (manifest, client), ""
        self._log(f"silo {self.silo!r} joins {manifest.run}, {manifest.algorithm}, {manifest.rounds} rounds")
        return json.dumps({"silo": self.silo, "manifest": manifest.hash}).encode()

    def _step(self, body: bytes) -> bytes:
        if self.joined is None:
            raise ProtocolError("the server sent a step before the run's manifest")
        manifest, client = self.joined
        received = unpack_request(body, manifest, self._held, client.weights)
        received.require_for(self.silo, manifest)
        reply = client.answer(received.request)
        self._held = received.weights
        return pack_reply(reply, manifest)
