"""A silo's side of a run over HTTP: what it refuses, and how it joins, computes replies and sends them.

The silo trusts its owner's limits (`SiloLimits`), not the coordinator. Every request may be lost, repeated or
answered by a coordinator that was restarted, so each step can be repeated without harm.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, NoReturn, TypeVar
from urllib.parse import quote

from torch import Tensor, nn

from fedilc.data import Silo
from fedilc.errors import ConfigError, ProtocolError, printable, writing
from fedilc.federation.client import SiloClient
from fedilc.runtimes.remote.manifest import Manifest, read_manifest, require_silo
from fedilc.runtimes.remote.silo_client import make_client
from fedilc.runtimes.remote.study_manifest import StudyManifest
from fedilc.runtimes.remote.survey import Survey, read_survey
from fedilc.runtimes.remote.wire import (
    MEDIA_TYPE,
    DamagedError,
    ReceivedRequest,
    content_digest,
    header_room,
    pack_reply,
    unpack_request,
)
from fedilc.runtimes.rest.http_client import (
    POLL_SECONDS,
    CoordinatorError,
    HttpClient,
    Response,
    Retries,
    SiloLog,
    no_log,
)
from fedilc.storage.files import byte_size, parse_json, write_atomically

if TYPE_CHECKING:
    from fedilc.data.tables.silo_summary import SiloSummary
    from fedilc.runtimes.rest.secure_silo import SecureMember, SecureSilo, SurveySilo

Known = TypeVar("Known", Manifest, StudyManifest)
MAX_PARAMETERS = 2**28
_FILE = "runs.json"
_CONSENTS = "summaries.json"
_NEEDS_KEY = (
    "the run has secure sums: name this silo's `key`, which `fedilc key new` makes, and the `roster` of all "
    "silos' keys"
)
_EMPTY_PAUSE_SECONDS = 1.0  # a proxy that answers at once must not make a silo ask without pause
_SURVEY_SECONDS = 0.5
_SURVEY_BYTES = 8 << 20  # of one phase of its sums
_ATTEMPTS = 5
_RETRIED = (400, 422)  # damaged on the way, or refused: ask for the task again, with its weights
_REJOIN = (404, 409)  # the coordinator was restarted, or has closed the task: join again


@dataclass(frozen=True)
class SiloLimits:
    """A silo's own limits; a run outside them is refused before anything is built or computed.

    Args:
        max_parameters: the largest network to build.
        min_examples: the fewest training examples with which this silo takes part.
        digest: the manifest's hash, or at least its first 16 digits; None accepts any run.
        state: a folder that stores the run joined at an address; another run there is refused. It also stores
            which summary of a table the owner agreed to send; without it, the user's own folder does.
    """

    max_parameters: int = MAX_PARAMETERS
    min_examples: int = 1
    digest: str | None = None
    state: Path | None = None

    def __post_init__(self) -> None:
        if self.digest is not None and not re.fullmatch("[0-9a-f]{16,64}", self.digest):
            raise ConfigError(
                f"`manifest_digest` {self.digest!r} is not a manifest's digest; give 16 to 64 of the digits "
                "that `fedilc serve` shows"
            )

    def require_run(self, manifest: Manifest | StudyManifest, url: str, silo: str) -> None:
        """Raise if the coordinator has another run than this silo agreed to, or too large a network."""
        if self.digest is not None and not manifest.hash.startswith(self.digest):
            raise ConfigError(
                f"the coordinator has manifest {manifest.hash[:16]}, but this silo takes part only in "
                f"{self.digest[:16]}; find out why before you change `manifest_digest`"
            )
        known = self._known().get(f"{silo} {url}")
        if self.digest is None and known is not None and known != manifest.hash:
            raise ConfigError(
                f"the coordinator has manifest {manifest.hash[:16]}, but this silo joined {known[:16]} there "
                "before; if you agree to the new run, join it once with "
                f"`manifest_digest={manifest.hash[:16]}`"
            )
        manifest.require_at_most(self.max_parameters)

    def require_examples(self, examples: int, silo: str) -> None:
        """Raise if the silo has too few examples to take part."""
        if examples < self.min_examples:
            raise ConfigError(
                f"silo {silo!r} has {examples} examples to train on, fewer than "
                f"`min_examples={self.min_examples}`; it does not take part"
            )

    def remember(self, manifest: Manifest | StudyManifest, url: str, silo: str) -> None:
        """Store the run in the state folder, as the one to expect at this address."""
        if self.state is None:
            return
        self._store(_FILE, self._known() | {f"{silo} {url}": manifest.hash})

    def agreed(self, url: str, silo: str, run: str, table: str) -> str | None:
        """Return the digest of the summary that the owner agreed to send; raise if the table has changed.

        `table` is the digest of the table's file. What was agreed for another run does not count.
        """
        known = self._stored(_CONSENTS)
        if known.get(f"{silo} {url} run") != run:
            return None
        before = known.get(f"{silo} {url} table")
        if before is not None and before != table:
            raise ConfigError(
                f"the table of silo {silo!r} has changed since its summary was sent to the run {run!r}, and "
                "the difference of two summaries reveals single patients; restore the table, take part "
                f"in a new run of another name, or delete {self.consent_folder / _CONSENTS} if you agree"
            )
        return known.get(f"{silo} {url} summary")

    def last_summary(self, url: str, silo: str) -> str | None:
        """Return the digest of the summary that was last sent to this address, whatever the run."""
        return self._stored(_CONSENTS).get(f"{silo} {url} summary")

    def remember_summary(self, url: str, silo: str, run: str, table: str, summary: str) -> None:
        """Store which summary the owner agreed to send, so that a restart need not ask again."""
        facts = {"run": run, "table": table, "summary": summary}
        known = self._stored(_CONSENTS) | {f"{silo} {url} {key}": value for key, value in facts.items()}
        self._store(_CONSENTS, known)

    @property
    def consent_folder(self) -> Path:
        """Return the folder that stores which summaries the owner agreed to: `state`, or the user's own."""
        if self.state is not None:
            return self.state
        return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "fedilc"

    def _store(self, name: str, values: dict[str, str]) -> None:
        folder = self.consent_folder
        with writing(folder):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_atomically(folder / name, (json.dumps(values, indent=2) + "\n").encode())

    def _known(self) -> dict[str, str]:
        return {} if self.state is None else self._stored(_FILE)

    def _stored(self, name: str) -> dict[str, str]:
        file = self.consent_folder / name
        if not file.exists():
            return {}
        try:
            stored = parse_json(file.read_text())
            return {str(key): str(value) for key, value in stored.items()}
        except (OSError, ValueError, AttributeError) as error:
            raise ConfigError(f"{file} cannot be read: {error}; repair or delete it") from error


