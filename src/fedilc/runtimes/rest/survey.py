"""Collect the silos' summaries of their tables over HTTP, before a run; no row is sent.

`remote/survey.py` says what is asked and what follows from the summaries: the run's preprocessing.
"""

from __future__ import annotations

import asyncio
import json
import math
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from fastapi import Depends, FastAPI, HTTPException, Request
from fastapi.concurrency import run_in_threadpool

from fedilc.config import Experiment
from fedilc.data.checks.federation import Report
from fedilc.data.checks.notes import grouped
from fedilc.data.sources import RemoteTables
from fedilc.data.tables.preprocessing import Preprocessing
from fedilc.data.tables.silo_summary import SiloSummary
from fedilc.data.tables.summary_checks import check_summary, unconfirmed_silos
from fedilc.data.tables.table_notes import table_notes
from fedilc.errors import DataError
from fedilc.runtimes.remote.survey import Survey, read_summaries
from fedilc.runtimes.rest.address import Address
from fedilc.runtimes.rest.audit import Audit
from fedilc.runtimes.rest.auth import Auth, SiloName, TokenFile, Tokens
from fedilc.runtimes.rest.coordinator import AUDIT_FILE, listening, make_bare_app, require_tokens
from fedilc.runtimes.rest.membership import RefusedError
from fedilc.runtimes.rest.monitoring import add_health
from fedilc.runtimes.rest.request_limits import read_body, read_json, refusals
from fedilc.runtimes.rest.silo_routes import Receipt
from fedilc.runtimes.rest.task_queue import Spool
from fedilc.storage.files import write_atomically
from fedilc.storage.run_folder import SUMMARIES
from fedilc.training.loaded_model import read_preprocessing

if TYPE_CHECKING:
    from fedilc.privacy.identities import Roster

Found = TypeVar("Found")
MAX_SUMMARY_BYTES = 8 << 20
_SWITCH_SECONDS = 0.2
_MOST_REASONS = 20
_FREE_REFUSALS = 10
_PAUSE_SECONDS = 10.0


@dataclass
class Summaries:
    """The summaries that were received and are believed; every method may be called from any thread.

    Attributes:
        survey: what silos are asked.
        audit: where summaries and refusals are recorded.
        say: called with a sentence on each silo that is refused.
        found: the summary of each silo.
        refused: summaries that other silos contradict, with the reason.
    """

    survey: Survey
    audit: Audit = field(default_factory=Audit)
    say: Callable[[str], None] = lambda _: None
    found: dict[str, SiloSummary] = field(default_factory=dict)
    refused: dict[str, tuple[SiloSummary, str]] = field(default_factory=dict)
    _said: dict[str, set[str]] = field(default_factory=dict)
    _refusals: dict[str, tuple[int, float]] = field(default_factory=dict)
    _changed: threading.Condition = field(default_factory=threading.Condition)

    @property
    def missing(self) -> list[str]:
        """Return the silos that have not sent a summary that is believed."""
        return [silo for silo in self.survey.silos if silo not in self.found]

    def put(self, silo: str, summary: SiloSummary) -> None:
        """Store a silo's summary; refuse one that no table has, or another one than before."""
        try:
            check_summary(summary, self.survey.table)
        except DataError as error:
            self.refuse(silo, str(error))
            raise RefusedError(422, str(error)) from error
        with self._changed:
            before, reason = self.refused.get(silo, (None, ""))
            if summary == before:
                raise RefusedError(403, reason)
            if self.found.get(silo, summary) != summary:
                reason = (
                    f"silo {silo!r} has sent another summary before; a table must not change within a run"
                )
                self.refuse(silo, reason)
                raise RefusedError(409, reason)
            if silo not in self.found:
                self.audit.event("summary", silo=silo, rows=summary.rows, columns=len(summary.columns))
            self.found[silo] = summary
            self._changed.notify_all()

    def wait(self, needed: int, patience: float) -> dict[str, SiloSummary]:
        """Return the summaries of all silos; after `patience` seconds, those of at least `needed` silos.

        Summaries that the others contradict are refused, and their silos are waited for again.
        """
        deadline = time.monotonic() + patience
        with self._changed:
            while True:
                is_late = time.monotonic() >= deadline and len(self.found) >= needed
                if not self.missing or is_late:
                    wrong = unconfirmed_silos(self.found, self.survey.table)
                    if not wrong:
                        return dict(self.found)
                    for silo, reason in wrong.items():
                        sentence = f"the summary of silo {silo!r} is refused: {reason}"
                        self.refused[silo] = self.found.pop(silo), sentence
                        self.refuse(silo, sentence)
                self._changed.wait(0.5)

    def require_pause(self, silo: str) -> None:
        """Raise if a silo whose summaries were refused many times sends the next one too soon."""
        count, last = self._refusals.get(silo, (0, 0.0))
        if count >= _FREE_REFUSALS and time.monotonic() < last + _PAUSE_SECONDS:
            pause = f"{_PAUSE_SECONDS:.0f} s"
            raise RefusedError(
                429, f"{count} summaries of silo {silo!r} were refused; send at most one per {pause}"
            )

    def refuse(self, silo: str, sentence: str) -> None:
        """Record that a silo's summary is refused, and say why; repeated reasons are not recorded again."""
        with self._changed:
            count, _ = self._refusals.get(silo, (0, 0.0))
            self._refusals[silo] = count + 1, time.monotonic()
            said = self._said.setdefault(silo, set())
            if sentence in said or len(said) == _MOST_REASONS:
                return
            said.add(sentence)
        self.audit.event("summary refused", silo=silo, reason=sentence)
        self.say(sentence)


