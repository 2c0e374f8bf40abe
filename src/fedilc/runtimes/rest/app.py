"""The coordinator's HTTP app, versioned under /v1, and the page at /docs that describes it."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI
from fastapi.responses import HTMLResponse

from fedilc import __version__
from fedilc.runtimes.rest.audit import Audit, AuditedRefusals
from fedilc.runtimes.rest.auth import Auth, OnlyLoopbackNames
from fedilc.runtimes.rest.monitoring import PAGE, PAGE_HEADERS, add_monitoring
from fedilc.runtimes.rest.request_limits import add_refusals
from fedilc.runtimes.rest.silo_routes import add_silo_routes
from fedilc.runtimes.rest.task_queue import TaskQueue
from fedilc.runtimes.rest.tokens import TokenFile, Tokens

if TYPE_CHECKING:
    from fedilc.runtimes.rest.viewer import FolderView


def make_app(run: TaskQueue | FolderView, tokens: Tokens | TokenFile | None) -> FastAPI:
    """Return the app of a task queue, or of a run folder, which has the page and no routes of silos."""
    auth = Auth(tokens, run.silos)
    if isinstance(run, TaskQueue):
        app = make_bare_app(auth, run.audit, len(run.silos))
        add_silo_routes(app, run, auth)
    else:
        app = make_bare_app(auth, Audit(), 0)
    add_monitoring(app, run, auth)

    @app.get("/docs", include_in_schema=False)
    async def api_page() -> HTMLResponse:
        return HTMLResponse(api_html(app.openapi()), headers=PAGE_HEADERS)

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


def api_html(document: dict[str, Any]) -> str:
    """Return an OpenAPI document as HTML: each resource, its parameters, and its responses."""
    info = document["info"]
    parts = [
        _resource(path, method, operation)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    ]
    fields = {"title": info["title"], "about": info.get("description", ""), "version": info["version"]}
    escaped = {key: escape(text) for key, text in fields.items()}
    return (PAGE / "api.html").read_text().format(resources="\n".join(parts), **escaped)


def _resource(path: str, method: str, operation: dict[str, Any]) -> str:
    about = escape(operation.get("description", operation.get("summary", "")))
    rows = "\n".join(
        f"<dt>{escape(name)}</dt><dd>{escape(text)}</dd>"
        for name, text in (*_parameters(operation), *_responses(operation))
    )
    heading = f"<h2><code>{method.upper()} {escape(path)}</code></h2>"
    return f"<section>\n{heading}\n<p>{about}</p>\n<dl>\n{rows}\n</dl>\n</section>"


def _parameters(operation: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield names and descriptions of the parameters and the body."""
    for parameter in operation.get("parameters", []):
        need = "required" if parameter.get("required") else "optional"
        text = parameter.get("description") or parameter.get("schema", {}).get("description", "")
        yield parameter["name"], f"{parameter['in']}, {need}" + (f": {text}" if text else "")
    kinds = operation.get("requestBody", {}).get("content", {})
    if kinds:
        yield "body", " or ".join(kinds)


def _responses(operation: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the statuses and media types of responses; all refusals share one line."""
    refused = []
    for status, response in operation.get("responses", {}).items():
        if status.startswith("2"):
            yield status, " or ".join(response.get("content", {})) or response.get("description", "")
        else:
            refused.append(status)
    if refused:
        yield "refused", f"{', '.join(sorted(refused))}; JSON whose detail is the reason in one sentence"
