"""A site's component of a job: it keeps the silo in one process and executes tasks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from nvflare.apis.executor import Executor
from nvflare.apis.fl_constant import FLContextKey, ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.apis.signal import Signal

from fedilc.errors import FedILCError
from fedilc.runtimes.nvflare.local_config import SiteConfig, read_config
from fedilc.runtimes.nvflare.site import BODY, Site

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

        def log(sentence: str) -> None:
            self.log_info(fl_ctx, sentence)

        states = Path(workspace.get_root_dir()) / STATE_FOLDER
        return Site(name, read_config(SiteConfig, local, default), local, log, states)


def is_simulated(fl_ctx: FLContext) -> bool:
    """Return whether this site is simulated, as its own process says; a job's name comes from the server."""
    return bool(fl_ctx.get_prop(FLContextKey.SIMULATE_MODE, False))
