"""A silo that joins a coordinator: it asks for tasks, computes here, and sends back what it found.

Data never leaves; nothing that comes is run. Whatever happens to the network or to the coordinator, the silo
waits and goes on, as long as it is the same run.
"""

from __future__ import annotations

import json
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NoReturn
from urllib.parse import quote

from torch import Tensor, nn

from fedilc.data import Silo
from fedilc.errors import ProtocolError, printable
from fedilc.federation.client import SiloClient
from fedilc.runtimes.remote.client import make_client
from fedilc.runtimes.remote.manifest import Manifest, read_manifest
from fedilc.runtimes.remote.survey import Survey, read_survey
from fedilc.runtimes.remote.wire import (
    MEDIA_TYPE,
    Asked,
    DamagedError,
    content_digest,
    header_room,
    pack_reply,
    unpack_request,
)
from fedilc.runtimes.rest.http_client import POLL_SECONDS, Answer, CoordinatorError, Line, Retries
from fedilc.runtimes.rest.limits import Limits

if TYPE_CHECKING:
    from fedilc.data.silo_summary import SiloSummary

_BREATH_SECONDS = 1.0
_SURVEY_SECONDS = 0.5
_ATTEMPTS = 5
_RETRIED = (400, 422)


class _UnreadableError(CoordinatorError):
    """An answer that is not a manifest, or not as it was sent."""


class _NoManifestYetError(Exception):
    """The coordinator still waits for summaries of silos' tables."""


class Member(ABC):
    """Whoever takes part in a run over one line: a silo, or a sub-coordinator with silos of its own."""

    line: Line
    name: str
    tell: Callable[[str], None]
    limits: Limits
    unknown: tuple[int, ...] = (409,)

    @abstractmethod
    def _joining(self) -> dict[str, Any]:
        """What it says of itself, beside the manifest's hash."""

    @abstractmethod
    def _weights(self) -> Mapping[str, Tensor]:
        """The weights that it was sent last."""

    @abstractmethod
    def _reply(self, manifest: Manifest, asked: Asked) -> bytes | None:
        """Return the answer to a task; None if it has none."""

    def _joined(self, manifest: Manifest, _answer: Answer) -> None:
        """Take note of what the coordinator says when it is joined."""
        self.tell(f"joined {manifest.run}, {manifest.algorithm}, {manifest.rounds} rounds")

    def _work(self, manifest: Manifest) -> str:
        """Work until the run is over; returns how it ended."""
        have, along, retries = "", None, None
        self._join(manifest)
        while True:
            answer = along or self._next(manifest, have)
            along = None
            if answer.status == 410:
                return answer.reason
            if answer.status in self.unknown:
                self._require_same(manifest)
                if retries is not None:
                    retries.pause(answer.reason)
                retries = retries or Retries(self.line)
                self._join(manifest)
            elif answer.status == 200:
                try:
                    asked = self._asked(answer, manifest, have)
                except DamagedError as error:
                    along = Answer(400, json.dumps({"detail": str(error)}).encode())
                    continue
                have = asked.weights
                along = self._answer(manifest, asked)
                retries = retries if along is not None and along.status in _RETRIED else None
            elif answer.status in _RETRIED:
                have, retries = "", retries or Retries(self.line)
                retries.pause(answer.reason)
            elif answer.status == 204:
                retries = None
            else:
                self._refused(answer)

    def _next(self, manifest: Manifest, have: str) -> Answer:
        """The next task, waited for; where none comes and nobody waits, it is not asked for again at once."""
        asked_at, params = time.monotonic(), {"have": have, "wait": POLL_SECONDS}
        answer = self.line.call("GET", self._path("task"), _most_bytes(manifest), params=params)
        if answer.status == 204 and time.monotonic() - asked_at < _BREATH_SECONDS:
            self.line.sleep(_BREATH_SECONDS)
        return answer

    def _path(self, rest: str) -> str:
        return f"/v1/silos/{quote(self.name, safe='')}/{rest}"

    def _asked(self, answer: Answer, manifest: Manifest, have: str) -> Asked:
        """The task, if it is one of this run."""
        asked = unpack_request(answer.body, manifest, have, self._weights())
        if asked.run != manifest.hash:
            self._require_same(manifest)
            raise CoordinatorError("the coordinator sends tasks of another run than it says")
        return asked

    def _answer(self, manifest: Manifest, asked: Asked) -> Answer | None:
        """Bring what was asked for; returns what came along, if anything: the next task, the run's end, or a
        refusal after which the task is asked for again."""
        request = asked.request
        self.tell(f"round {request.round} of {manifest.rounds}: {request.step}")
        body = self._reply(manifest, asked)
        if body is None:
            return None
        answer = self.line.call(
            "PUT",
            self._path(f"rounds/{request.round}/{quote(request.step, safe='')}"),
            _most_bytes(manifest),
            params={"task": asked.task, "have": asked.weights, "wait": POLL_SECONDS},
            content=body,
            headers={"Content-Type": MEDIA_TYPE, "Content-Digest": content_digest(body)},
        )
        if answer.status not in (200, 410, *self.unknown, *_RETRIED):
            self._refused(answer)
        return answer if answer.status in (410, *_RETRIED) or answer.media == MEDIA_TYPE else None

    def _manifest(self) -> Manifest:
        answer = self.line.call("GET", "/v1/manifest")
        found = answer.json()
        if answer.status in (401, 403):
            self._refused(answer)
        if answer.status == 200 and isinstance(found, dict) and {"survey", "missing"} <= set(found):
            self._answer_survey(found)
            raise _NoManifestYetError
        if answer.status != 200 or not isinstance(found, dict) or not {"manifest", "hash"} <= set(found):
            what = f"it answers {answer.status}" if answer.status != 200 else "it answers something else"
            where = f" and points to {printable(answer.place)[:200]}" if answer.place else ""
            raise _UnreadableError(f"{self.line.url} is not a FedILC coordinator: {what}{where}")
        manifest = read_manifest(found["manifest"])
        if manifest.hash != found["hash"]:
            raise _UnreadableError("the manifest does not match its own hash; do not join this coordinator")
        self.limits.require_run(manifest, self.line.url, self.name)
        return manifest

    def read_manifest(self) -> Manifest:
        """Return the manifest; one damaged answer is no reason to leave."""
        retries, failures = Retries(self.line), 0
        while True:
            try:
                return self._manifest()
            except _NoManifestYetError:
                self.line.sleep(_SURVEY_SECONDS)
            except (_UnreadableError, ProtocolError) as error:
                failures += 1
                if failures == _ATTEMPTS:
                    raise
                retries.pause(str(error))

    def _answer_survey(self, _found: Mapping[str, Any]) -> None:
        """Answer what the coordinator asks before there is a run."""
        raise CoordinatorError(
            "the run is over tables that are summed up first, which a sub-coordinator cannot do; let its "
            "silos join the run's own coordinator"
        )

    def _require_same(self, manifest: Manifest) -> None:
        """Raise if the coordinator has another run now."""
        if self.read_manifest().hash != manifest.hash:
            raise CoordinatorError(
                "the coordinator now runs something else than what this silo joined; find out why, and join "
                "again if that is right"
            )

    def _join(self, manifest: Manifest) -> None:
        body = {"manifest": manifest.hash, **self._joining()}
        retries = Retries(self.line)
        for _ in range(_ATTEMPTS):
            answer = self.line.call("POST", self._path("join"), json=body)
            if answer.status not in _RETRIED:
                break
            retries.pause(answer.reason)
        if answer.status == 409:
            self._require_same(manifest)
        if answer.status != 200:
            self._refused(answer)
        self._joined(manifest, answer)

    def _refused(self, answer: Answer) -> NoReturn:
        raise CoordinatorError(f"the coordinator refuses silo {self.name!r}: {answer.reason}")