def make_survey_app(summaries: Summaries, tokens: Tokens | TokenFile | None) -> FastAPI:
    """Return the app before a run: the survey in place of the manifest, and a route for summaries."""
    auth, refused = Auth(tokens, summaries.survey.silos), refusals(401, 403, 404, 409, 413, 429)
    app = make_bare_app(auth, summaries.audit, len(summaries.survey.silos))
    one_at_a_time = asyncio.Lock()  # a summary takes many times its size in memory
    add_health(app, auth, is_over=lambda: False)

    @app.get("/v1/manifest", dependencies=[Depends(auth.require_token)], responses=refused)
    async def manifest() -> dict[str, Any]:
        """Return what silos are asked before there is a manifest, and which silos have not replied."""
        return {"survey": summaries.survey.model_dump(mode="json"), "missing": summaries.missing}

    @app.put("/v1/silos/{silo}/summary", dependencies=[Depends(auth.require_silo)], responses=refused)
    async def summary(request: Request, silo: SiloName) -> Receipt:
        """Receive a silo's summary of its table."""
        if silo not in summaries.survey.silos:
            raise HTTPException(404, f"no silo of this run is called {silo!r}")
        summaries.require_pause(silo)
        body = await read_body(request, MAX_SUMMARY_BYTES, Spool())
        async with one_at_a_time:
            summaries.require_pause(silo)
            await run_in_threadpool(
                _receive, summaries, silo, body.content()
            )  # the loop serves others meanwhile
        return Receipt()

    return app


def _receive(summaries: Summaries, silo: str, body: bytes) -> None:
    """Read, check and store a summary; raise if it is refused."""
    try:
        found = read_json(SiloSummary, body)
    except HTTPException as error:
        summaries.refuse(silo, f"the summary of silo {silo!r} is refused: {error.detail}")
        raise
    if found.name != silo:
        raise HTTPException(422, "name: the summary is another silo's")
    summaries.put(silo, found)


def survey_tables(
    settings: Experiment,
    data: RemoteTables,
    out: Path,
    address: Address,
    tokens: Tokens | TokenFile | None,
    patience: float,
    say: Callable[[str], None],
    roster: Roster | None = None,
) -> tuple[Preprocessing, Address]:
    """Return the preprocessing of silos' tables, and the address at which they will look for the run.

    The preprocessing is that of the run folder, or follows from summaries that silos send. With a roster it
    follows from secure sums of them.
    """
    stored = read_preprocessing(out)
    if isinstance(stored, Preprocessing):
        return stored, address
    needed = settings.quorum(len(data.silos))
    survey = Survey.of(settings.name, data)
    if roster is not None:
        survey = Survey.of(settings.name, data, roster.digest, needed)
    audit = _begin(survey, out, address, tokens)
    waiting = address, survey, audit, say
    if roster is None:
        collected = Summaries(survey, audit, say)
        app = make_survey_app(collected, tokens)
        believed, address = _wait_at(app, lambda: collected.wait(needed, patience), *waiting)
        made, summaries = survey.preprocessing(believed), list(believed.values())
    else:
        from fedilc.runtimes.rest.secure_survey import SurveySums, make_secure_survey_app

        sums = SurveySums(survey, roster, patience, audit, say)
        sums.form.require_declared()
        total, address = _wait_at(make_secure_survey_app(sums, tokens), sums.collect, *waiting)
        made, summaries = sums.form.preprocessing(total), [total]
    _write(summaries, out)
    Report(notes=grouped(table_notes(summaries, made))).warn()
    return made, address


def survey_study(
    survey: Survey,
    out: Path,
    address: Address,
    tokens: Tokens | TokenFile | None,
    say: Callable[[str], None],
) -> tuple[dict[str, SiloSummary], Address]:
    """Return the summaries of all silos of a study, stored or collected now, and where it is served."""
    found = read_summaries(out)
    if set(found) != set(survey.silos):
        audit = _begin(survey, out, address, tokens)
        collected = Summaries(survey, audit, say)
        app, needed = make_survey_app(collected, tokens), len(survey.silos)
        wait = partial(collected.wait, needed, math.inf)
        found, address = _wait_at(app, wait, address, survey, audit, say)
        _write([found[silo] for silo in survey.silos], out)
    return {silo: found[silo] for silo in survey.silos}, address


def _begin(survey: Survey, out: Path, address: Address, tokens: Tokens | TokenFile | None) -> Audit:
    """Make the folder of a run whose survey begins; return its audit."""
    require_tokens(survey.silos, tokens, address)
    out.mkdir(mode=0o700, parents=True, exist_ok=True)
    return Audit(out / AUDIT_FILE)


def _wait_at(
    app: FastAPI,
    wait: Callable[[], Found],
    address: Address,
    survey: Survey,
    audit: Audit,
    say: Callable[[str], None],
) -> tuple[Found, Address]:
    """Serve a survey until what is waited for is there; return it, and where silos look for the run then."""
    try:
        with listening(app, address) as port:
            say(f"silos join at {address.url(port)}; waiting for summaries of {', '.join(survey.silos)}")
            found = wait()
            time.sleep(_SWITCH_SECONDS)  # so that the last silo receives its response
            return found, replace(address, port=port)
    finally:
        audit.flush(now=True)


def _write(summaries: Sequence[SiloSummary], out: Path) -> None:
    text = json.dumps([summary.model_dump(mode="json") for summary in summaries])
    write_atomically(out / SUMMARIES, text.encode())