@dataclass(frozen=True)
class TableAccess:
    """A silo's table before a run, and its owner, who sees a summary before it is sent.

    Args:
        summarise: returns the summary that a survey asks for, within the owner's limits.
        digest: returns the digest of the table's file.
        agree: shows the owner a summary, its digest, and whether another one was sent to this address before;
            raises if the owner does not agree to send it.
    """

    summarise: Callable[[Survey], SiloSummary]
    digest: Callable[[], str]
    agree: Callable[[SiloSummary, Survey, str, bool], None]


class _UnreadableError(CoordinatorError):
    """A response that is not a manifest, or was damaged on the way."""


class HttpMember(ABC, Generic[Known]):
    """Whoever works for a coordinator with one HTTP client; `Known` is the manifest of what it joins."""

    http: HttpClient
    name: str
    log: SiloLog
    limits: SiloLimits

    @abstractmethod
    def _joining(self) -> dict[str, Any]:
        """Return what the member says about itself, beside the manifest's hash."""

    @abstractmethod
    def _known(self, body: Mapping[str, Any]) -> Known | None:
        """Return the manifest in a response, or None; raise if it is another one's."""

    @abstractmethod
    def _max_task_bytes(self, manifest: Known) -> int:
        """Return how large a task may be."""

    @abstractmethod
    def _do(self, response: Response, manifest: Known, weights_digest: str) -> tuple[Response | None, str]:
        """Do a task; return what came back for the answer, and the digest of the weights held now."""

    @abstractmethod
    def _joined(self, manifest: Known, response: Response) -> None:
        """Log that the member has joined."""

    def _work(self, manifest: Known) -> str:
        """Work until the run is over; return how it ended."""
        weights_digest, following, retries = "", None, None
        self._join(manifest)
        while True:
            response = following or self._next(manifest, weights_digest)
            following = None
            if response.status == 410:
                return response.reason
            if response.status in _REJOIN:
                self._require_same(manifest)
                # The first time at once: a task that was closed meanwhile is no trouble. From then on with
                # growing pauses, until a task is received.
                if retries is not None:
                    retries.pause(response.reason)
                retries = retries or Retries(self.http)
                self._join(manifest)
            elif response.status == 200:
                try:
                    following, weights_digest = self._do(response, manifest, weights_digest)
                except DamagedError as error:
                    following = Response(400, json.dumps({"detail": str(error)}).encode())
                    continue
                retries = retries if following is not None and following.status in _RETRIED else None
            elif response.status in _RETRIED:
                # Forget which weights are here, so that the task comes with all of them.
                weights_digest, retries = "", retries or Retries(self.http)
                retries.pause(response.reason)
            elif response.status == 204:
                retries = None
            else:
                self._refused(response)

    def _next(self, manifest: Known, weights_digest: str) -> Response:
        """Wait for the next task; if a response comes at once without one, pause before asking again."""
        asked_at, params = time.monotonic(), {"have": weights_digest, "wait": POLL_SECONDS}
        response = self.http.call("GET", self._path("task"), self._max_task_bytes(manifest), params=params)
        if response.status == 204 and time.monotonic() - asked_at < _EMPTY_PAUSE_SECONDS:
            self.http.sleep(_EMPTY_PAUSE_SECONDS)
        return response

    def _path(self, rest: str) -> str:
        return f"/v1/silos/{quote(self.name, safe='')}/{rest}"

    def _send(
        self, manifest: Known, place: str, task: str, weights_digest: str, body: bytes
    ) -> Response | None:
        """Send the answer to a task; return what came back, if anything.

        That is the next task, the end of the run, or a refusal after which the task is asked for again.
        """
        response = self.http.call(
            "PUT",
            self._path(f"rounds/{place}"),
            self._max_task_bytes(manifest),
            params={"task": task, "have": weights_digest, "wait": POLL_SECONDS},
            content=body,
            headers={"Content-Type": MEDIA_TYPE, "Content-Digest": content_digest(body)},
        )
        if response.status not in (200, 410, *_REJOIN, *_RETRIED):
            self._refused(response)
        return response if response.status in (410, *_RETRIED) or response.media == MEDIA_TYPE else None

    def _manifest(self) -> Known | None:
        """Return the manifest; None if the coordinator still waits for summaries of silos' tables."""
        response = self.http.call("GET", "/v1/manifest")
        body = response.json()
        if response.status in (401, 403):
            self._refused(response)
        if response.status == 200 and isinstance(body, dict) and {"survey", "missing"} <= set(body):
            self._answer_survey(body)
            return None
        manifest = None
        if response.status == 200 and isinstance(body, dict) and "hash" in body:
            manifest = self._known(body)
        if manifest is None:
            what = f"its status is {response.status}" if response.status != 200 else "it sends no manifest"
            where = f" and points to {printable(response.location)[:200]}" if response.location else ""
            raise _UnreadableError(f"{self.http.url} is not a FedILC coordinator: {what}{where}")
        if manifest.hash != body["hash"]:
            raise _UnreadableError("the manifest does not match its hash; do not join this coordinator")
        self.limits.require_run(manifest, self.http.url, self.name)
        return manifest

    def read_manifest(self) -> Known:
        """Return the manifest; retry if a response is damaged."""
        retries, failures = Retries(self.http), 0
        while True:
            try:
                manifest = self._manifest()
                if manifest is not None:
                    return manifest
                self.http.sleep(_SURVEY_SECONDS)
            except (_UnreadableError, ProtocolError) as error:
                failures += 1
                if failures == _ATTEMPTS:
                    raise
                retries.pause(str(error))

    def _answer_survey(self, _body: Mapping[str, Any]) -> None:
        """Reply to what the coordinator asks before there is a run."""
        raise CoordinatorError(
            "silos of this run summarise their tables first, which a sub-coordinator does not support; "
            "let its silos join the run's own coordinator"
        )

    def _require_same(self, manifest: Known) -> None:
        """Raise if the coordinator has another run now."""
        if self.read_manifest().hash != manifest.hash:
            raise CoordinatorError(
                "the coordinator now has another run than this silo joined; find out why, and join again if "
                "you agree to it"
            )

    def _join(self, manifest: Known) -> None:
        """Join; wait while the coordinator says that this silo is connected elsewhere."""
        body = {"manifest": manifest.hash, **self._joining()}
        retries, attempts = Retries(self.http), 0
        while True:
            response = self.http.call("POST", self._path("join"), json=body)
            if response.status == 409:
                self._require_same(manifest)
            elif response.status in _RETRIED and attempts < _ATTEMPTS:
                attempts += 1
            else:
                break
            retries.pause(response.reason)
        if response.status != 200:
            self._refused(response)
        self._joined(manifest, response)

    def _refused(self, response: Response) -> NoReturn:
        raise CoordinatorError(f"the coordinator refuses silo {self.name!r}: {response.reason}")


