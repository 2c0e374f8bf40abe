"""A site's side of a job: it learns of the run once, then answers tasks, all as bytes."""

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


class Member:
    """One site in one job; it stays in one process, and keeps its silo and the last weights there.

    What the silo remembers from round to round is in the folder `states`, which outlives the job.
    """

    def __init__(
        self,
        site: str,
        config: SiteConfig,
        home: Path,
        tell: Callable[[str], None],
        states: Path | None = None,
    ) -> None:
        self.silo = config.silo or site
        self._config = config
        self._make_silo = config.make_silo(self.silo, home, tell)
        self._tell = tell
        self._states = states
        self._joined: tuple[Manifest, SiloClient] | None = None
        self._have = ""

    def answer(self, task: str, body: bytes) -> bytes:
        """What this site says to a task."""
        return self._join(body) if task == JOIN else self._work(body)

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
        client = make_client(manifest, self.silo, self._make_silo, build, device, self._states)
        self._joined, self._have = (manifest, client), ""
        self._tell(f"silo {self.silo!r} joins {manifest.run}, {manifest.algorithm}, {manifest.rounds} rounds")
        return json.dumps({"silo": self.silo, "manifest": manifest.hash}).encode()

    def _work(self, body: bytes) -> bytes:
        if self._joined is None:
            raise ProtocolError("the server sends a task before it has told what the run is")
        manifest, client = self._joined
        mine: dict[str, Tensor] = {name: p.detach() for name, p in client.bench.parameters.items()}
        asked = unpack_request(body, manifest, self._have, mine)
        if asked.run != manifest.hash:
            raise ProtocolError("the server sends a task of another run than it says")
        if self.silo not in asked.request.silos:
            raise ProtocolError(f"the server sends silo {self.silo!r} a task of others")
        reply = client.answer(asked.request)
        self._have = asked.weights
        return pack_reply(reply, manifest)
