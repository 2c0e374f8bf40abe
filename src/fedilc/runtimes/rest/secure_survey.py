"""The coordinator's side of a survey of tables in secure sums: two sums before there is a run.

Silos ask for the phase that is open for them, and answer it, with the messages of secure sums as JSON.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from fastapi import Depends, FastAPI, HTTPException, Request
from numpy.typing import NDArray

from fedilc.data.tables.silo_summary import SiloSummary
from fedilc.errors import ProtocolError, SilosLostError
from fedilc.privacy.identities import Roster
from fedilc.privacy.secure_sums import SumCollector, SumContext, least_members, threshold
from fedilc.privacy.survey_sums import SurveyForm
from fedilc.privacy.words import COUNTS, VALUES
from fedilc.runtimes.remote.secure_messages import (
    SecureAnswer,
    SurveyAnswer,
    Take,
    run_attempt,
    survey_digests,
)
from fedilc.runtimes.remote.survey import Survey
from fedilc.runtimes.rest.audit import Audit
from fedilc.runtimes.rest.auth import Auth, SiloName, TokenFile, Tokens
from fedilc.runtimes.rest.coordinator import make_bare_app
from fedilc.runtimes.rest.monitoring import add_health
from fedilc.runtimes.rest.request_limits import read_body, read_json, refusals
from fedilc.runtimes.rest.silo_routes import Receipt
from fedilc.runtimes.rest.task_queue import Spool

MAX_ANSWER_BYTES = 32 << 20
_PAUSE_SECONDS = 0.5
_MOST_FAILURES = 60


@dataclass
class _Answer:
    answer: SecureAnswer
    words: NDArray[Any] | None


class _TryAgainError(Exception):
    """An attempt cannot be completed; `over` are the silos that the next one must be over, if known."""

    def __init__(self, over: Sequence[str] = ()) -> None:
        super().__init__()
        self.over = tuple(over)


class SurveySums:
    """The sums of a survey; `message` and `put` may be called from any thread."""

    def __init__(
        self,
        survey: Survey,
        roster: Roster,
        patience: float,
        audit: Audit | None = None,
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.survey, self.roster, self.patience, self.say = survey, roster, patience, say
        self.audit = audit or Audit()
        self.form = SurveyForm(survey.table)
        self.needed = least_members(len(survey.silos), survey.members or len(survey.silos))
        self._open: dict[str, dict[str, Any]] = {}
        self._answers: list[tuple[str, SurveyAnswer]] = []
        self._kept: NDArray[np.bool_] | None = None
        self._said: set[str] = set()
        self._changed = threading.Condition()

    def message(self, silo: str) -> dict[str, Any] | None:
        """Return the phase that a silo has yet to answer, if there is one."""
        with self._changed:
            return self._open.get(silo)

    def put(self, silo: str, answer: SurveyAnswer) -> None:
        """Take a silo's answer to the open phase; another one is not open for it, and is ignored."""
        with self._changed:
            message = self._open.get(silo)
            if message is not None and (message["attempt"], message["phase"]) == (
                answer.attempt,
                answer.phase,
            ):
                del self._open[silo]
                self._answers.append((silo, answer))
                self._changed.notify_all()

    def collect(self) -> SiloSummary:
        """Return the summary of all silos together; silos that do not come in time are left out."""
        flags, silos = self._repeat(COUNTS, tuple(self.survey.silos), None, exactly=False)
        kept = self.form.kept(flags)
        values, _ = self._repeat(VALUES, silos, kept, exactly=True)
        found = self.form.summary(flags, kept, values)
        self.audit.event("summary", silo=found.name, rows=found.rows, columns=len(found.columns))
        return found

    def _repeat(
        self, part: str, silos: tuple[str, ...], kept: NDArray[np.bool_] | None, exactly: bool
    ) -> tuple[NDArray[Any], tuple[str, ...]]:
        deadline, failures = time.monotonic() + self.patience, 0
        while True:
            try:
                return self._attempt(part, silos, kept, exactly, deadline)
            except _TryAgainError as again:
                if again.over:
                    silos, exactly = again.over, True
                failures += 1
                if failures == _MOST_FAILURES:
                    raise SilosLostError(
                        f"the sums of the survey failed {failures} times: {'; '.join(sorted(self._said))}"
                    ) from None
                time.sleep(_PAUSE_SECONDS)

    def _attempt(
        self,
        part: str,
        silos: tuple[str, ...],
        kept: NDArray[np.bool_] | None,
        exactly: bool,
        deadline: float,
    ) -> tuple[NDArray[Any], tuple[str, ...]]:
        self._kept, run, attempt = kept, self.survey.hash, secrets.token_hex(8)
        what = f"survey {part}"
        least = self.survey.members or len(self.survey.silos)
        context = SumContext(run, self.roster.digest, 0, what, attempt, least)
        collector = SumCollector(context, self.roster)
        sides = "" if kept is None else np.packbits(kept).tobytes().hex()
        most = threshold(len(self.roster.keys))
        enough = {"sign": most, "unmask": most}

        def ask(phase: str, own: Mapping[str, Mapping[str, Any]], take: Take) -> None:
            about = {"phase": phase, "part": part, "attempt": attempt, "kept": sides}
            needed = enough.get(phase, len(silos) if exactly else self.needed)
            self._ask({silo: {**about, **more} for silo, more in own.items()}, needed, take, deadline)

        try:
            total = run_attempt(collector, silos, survey_digests(run, sides), ask)
        except ProtocolError as error:
            self._note(str(error))
            raise _TryAgainError from error
        return total, tuple(silo for silo in silos if silo in collector.survivors)

    def _ask(self, messages: dict[str, dict[str, Any]], needed: int, take: Take, deadline: float) -> None:
        """Open a phase, and take answers until all have come, or it is late and `needed` have."""
        taken, waiting = 0, set(messages)
        with self._changed:
            self._open, self._answers = messages, []
            while waiting and taken + len(waiting) >= needed:
                while self._answers:
                    silo, answer = self._answers.pop(0)
                    waiting.discard(silo)
                    taken += self._take(silo, answer, take)
                if not waiting or (time.monotonic() >= deadline and taken >= needed):
                    break
                self._changed.wait(_PAUSE_SECONDS)
            self._open = {}
        if taken < needed:
            raise _TryAgainError

    def _take(self, silo: str, answer: SurveyAnswer, take: Take) -> bool:
        if answer.earlier is not None and self._is_possible(answer.earlier):
            raise _TryAgainError(answer.earlier)
        if answer.refused is not None:
            self._note(f"silo {silo!r} refuses: {answer.refused}")
            return False
        try:
            words = None
            if answer.words is not None:
                kind = np.uint32 if self._kept is None else np.uint64
                words = np.frombuffer(bytes.fromhex(answer.words), np.dtype(kind).newbyteorder("<")).astype(
                    kind
                )
                if len(words) != self.form.words(self._kept):
                    raise ProtocolError("its masked words are more or fewer than asked for")
            take(silo, _Answer(answer, words))
        except ProtocolError as error:
            self._note(f"silo {silo!r}: {error}")
            return False
        return True

    def _is_possible(self, silos: Sequence[str]) -> bool:
        return set(silos) <= set(self.survey.silos) and len(set(silos)) >= self.needed

    def _note(self, sentence: str) -> None:
        """Say once why an attempt failed."""
        if sentence not in self._said:
            self._said.add(sentence)
            self.audit.event("summary refused", silo="", reason=sentence)
            self.say(sentence)


