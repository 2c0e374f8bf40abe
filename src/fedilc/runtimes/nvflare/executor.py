"""A site's component of a job: it keeps the silo in one process, joins the run once and executes steps."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from nvflare.apis.executor import Executor
from nvflare.apis.fl_constant import FLContextKey, ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.apis.signal import Signal

from fedilc.errors import FedILCError, ProtocolError
from fedilc.federation.client import SiloClient
from fedilc.runtimes.nvflare.local_config import SiteConfig, read_config
from fedilc.runtimes.remote.builders import make_client, network_from
from fedilc.runtimes.remote.manifest import Manifest, read_manifest, require_silo
from fedilc.runtimes.remote.wire import pack_reply, unpack_request

BODY = "fedilc"
JOIN = "join"
STEP = "step"
STATE_FOLDER = "fedilc-state"


class SiloExecutor(Executor):  # type: ignore[misc]  # untyped nvflare: its class is Any
    """The executor of the silo that the site's own `local/fedilc.json` names.

    Args:
        simulated: each site's configuration, for the simulator, in which sites have no folders.
            It is ignored anywhere else, so that no job can say which data a site uses.
    """

    def __init__(self, simulated: dict[str, Any] | None = None) -> None:
        super().__init__()
        self.simulated = simulated
        self._site: Site | None = None

    def execute(
        self, task_name: str, shareable: Shareable, fl_ctx: FLContext, _abort_signal: Signal
    ) -> Shareable:
        """Return the result of a task; if it fails, the reason stays in this site's log."""
        try:
            if self._site is None:
                self._site = self._make_site(fl_ctx)
            answer = self._site.execute(task_name, bytes(shareable.get(BODY) or b""))
        except FedILCError as error:
            self.log_error(fl_ctx, str(error))
            return make_reply(ReturnCode.EXECUTION_EXCEPTION)
        reply = make_reply(ReturnCode.OK)
        reply[BODY] = answer
        return reply

    def _make_site(self, fl_ctx: FLContext) -> Site:
        name = fl_ctx.get_identity_name()
        workspace = fl_ctx.get_engine().get_workspace()
        local = Path(workspace.get_site_config_dir())
        default = (self.simulated or {}).get(name) if is_simulated(fl_ctx) else None
        config, log = read_config(SiteConfig, local, default), partial(self.log_info, fl_ctx)
        return Site(name, config, local, log, Path(workspace.get_root_dir()) / STATE_FOLDER)


def is_simulated(fl_ctx: FLContext) -> bool:
    """Return whether this site is simulated, as its own process says; a job's name comes from the server."""
    return bool(fl_ctx.get_prop(FLContextKey.SIMULATE_MODE, False))


class Site:
    """One site in one job, without NVIDIA FLARE's classes: it keeps its silo and the last weights in memory.

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
        self._make_silo = config.make_silo(self.silo, home, log)
        self._build = None if config.model is None else network_from(config.model)
        self._device = config.device
        self._log = log
        self._state_folder = state_folder
        self.joined: tuple[Manifest, SiloClient] | None = None
        self._held = ""

    def execute(self, task: str, body: bytes) -> bytes:
        """Return the body of the result of a task."""
        return self._join(body) if task == JOIN else self._step(body)

    def _join(self, body: bytes) -> bytes:
        manifest = read_manifest(body)
        require_silo(self.silo, manifest.run, manifest.silos)
        own = self._make_silo, self._build, self._device, self._state_folder
        self.joined, self._held = (manifest, make_client(manifest, self.silo, *own)), ""
        self._log(f"silo {self.silo!r} joins {manifest.run}, {manifest.algorithm}, {manifest.rounds} rounds")
        return json.dumps({"silo": self.silo, "manifest": manifest.hash}).encode()

    def _step(self, body: bytes) -> bytes:
        if self.joined is None:
            raise ProtocolError("the server sent a step before the run's manifest")
        manifest, client = self.joined
        received = unpack_request(body, manifest, self._held, client.weights)
        received.require_for(self.silo, manifest)
        reply = client.answer(received.request)
        self._held = received.weights_digest
        return pack_reply(reply, manifest)
