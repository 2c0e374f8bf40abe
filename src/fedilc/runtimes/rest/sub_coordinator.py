"""A coordinator below another: it asks its own silos, and replies with their sums as if it were one silo.

The manifest and the requests that its silos get are those of the coordinator above, to the bit: a silo need
not know whether there is a tree. It sends sums to the coordinator above, and what the server needs of each
silo besides: its numbers, metrics and norms, or that it is lost. `federation/step_sums.py` adds up, as at the
server; `aggregation/packed_sums.py` turns the sums into tensors that are sent.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedilc.aggregation import _kernels
from fedilc.errors import ConfigError
from fedilc.federation.protocol import Step, check_reply
from fedilc.federation.step_sums import StepSums
from fedilc.runtimes.remote.manifest import MAX_NUMBERS, Manifest, read_received
from fedilc.runtimes.remote.open_request import pack_aggregated_reply, request_weights
from fedilc.runtimes.remote.wire import ReceivedRequest
from fedilc.runtimes.rest.address import Address
from fedilc.runtimes.rest.audit import Audit
from fedilc.runtimes.rest.auth import TokenFile, Tokens
from fedilc.runtimes.rest.coordinator import (
    AUDIT_FILE,
    INFORM_SECONDS,
    RestRuntime,
    listening,
    make_app,
    notify_systemd,
    wait_until_informed,
)
from fedilc.runtimes.rest.http_client import HttpClient, Response, SiloLog, no_log
from fedilc.runtimes.rest.participant import RunMember, SiloLimits
from fedilc.runtimes.rest.silo_routes import JoinReply
from fedilc.runtimes.rest.task_queue import Spool, TaskQueue

SHARE_OF_TIMEOUT = 0.9  # of the time above, so that its reply is not late because of one silo
_CHECK_SECONDS = 1.0


class SubCoordinator(RunMember):
    """A member of the run above that replies for the silos of a queue here, from joining to the end.

    It joins once a silo is present, and again whenever its silos have changed. A thread asks for tasks and
    replies to them; the caller's thread watches which silos are present. `announced` are the silos that the
    coordinator above has accepted, and their examples.
    """

    def __init__(
        self,
        http: HttpClient,
        name: str,
        round_timeout: float = 600.0,
        log: SiloLog = no_log,
    ) -> None:
        self.http, self.name, self.log = http, name, log
        self.limits = SiloLimits(max_parameters=MAX_NUMBERS)
        self.round_timeout = round_timeout
        self._sent: Mapping[str, Tensor] = {}
        self._task, self._answered = "", ("", frozenset[str]())
        self.announced: dict[str, int] = {}
        self._announcing: dict[str, int] = {}
        self._join_lock = threading.Lock()
        self._changed = threading.Event()
        self._outcome: str | Exception | None = None

    def find_run(self) -> Manifest:
        """Return the manifest of the coordinator above; raise if it refuses or its steps are unknown here."""
        manifest = self.read_manifest()
        manifest.require_same_steps()
        if self.name in manifest.silos:
            raise ConfigError(f"{self.name!r} is a silo of the run; give the sub-coordinator another `silo`")
        body = {"manifest": manifest.hash, "leaves": {}}
        response = self.http.call("POST", self._path("join"), json=body)
        if response.status != 200:
            self._refused(response)
        return manifest

    def take_part(self, queue: TaskQueue) -> str:
        """Reply for the silos of a queue until the run is over; return how it ended."""
        manifest = queue.manifest
        self.runtime = RestRuntime(queue, 0, self.round_timeout)
        queue.listen(self._changed.set)
        thread = threading.Thread(target=self._answer_tasks, args=(manifest,), name="fedilc-up", daemon=True)
        while self._outcome is None:
            self._changed.clear()
            if queue.present() != self.announced:
                self._join(manifest)
                if thread.ident is None:
                    thread.start()
            self._changed.wait(_CHECK_SECONDS)
        if isinstance(self._outcome, Exception):
            raise self._outcome
        return self._outcome

    def _answer_tasks(self, manifest: Manifest) -> None:
        try:
            self._outcome = self._work(manifest)
        except Exception as error:
            self._outcome = error
        self._changed.set()

    def _join(self, manifest: Manifest) -> None:
        """Announce the silos here, one thread at a time, so that an older list never replaces a newer one."""
        with self._join_lock:
            super()._join(manifest)

    def _joining(self) -> dict[str, Any]:
        silos = self._announcing = self.runtime.queue.present()
        lost = self.runtime.reasons([silo for silo in self.announced if silo not in silos])
        return {"leaves": silos, "lost": {silo: reason[:500] for silo, reason in lost.items()}}

    def _joined(self, manifest: Manifest, answer: Response) -> None:
        super()._joined(manifest, answer)
        reply = read_received(JoinReply, answer.json(), "the coordinator's reply")
        if reply.round_timeout is not None:
            self.runtime.round_timeout = min(self.round_timeout, SHARE_OF_TIMEOUT * reply.round_timeout)
        self._answered = reply.task, frozenset(reply.answered)
        elsewhere = {silo: reply.elsewhere[silo] for silo in self._announcing if silo in reply.elsewhere}
        self.announced = {s: n for s, n in self._announcing.items() if s not in elsewhere}
        self.runtime.queue.send_away(elsewhere)

    def _weights(self) -> Mapping[str, Tensor]:
        return self._sent

    def _reply(self, manifest: Manifest, received: ReceivedRequest) -> bytes | None:
        """Ask the silos here and add up; None if no silo replies: the next join reports them as lost."""
        request, step = received.request, manifest.program.steps[received.request.step]
        self._sent = request.weights
        if received.task == self._task:  # asked again: learn which replies the coordinator above has
            self._join(manifest)
        self._task = received.task
        task, answered = self._answered
        due = received.asked - (answered if task == received.task else frozenset())
        here = self.runtime.queue.present().keys() & due & self.announced.keys()
        wanted = tuple(silo for silo in request.silos if silo in here)
        total = StepSums(step, _blank(step), request_weights(request, manifest))
        for reply in self.runtime.ask_only(request, wanted):
            check_reply(reply, request, step)
            total.add(reply)
        if not total.replies:
            return None
        aggregated = total.aggregated_reply()
        lost = self.runtime.reasons([silo for silo in wanted if silo not in total.replies])
        aggregated.lost = {silo: reason[:500] for silo, reason in lost.items()}
        return pack_aggregated_reply(aggregated)


def serve_subtree(
    sub: SubCoordinator,
    out: Path,
    address: Address,
    tokens: Tokens | TokenFile | None,
    ready: Callable[[str, TaskQueue], None] = lambda _url, _queue: None,
) -> str:
    """Serve silos for the coordinator above until its run is over; return how it ended."""
    address.require_safe(tokens)
    _kernels.load()
    manifest = sub.find_run()
    known = tokens.current() if tokens is not None and address.client_authority is None else None
    silos = [silo for silo in manifest.silos if known is None or known.admits(silo)]
    if not silos:
        raise ConfigError(
            f"no silo of the run {manifest.run!r} has a token here; make one with `fedilc token NAME`"
        )
    out.mkdir(mode=0o700, parents=True, exist_ok=True)
    queue = TaskQueue(manifest, audit=Audit(out / AUDIT_FILE), spool=Spool(out), silos=silos)
    try:
        with listening(make_app(queue, tokens), address) as port:
            queue.audit.event("started", url=address.url(port), manifest=manifest.hash, upstream=sub.http.url)
            notify_systemd("READY=1")
            ready(address.url(port), queue)
            outcome = sub.take_part(queue)
            here = queue.present()
            queue.finish(outcome)
            wait_until_informed(queue, here, INFORM_SECONDS)
        return outcome
    finally:
        queue.audit.flush(now=True)


def _blank(step: Step) -> dict[str, dict[str, Tensor]]:
    return {
        group: {name: torch.empty(like.shape, dtype=like.dtype) for name, like in answer.like.items()}
        for group, answer in step.answers.items()
    }
