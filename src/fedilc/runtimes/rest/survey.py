"""Collect the silos' summaries of their tables over HTTP, before a run; no row is sent."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fastapi import Depends, FastAPI, HTTPException, Request

from fedilc.data.tables.silo_summary import SiloSummary
from fedilc.runtimes.remote.survey import Survey
from fedilc.runtimes.rest.address import Address
from fedilc.runtimes.rest.app import make_bare_app
from fedilc.runtimes.rest.audit import Audit
from fedilc.runtimes.rest.auth import Auth, SiloName
from fedilc.runtimes.rest.listener import listening
from fedilc.runtimes.rest.monitoring import Health
from fedilc.runtimes.rest.reply_spool import Spool
from fedilc.runtimes.rest.request_limits import read_body, read_json, refusals
from fedilc.runtimes.rest.silo_routes import Receipt
from fedilc.runtimes.rest.tokens import TokenFile, Tokens

MAX_SUMMARY_BYTES = 8 << 20
_SWITCH_SECONDS = 0.2


@dataclass
class Summaries:
    """The summaries that have come; every method may be called from any thread."""

    survey: Survey
    audit: Audit = field(default_factory=Audit)
    found: dict[str, SiloSummary] = field(default_factory=dict)
    _changed: threading.Condition = field(default_factory=threading.Condition)

    @property
    def missing(self) -> list[str]:
        """Return the silos that have not replied."""
        return [silo for silo in self.survey.silos if silo not in self.found]

    def put(self, silo: str, summary: SiloSummary) -> None:
        """Store a silo's summary; a later one replaces it."""
        with self._changed:
            self.found[silo] = summary
            self.audit.event("summary", silo=silo, rows=summary.rows, columns=len(summary.columns))
            self._changed.notify_all()

    def wait(self, needed: int, patience: float) -> dict[str, SiloSummary]:
        """Return the summaries of all silos; after `patience` seconds, of those that are needed at least."""
        deadline = time.monotonic() + patience
        with self._changed:
            while self.missing and not (time.monotonic() >= deadline and len(self.found) >= needed):
                self._changed.wait(0.5)
            return dict(self.found)


def make_survey_app(summaries: Summaries, tokens: Tokens | TokenFile | None) -> FastAPI:
    """Return the app before a run: the survey in place of the manifest, and a route for summaries."""
    auth, refused = Auth(tokens), refusals(401, 404, 413, 429)
    app = make_bare_app(auth, summaries.audit, len(summaries.survey.silos))

    @app.get("/v1/health")
    async def health() -> Health:
        """Return whether the coordinator is up; needs no token."""
        return Health(viewer_token=auth.tokens is not None)

    @app.get("/v1/manifest", dependencies=[Depends(auth.require_token)], responses=refused)
    async def manifest() -> dict[str, Any]:
        """Return what silos are asked before there is a manifest, and which silos have not replied."""
        return {"survey": summaries.survey.model_dump(mode="json"), "missing": summaries.missing}

    @app.put("/v1/silos/{silo}/summary", dependencies=[Depends(auth.require_silo)], responses=refused)
    async def summary(request: Request, silo: SiloName) -> Receipt:
        """Receive a silo's summary of its table."""
        if silo not in summaries.survey.silos:
            raise HTTPException(404, f"no silo of this run is called {silo!r}")
        body = (await read_body(request, MAX_SUMMARY_BYTES, Spool())).content()
        found = read_json(SiloSummary, body)
        if found.name != silo:
            raise HTTPException(422, "name: the summary is another silo's")
        summaries.put(silo, found)
        return Receipt()

    return app


def collect_summaries(
    survey: Survey,
    out: Path,
    address: Address,
    tokens: Tokens | TokenFile | None,
    needed: int,
    patience: float,
    ready: Callable[[str], None],
) -> tuple[dict[str, SiloSummary], int]:
    """Return the silos' summaries, and the port on which they will look for the run."""
    out.mkdir(mode=0o700, parents=True, exist_ok=True)
    summaries = Summaries(survey, Audit(out / "audit.jsonl"))
    try:
        with listening(make_survey_app(summaries, tokens), address) as port:
            ready(address.url(port))
            found = summaries.wait(needed, patience)
            time.sleep(_SWITCH_SECONDS)  # so that the last silo receives its response
    finally:
        summaries.audit.flush(now=True)
    return found, port