def make_secure_survey_app(sums: SurveySums, tokens: Tokens | TokenFile | None) -> FastAPI:
    """Return the app before a run: the survey in place of the manifest, and the phases of its sums."""
    silos = sums.survey.silos
    auth, refused = Auth(tokens, silos), refusals(401, 403, 404, 409, 413, 429)
    app = make_bare_app(auth, sums.audit, len(silos))
    add_health(app, auth, is_over=lambda: False)
    silos_only = [Depends(auth.require_silo)]

    @app.get("/v1/manifest", dependencies=[Depends(auth.require_token)], responses=refused)
    async def manifest() -> dict[str, Any]:
        """Return what silos are asked before there is a manifest."""
        return {"survey": sums.survey.model_dump(mode="json"), "missing": silos}

    def require_known(silo: str) -> None:
        if silo not in silos:
            raise HTTPException(404, f"no silo of this run is called {silo!r}")

    @app.get("/v1/silos/{silo}/survey", dependencies=silos_only, responses=refused)
    async def phase(silo: SiloName) -> dict[str, Any]:
        """Return the phase that the silo has yet to answer."""
        require_known(silo)
        return {"message": sums.message(silo)}

    @app.put("/v1/silos/{silo}/survey", dependencies=silos_only, responses=refused)
    async def answer(request: Request, silo: SiloName) -> Receipt:
        """Receive a silo's answer to a phase."""
        require_known(silo)
        body = await read_body(request, MAX_ANSWER_BYTES, Spool())
        sums.put(silo, read_json(SurveyAnswer, body.content()))
        return Receipt()

    return app
