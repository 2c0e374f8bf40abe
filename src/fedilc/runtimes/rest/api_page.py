"""Show the HTTP API as a page, made from the OpenAPI document; nothing is fetched from elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from typing import Any

from fastapi import FastAPI
from fastapi.responses import HTMLResponse

from fedilc.runtimes.rest.monitoring import PAGE_HEADERS

_PAGE = """<!doctype html>
<html lang="en">
<head>
  <meta charset="utf-8">
  <meta name="viewport" content="width=device-width, initial-scale=1">
  <meta name="color-scheme" content="light dark">
  <title>{title}</title>
  <link rel="icon" type="image/svg+xml" href="page/icon.svg">
  <link rel="stylesheet" href="page/style.css">
  <link rel="stylesheet" href="page/api.css">
</head>
<body>
<main>
<h1>{title}</h1>
<p>{about} Version {version}. The machine-readable form is <a href="openapi.json">openapi.json</a>.</p>
{resources}
</main>
</body>
</html>
"""


def add_api_page(app: FastAPI) -> None:
    """Add the page at /docs."""

    @app.get("/docs", include_in_schema=False)
    async def api_page() -> HTMLResponse:
        return HTMLResponse(api_html(app.openapi()), headers=PAGE_HEADERS)


def api_html(document: dict[str, Any]) -> str:
    """Return an OpenAPI document as HTML: each resource, its parameters, and its responses."""
    info = document["info"]
    parts = [
        _resource(path, method, operation)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    ]
    fields = {"title": info["title"], "about": info.get("description", ""), "version": info["version"]}
    return _PAGE.format(resources="\n".join(parts), **{key: escape(text) for key, text in fields.items()})


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
        choices = parameter.get("schema", {}).get("enum")
        text = text or ("one of " + ", ".join(map(str, choices)) if choices else "")
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