class RunMember(HttpMember[Manifest]):
    """A member of a run: a silo, or a sub-coordinator with its own silos."""

    @abstractmethod
    def _weights(self) -> Mapping[str, Tensor]:
        """Return the weights that were received last."""

    @abstractmethod
    def _reply(self, manifest: Manifest, received: ReceivedRequest) -> bytes | None:
        """Return the body of the reply to a task; None if there is none."""

    def _known(self, body: Mapping[str, Any]) -> Manifest | None:
        """Return the manifest of a run; raise if the coordinator has a study."""
        if "study" in body:
            self._found_study()
        return read_manifest(body["manifest"]) if "manifest" in body else None

    def _found_study(self) -> NoReturn:
        """Raise: a study needs a silo with a table."""
        raise CoordinatorError(
            "the coordinator has a study over tables of silos; join it with the table of one silo, `data`"
        )

    def _joined(self, manifest: Manifest, _response: Response) -> None:
        """Log that the member has joined; subclasses read the response."""
        self.log(f"joined {manifest.run}, {manifest.algorithm}, {manifest.rounds} rounds")

    def _max_task_bytes(self, manifest: Manifest) -> int:
        """Return how large a task may be: w, what the largest step sends besides, and a header."""
        steps = manifest.program.steps.values()
        other = max(sum(byte_size(like.values()) for like in step.sends.values()) for step in steps)
        return byte_size(manifest.like.values()) + other + 2 * header_room(manifest.like) + (1 << 16)

    def _do(self, response: Response, manifest: Manifest, weights_digest: str) -> tuple[Response | None, str]:
        """Do a task; return what came back for the reply, and the digest of the weights held now."""
        received = self._receive(response, manifest, weights_digest)
        return self._send_reply(manifest, received), received.weights_digest

    def _receive(self, response: Response, manifest: Manifest, weights_digest: str) -> ReceivedRequest:
        """Return the task; raise if it is not of this run."""
        received = unpack_request(response.body, manifest, weights_digest, self._weights())
        if received.run != manifest.hash:
            self._require_same(manifest)
            raise CoordinatorError(
                "the coordinator sent a task that belongs to another run than its manifest"
            )
        return received

    def _send_reply(self, manifest: Manifest, received: ReceivedRequest) -> Response | None:
        """Send the reply to a task; return what came back, if anything."""
        request = received.request
        self.log(f"round {request.round} of {manifest.rounds}: {request.step}", "round")
        body = self._reply(manifest, received)
        if body is None:
            return None
        place = f"{request.round}/{quote(request.step, safe='')}"
        return self._send(manifest, place, received.task, received.weights_digest, body)


