"""The server's component of a job: it runs the training and sends its requests to sites as tasks."""

from __future__ import annotations

import json
import queue
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
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
from fedilc.errors import CheckpointError, ConfigError, FedILCError, ProtocolError, SilosLostError
from fedilc.federation import Reply, Request
from fedilc.runtimes.base import Runtime
from fedilc.runtimes.nvflare.executor import BODY, JOIN, STEP, ServerConfig, read_config, require_inside
from fedilc.runtimes.remote.manifest import Manifest, Wire
from fedilc.runtimes.remote.open_request import OpenRequest, RequestOpener
from fedilc.runtimes.remote.run import RemoteRun, RoundLog
from fedilc.storage.files import parse_json

SendTask = Callable[[str, bytes, list[str]], Iterator[tuple[str, bytes | None]]]
RESULTS = "fedilc"
_TICK_SECONDS = 0.2
_GRACE_SECONDS = 2.0  # NVIDIA FLARE ends a task a little after its timeout


class NVFlareRuntime(Runtime):
    """The runtime over a job's sites.

    A site that does not reply before the task's timeout is left out of the round and of later rounds, until
    it asks for a task again. A site whose task fails, or whose reply is not valid, is left out of the job.

    Args:
        manifest: the manifest that every site gets when it joins.
        sites: the names of the job's sites.
        needed: how many silos a round needs at least.
        send: sends a task with a body to sites and yields each site's result, None if the site failed.
        log: is called with one sentence per problem.
    """

    def __init__(
        self,
        manifest: Manifest,
        sites: Iterable[str],
        needed: int,
        send: SendTask,
        log: Callable[[str], None],
    ) -> None:
        self.manifest = manifest
        self.silos = tuple(manifest.silos)
        self.sites = tuple(sites)
        self.needed = needed
        self.send = send
        self.log = log
        self._site_of: dict[str, str] | None = None
        self._silent: set[str] = set()
        self._failed: set[str] = set()
        self._held: dict[str, str] = {}
        self._opener = RequestOpener(manifest)

    def present(self) -> tuple[str, ...]:
        """Return the silos to ask in the next round; the first call lets the sites join."""
        if self._site_of is None:
            self._site_of = self._join()
        lost = self._silent | self._failed
        present = tuple(silo for silo in self.silos if silo in self._site_of and silo not in lost)
        if len(present) < self.needed:
            missing = ", ".join(silo for silo in self.silos if silo not in present)
            raise SilosLostError(
                f"{missing} did not join or did not reply, so only {len(present)} of {len(self.silos)} silos "
                f"are left, and min_silos={self.needed}; read their sites' logs, then submit the job "
                "again: it continues after the last completed round"
            )
        return present

    def mark_present(self, site: str) -> None:
        """Ask a site that was silent again, from the next round on."""
        for silo in tuple(self._silent):
            if self._site_of is not None and self._site_of[silo] == site:
                self._silent.discard(silo)
                self.log(f"silo {silo!r} is back")

    def ask(self, request: Request) -> Iterator[Reply]:
        """Send the request to the silos' sites; yield replies as they come."""
        assert self._site_of is not None
        open_request = self._opener.open(request)
        silo_at = {self._site_of[silo]: silo for silo in request.silos}
        all_hold = all(self._held.get(silo) == open_request.weights_digest for silo in request.silos)
        body = open_request.body(open_request.weights_digest if all_hold else "") or b""
        open_request.close()
        silent = set(request.silos)
        for site, result in self.send(STEP, body, list(silo_at)):
            silo = silo_at[site]
            silent.discard(silo)
            reply = self._read(open_request, silo, result)
            if reply is not None:
                self._held[silo] = open_request.weights_digest
                yield reply
        for silo in sorted(silent):
            self._silent.add(silo)
            self._held.pop(silo, None)
            self.log(f"silo {silo!r} is left out: no reply to {request.step} of round {request.round}")

    def _read(self, open_request: OpenRequest, silo: str, result: bytes | None) -> Reply | None:
        try:
            if result is not None:
                return open_request.read(result, silo)
            self.log(f"silo {silo!r} is left out: its task failed; its log says why")
        except ProtocolError as error:
            self.log(f"silo {silo!r} is left out: its reply is not valid: {error}")
        self._failed.add(silo)
        return None

    def _join(self) -> dict[str, str]:
        """Send the manifest to every site; return the site of each silo."""
        manifest = json.dumps(self.manifest.model_dump(mode="json")).encode()
        site_of: dict[str, str] = {}
        for site, result in self.send(JOIN, manifest, list(self.sites)):
            silo = self._silo_at(site, result)
            if silo is None:
                continue
            if silo in site_of:
                raise ConfigError(
                    f"sites {site_of[silo]!r} and {site!r} are both silo {silo!r}; correct `silo` in the "
                    "local/fedilc.json of one of them"
                )
            site_of[silo] = site
        return site_of

    def _silo_at(self, site: str, result: bytes | None) -> str | None:
        if result is None:
            self.log(f"site {site!r} did not join; its log says why")
            return None
        try:
            joined = parse_json(result)
        except ValueError:
            joined = None
        if not isinstance(joined, Mapping) or joined.get("manifest") != self.manifest.hash:
            self.log(f"site {site!r} is left out: it did not reply with the name of its silo")
            return None
        silo = joined.get("silo")
        return silo if silo in self.manifest.silos else None


class _AbortedError(Exception):
    """The job was aborted; the completed rounds are in the run folder."""


class FedILCController(Controller):  # type: ignore[misc]  # untyped nvflare: its class is Any
    """The workflow that runs the rounds of one job.

    Args:
        experiment: the experiment's settings, as plain values.
        out: the run's name in the server's folder of runs; in the simulator, its folder.
        folder: the folder to which file names in the experiment are relative; None is the server's `local`.
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
