"""The server's component of a job: it runs the training and sends its tasks to the sites."""

from __future__ import annotations

import queue
import shutil
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from nvflare.apis.client import Client
from nvflare.apis.controller_spec import ClientTask, Task
from nvflare.apis.event_type import EventType
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.impl.controller import Controller
from nvflare.apis.shareable import Shareable
from nvflare.apis.signal import Signal
from nvflare.private.fed.simulator.simulator_const import SimulatorConstants

from fedilc.config import parse_experiment
from fedilc.errors import CheckpointError, FedILCError
from fedilc.runtimes.nvflare.executor import BODY, JOIN
from fedilc.runtimes.nvflare.local_config import ServerConfig, read_config, require_inside
from fedilc.runtimes.nvflare.runtime import NVFlareRuntime
from fedilc.runtimes.remote.manifest import Wire
from fedilc.runtimes.remote.run import RemoteRun, RoundLog

RESULTS = "fedilc"
_TICK_SECONDS = 0.2
_GRACE_SECONDS = 2.0


class _AbortedError(Exception):
    """The job was aborted; the completed rounds are in the run folder."""


class FedILCController(Controller):  # type: ignore[misc]  # untyped nvflare: its class is Any
    """The workflow that runs the rounds of one job.

    Args:
        experiment: the experiment's settings, as plain values.
        out: the run's name in the server's folder of runs; in the simulator, its folder.
        folder: what file names in the experiment are relative to; None is the server's `local` folder.
        timeout: as in `FedILCRecipe`, like the two arguments after it.
    """

    def __init__(
        self,
        experiment: dict[str, Any],
        out: str,
        folder: str | None = None,
        timeout: int = 600,
        join_timeout: int = 600,
        wire: Wire = "exact",
    ) -> None:
        super().__init__()
        # NVIDIA FLARE writes the job's configuration from the attributes named like the arguments.
        self.experiment = experiment
        self.out = out
        self.folder = folder
        self.timeout = timeout
        self.join_timeout = join_timeout
        self.wire = wire
        self._runtime: NVFlareRuntime | None = None

    def start_controller(self, fl_ctx: FLContext) -> None:
        """Do nothing: `control_flow` does everything."""

    def stop_controller(self, fl_ctx: FLContext) -> None:
        """Do nothing: there is nothing to close."""

    def control_flow(self, abort_signal: Signal, fl_ctx: FLContext) -> None:
        """Train; end the job with one sentence if that fails."""
        try:
            self._train(abort_signal, fl_ctx)
        except _AbortedError:
            self.log_info(fl_ctx, "aborted; submit the job again to continue after the last completed round")
        except FedILCError as error:
            self.log_error(fl_ctx, str(error))
            self.system_panic(str(error), fl_ctx)

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Mark a silent site as present again when it asks for a task."""
        peer = fl_ctx.get_peer_context()
        if event_type == EventType.BEFORE_PROCESS_TASK_REQUEST and self._runtime is not None and peer:
            self._runtime.mark_present(peer.get_identity_name())

    def process_result_of_unknown_task(self, client: Client, *_: Any) -> None:
        """Ignore a result that came too late."""

    def _train(self, abort_signal: Signal, fl_ctx: FLContext) -> None:
        workspace = fl_ctx.get_engine().get_workspace()
        local = Path(workspace.get_site_config_dir())
        config = read_config(ServerConfig, local, {})
        out = Path(self.out)
        # A real server never gives a job the simulator's name; its folder of runs outlives jobs.
        if fl_ctx.get_job_id() != SimulatorConstants.JOB_NAME:
            out = Path(workspace.get_root_dir()) / config.runs / require_inside(self.out)
        send = partial(self._send, abort_signal=abort_signal, fl_ctx=fl_ctx)
        log = partial(self.log_info, fl_ctx)
        sites = [client.name for client in fl_ctx.get_engine().get_clients()]
        results = Path(workspace.get_run_dir(fl_ctx.get_job_id())) / RESULTS / out.name
        folder = local if self.folder is None else Path(self.folder)
        run = RemoteRun.of(parse_experiment(self.experiment), folder, config.model, self.wire)
        self._runtime = NVFlareRuntime(run.manifest, sites, run.needed, send, log)
        try:
            run.train(run.training(self._runtime), "nvflare", out, [RoundLog(log)])
        except CheckpointError:
            raise  # the folder holds another run, which is not the submitter's to download
        except BaseException:
            copy_results(out, results)
            raise
        copy_results(out, results)

    def _send(
        self, name: str, body: bytes, sites: list[str], abort_signal: Signal, fl_ctx: FLContext
    ) -> Iterator[tuple[str, bytes | None]]:
        """Send one task to sites; yield results as they come, until all have replied or the time is up."""
        results: queue.SimpleQueue[tuple[str, bytes | None]] = queue.SimpleQueue()

        def received(client_task: ClientTask, **_: Any) -> None:
            results.put((client_task.client.name, _body(client_task.result)))
            client_task.result = None

        seconds = self.join_timeout if name == JOIN else self.timeout
        task = Task(name, Shareable({BODY: body}), timeout=seconds, result_received_cb=received)
        deadline = time.monotonic() + seconds + _GRACE_SECONDS
        waiting = set(sites)
        self.broadcast(task, fl_ctx, targets=sites, min_responses=0)
        try:
            while waiting:
                if abort_signal.triggered:
                    raise _AbortedError
                over = task.completion_status is not None or time.monotonic() > deadline
                try:
                    site, result = results.get(timeout=0 if over else _TICK_SECONDS)
                except queue.Empty:
                    if over:
                        return
                    continue
                waiting.discard(site)
                yield site, result
        finally:
            self.cancel_task(task, fl_ctx=fl_ctx)


def copy_results(run: Path, job: Path) -> None:
    """Copy the run's files to where NVIDIA FLARE collects a job's results, for an admin to download."""
    if run.is_dir():
        shutil.copytree(run, job, ignore=shutil.ignore_patterns(".*"), dirs_exist_ok=True)


def _body(result: Shareable) -> bytes | None:
    """Return the body of a site's result; None if the site failed."""
    body = result.get(BODY)
    return body if result.get_return_code() == ReturnCode.OK and isinstance(body, bytes) else None
