"""A site's component of a job: it keeps the silo in one process, and answers tasks."""

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
from fedilc.runtimes.nvflare.site import BODY, Member

STATES = "fedilc-state"


class SiloExecutor(Executor):  # type: ignore[misc]  # untyped nvflare: its class is Any
    """Answers for the silo that the site's own `local/fedilc.json` names.

    Args:
        simulated: in the simulator, where sites have no folder of their own: each site's configuration.
            Anywhere else it is ignored, so that no job says which data a site gives.
    """

    def __init__(self, simulated: dict[str, Any] | None = None) -> None:
        super().__init__()
        self.simulated = simulated
        self._member: Member | None = None

    def execute(
        self, task_name: str, shareable: Shareable, fl_ctx: FLContext, _abort_signal: Signal
    ) -> Shareable:
        """The answer to a task; why there is none stays in this site's log."""
        try:
            if self._member is None:
                self._member = self._make_member(fl_ctx)
            answer = self._member.answer(task_name, bytes(shareable.get(BODY) or b""))
        except FedILCError as error:
            self.log_error(fl_ctx, str(error))
            return make_reply(ReturnCode.EXECUTION_EXCEPTION)
        reply = make_reply(ReturnCode.OK)
        reply[BODY] = answer
        return reply

    def _make_member(self, fl_ctx: FLContext) -> Member:
        site = fl_ctx.get_identity_name()
        workspace = fl_ctx.get_engine().get_workspace()
        local = Path(workspace.get_site_config_dir())
        otherwise = None
        if is_simulated(fl_ctx):
            otherwise = (self.simulated or {}).get(site)

        def tell(sentence: str) -> None:
            self.log_info(fl_ctx, sentence)

        states = Path(workspace.get_root_dir()) / STATES
        return Member(site, read_config(SiteConfig, local, otherwise), local, tell, states)


def is_simulated(fl_ctx: FLContext) -> bool:
    """Whether this is a simulated site, as its own process knows; a job has its name from the server."""
    return bool(fl_ctx.get_prop(FLContextKey.SIMULATE_MODE, False))
