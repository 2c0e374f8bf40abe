"""The coordinator's HTTP app, versioned under /v1 and described at /docs."""

from __future__ import annotations

from fastapi import FastAPI

from fedilc import __version__
from fedilc.runtimes.rest.api_page import add_api_page
from fedilc.runtimes.rest.audit import Audit, AuditedRefusals
from fedilc.runtimes.rest.auth import Auth, OnlyLoopbackNames
from fedilc.runtimes.rest.monitoring import RunView, add_monitoring
from fedilc.runtimes.rest.request_limits import add_refusals
from fedilc.runtimes.rest.silo_routes import add_silo_routes
from fedilc.runtimes.rest.task_queue import TaskQueue
from fedilc.runtimes.rest.tokens import TokenFile, Tokens


def make_app(run: TaskQueue | RunView, tokens: Tokens | TokenFile | None) -> FastAPI:
    """Return the app of a task queue, or of any other run view, which has the page and no routes of silos."""
    auth = Auth(tokens)
    if isinstance(run, TaskQueue):
        app = make_bare_app(auth, run.audit, len(run.silos))
        add_silo_routes(app, run, auth)
    else:
        app = make_bare_app(auth, Audit(), 0)
    add_monitoring(app, run, auth)
    add_api_page(app)
    return app


def make_bare_app(auth: Auth, audit: Audit, silos: int) -> FastAPI:
    """Return an app without routes; `silos` is how many silos may connect."""
    app = FastAPI(
        title="FedILC coordinator",
        version=__version__,
        description="Silos ask for their next task and send replies; tensors are sent as safetensors.",
        docs_url=None,
        redoc_url=None,
    )
    app.state.notifiers, app.state.silos, app.state.audit = [], silos, audit
    add_refusals(app)
    if auth.tokens is None:
        app.add_middleware(OnlyLoopbackNames)
    app.add_middleware(AuditedRefusals, audit=audit)
    return app