@dataclass
class Participant(Member):
    """One silo in one run, from joining to the end."""

    line: Line
    name: str
    make_silo: Callable[[Manifest], Silo]
    build: Callable[[Manifest], nn.Module] | None = None
    device: str = "auto"
    tell: Callable[[str], None] = lambda _: None
    limits: Limits = field(default_factory=Limits)
    summarise: Callable[[Survey], SiloSummary] | None = None
    _worker: SiloClient = field(init=False)

    def take_part(self) -> str:
        """Work until the run is over; returns how it ended."""
        manifest = self.read_manifest()
        if self.name not in manifest.silos:
            names = ", ".join(manifest.silos)
            raise CoordinatorError(f"the run {manifest.run!r} has no silo {self.name!r}, only {names}")
        folder = self.limits.state
        self._worker = make_client(manifest, self.name, self.make_silo, self.build, self.device, folder)
        self.limits.require_examples(len(self._worker.silo), self.name)
        self.limits.remember(manifest, self.line.url, self.name)
        return self._work(manifest)

    def _answer_survey(self, found: Mapping[str, Any]) -> None:
        survey = read_survey(found["survey"])
        if self.name not in survey.silos:
            names = ", ".join(survey.silos)
            raise CoordinatorError(f"the run {survey.run!r} has no silo {self.name!r}, only {names}")
        if self.name not in found["missing"]:
            self.tell("waiting for the summaries of other silos")
            return
        if self.summarise is None:
            raise CoordinatorError("the run is over tables; give this silo's own with --data")
        if self.limits.digest is not None:
            raise CoordinatorError(
                "the coordinator has no manifest yet and asks for a summary of the table; leave out "
                "--manifest-digest if that was agreed on"
            )
        summary = self.summarise(survey)
        self.limits.require_examples(summary.rows, self.name)
        answer = self.line.call("PUT", self._path("summary"), content=summary.model_dump_json().encode())
        if answer.status != 200:
            self._refused(answer)
        self.tell(f"sent counts, sums and names of {len(summary.columns)} columns")

    def _joining(self) -> dict[str, Any]:
        return {"examples": len(self._worker.silo)}

    def _weights(self) -> Mapping[str, Tensor]:
        return {name: parameter.detach() for name, parameter in self._worker.bench.parameters.items()}

    def _asked(self, answer: Answer, manifest: Manifest, have: str) -> Asked:
        asked = super()._asked(answer, manifest, have)
        if self.name not in asked.request.silos:
            raise ProtocolError(f"the coordinator sends silo {self.name!r} a task of others")
        return asked

    def _reply(self, manifest: Manifest, asked: Asked) -> bytes:
        return pack_reply(self._worker.answer(asked.request), manifest)


def _most_bytes(manifest: Manifest) -> int:
    """Return how large a task may be: the weights, what the largest step sends beside them, and a header."""
    own = _bytes(manifest.like)
    beside = max(
        sum(_bytes(like) for like in step.sends.values()) for step in manifest.program.steps.values()
    )
    return own + beside + 2 * header_room(manifest.like) + (1 << 16)


def _bytes(like: Mapping[str, Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in like.values())