class StudyFoundError(Exception):
    """The coordinator has a study."""


@dataclass
class Participant(RunMember):
    """One silo in one run, from joining to the end."""

    http: HttpClient
    name: str
    make_silo: Callable[[Manifest], Silo]
    build: Callable[[Manifest], nn.Module] | None = None
    device: str = "auto"
    log: SiloLog = no_log
    limits: SiloLimits = field(default_factory=SiloLimits)
    table: TableAccess | None = None
    secure: SecureMember | None = None
    study: Callable[[Participant], str] | None = None
    _secure: SecureSilo | None = field(init=False, default=None)
    _client: SiloClient = field(init=False)
    _summarised: str | None = field(init=False, default=None)
    _sent: str | None = field(init=False, default=None)
    _in_survey: SurveySilo | None = field(init=False, default=None)

    def take_part(self) -> str:
        """Work until the run is over; return how it ended. A study is the work of `study`."""
        try:
            manifest = self.read_manifest()
        except StudyFoundError:
            assert self.study is not None
            return self.study(self)
        require_silo(self.name, manifest.run, manifest.silos)
        if self.secure is not None:
            self.secure.require_fits(manifest, self.name)
        elif manifest.secure:
            raise ConfigError(_NEEDS_KEY)
        if manifest.preprocessing is not None:
            self.require_same_table(manifest.run)
        folder = self.limits.state
        self._client = make_client(manifest, self.name, self.make_silo, self.build, self.device, folder)
        self.limits.require_examples(len(self._client.silo), self.name)
        self.limits.remember(manifest, self.http.url, self.name)
        if self.secure is not None:
            from fedilc.runtimes.rest.secure_silo import SecureSilo

            self.log(f"secure sums over {len(manifest.silos)} silos; roster {self.secure.roster.digest[:16]}")
            folder = self.limits.consent_folder
            self._secure = SecureSilo(self._client, manifest, self.secure, folder, self.log)
        return self._work(manifest)

    def _found_study(self) -> NoReturn:
        """Raise that this is a study, which is done elsewhere; refuse it if nobody here can."""
        if self.secure is not None:
            raise ConfigError(
                "the coordinator has a study, which has no secure sums: totals over sets of silos that "
                "differ in one silo give that silo's answer; leave out `key` and `roster` if you agree"
            )
        if self.study is None or self.table is None:
            super()._found_study()
        raise StudyFoundError

    def _answer_survey(self, body: Mapping[str, Any]) -> None:
        survey = read_survey(body["survey"])
        require_silo(self.name, survey.run, survey.silos)
        if self.secure is not None:
            self.secure.require_fits(survey, self.name)
        elif survey.roster is not None:
            raise ConfigError(_NEEDS_KEY)
        if self.table is None:
            raise CoordinatorError("the run is over tables of silos; name this silo's table with `data`")
        of_table, where = self.table.digest(), (self.http.url, self.name, survey.run)
        agreed = self.limits.agreed(*where, of_table)
        if self._in_survey is not None:
            self._answer_phase(self._in_survey)
            return
        if self.name not in body["missing"]:
            self.log("waiting for the summaries of other silos", "waiting")
            return
        if self.limits.digest is not None:
            raise CoordinatorError(
                "the coordinator has no manifest yet and asks for a summary of the table; leave out "
                "`manifest_digest` if you agree to this"
            )
        summary = self.table.summarise(survey)
        self.limits.require_examples(summary.rows, self.name)
        sent = summary.model_dump_json().encode()
        digest = hashlib.sha256(sent).hexdigest()
        before = {self._sent, self.limits.last_summary(self.http.url, self.name)} - {None, digest}
        if before or agreed != digest:
            # Remembered before it is sent: if this process dies in between, the owner was asked already.
            self.table.agree(summary, survey, digest, bool(before))
            self._remember(*where, of_table, digest)
        self._summarised, self._sent = of_table, digest
        if self.secure is not None:
            from fedilc.runtimes.rest.secure_silo import SiloSums, SurveySilo

            sums = SiloSums(self.secure, self.name, self.limits.consent_folder, self.log)
            self._in_survey = SurveySilo(survey, summary, of_table, sums)
            self.log(f"its summary {digest[:16]} is sent in secure sums over {len(survey.silos)} silos only")
            return
        response = self.http.call("PUT", self._path("summary"), content=sent)
        if response.status != 200:
            self._refused(response)
        self.log(f"sent the summary {digest[:16]}: {len(summary.columns)} columns of {summary.rows} rows")

    def _answer_phase(self, own: SurveySilo) -> None:
        """Answer the phase of a sum of the survey that is open for this silo, if there is one."""
        response = self.http.call("GET", self._path("survey"), _SURVEY_BYTES)
        found = response.json()
        if response.status != 200 or not isinstance(found, dict):
            raise _UnreadableError(f"{self.http.url} answers {response.status}: {response.reason}")
        if found.get("message") is None:
            self.log("waiting for other silos", "waiting")
            return
        answer = json.dumps(own.answer(found["message"])).encode()
        response = self.http.call("PUT", self._path("survey"), content=answer)
        if response.status not in (200, *_REJOIN):
            self._refused(response)

    def _remember(self, url: str, silo: str, run: str, table: str, digest: str) -> None:
        try:
            self.limits.remember_summary(url, silo, run, table, digest)
        except ConfigError as error:
            if self.limits.state is not None:
                raise
            self.log(f"the consent is not remembered, because {error}; name a folder with `state`")

    def require_same_table(self, run: str) -> None:
        """Raise if the table is not the one whose summary was sent to this run."""
        if self.table is None:
            return
        now = self.table.digest()
        self.limits.agreed(self.http.url, self.name, run, now)
        if self._summarised not in (None, now):
            raise ConfigError(
                f"the table of silo {self.name!r} has changed since its summary was sent; restore it, and "
                "join again"
            )

    def _joining(self) -> dict[str, Any]:
        return {} if self._secure is not None else {"examples": len(self._client.silo)}

    def _weights(self) -> Mapping[str, Tensor]:
        return self._secure.weights if self._secure is not None else self._client.weights

    def _reply(self, manifest: Manifest, received: ReceivedRequest) -> bytes:
        received.require_for(self.name, manifest)
        if self._secure is not None:
            return self._secure.answer(received)
        return pack_reply(self._client.answer(received.request), manifest)
