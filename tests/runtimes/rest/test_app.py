"""The OpenAPI document, its page, and whatever schemathesis makes of it: never a 5xx."""

from __future__ import annotations

import json
import re

import schemathesis
from hypothesis import HealthCheck, Phase, settings
from schemathesis.checks import not_a_server_error
from starlette.types import ASGIApp, Receive, Scope, Send

from fedilc.runtimes.remote.wire import MEDIA_TYPE
from fedilc.runtimes.rest.coordinator import api_html, make_app
from rest import post, queue_of, served

schemathesis.serializer.alias(MEDIA_TYPE, "application/octet-stream")
LIVE = queue_of()
POSTED = post(LIVE)
OVER = queue_of()
OVER.finish("complete")


def nameless(app: ASGIApp) -> ASGIApp:
    """The application without the host that schemathesis calls it by, which is not this machine."""

    async def call(scope: Scope, receive: Receive, send: Send) -> None:
        headers = [(key, value) for key, value in scope.get("headers", []) if key != b"host"]
        await app({**scope, "headers": headers}, receive, send)

    return call


live = schemathesis.openapi.from_asgi("/openapi.json", nameless(make_app(LIVE, None)))
over = schemathesis.openapi.from_asgi("/openapi.json", nameless(make_app(OVER, None)))
BOUNDED = settings(
    max_examples=60,
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)


def brought_near(case: schemathesis.Case) -> None:
    """Half of the cases at a silo that there is and at its task, and none that waits."""
    if "silo" in case.path_parameters and len(str(case.path_parameters["silo"])) % 2:
        case.path_parameters["silo"] = "a"
    if case.query and "task" in case.query and len(str(case.query["task"])) % 2:
        case.query["task"] = POSTED.name
    if case.query and "wait" in case.query:
        case.query["wait"] = 0


@live.exclude(path="/v1/events").parametrize()
@BOUNDED
def test_nothing_makes_a_live_coordinator_fail(case: schemathesis.Case) -> None:
    brought_near(case)
    case.call_and_validate(checks=[not_a_server_error])


@over.exclude(path="/v1/ready").parametrize()
@BOUNDED
def test_nothing_makes_one_fail_whose_run_is_over(case: schemathesis.Case) -> None:
    brought_near(case)
    case.call_and_validate(checks=[not_a_server_error])


def test_the_document_names_every_resource_and_its_refusals() -> None:
    paths = make_app(LIVE, None).openapi()["paths"]
    assert set(paths) == {
        "/metrics",
        "/v1/health",
        "/v1/ready",
        "/v1/manifest",
        "/v1/status",
        "/v1/history",
        "/v1/events",
        "/v1/silos/{silo}/join",
        "/v1/silos/{silo}/task",
        "/v1/silos/{silo}/rounds/{number}/{step}",
    }
    answer = paths["/v1/silos/{silo}/rounds/{number}/{step}"]["put"]
    assert {"200", "401", "403", "404", "409", "413", "422", "429"} <= set(answer["responses"])
    json.dumps(paths)


def test_the_page_of_resources_names_all_of_them_and_fetches_nothing_from_elsewhere() -> None:
    with served(LIVE) as client:
        document, page = client.get("/openapi.json").json(), client.get("/docs")
        assert page.headers["content-type"].startswith("text/html")
        assert "default-src 'self'" in page.headers["content-security-policy"]
        for path, methods in document["paths"].items():
            for method in methods:
                assert f"{method.upper()} {path}" in page.text
        linked = re.findall(r"(?:src|href)=\"([^\"]+)\"", page.text)
        assert linked
        assert [client.get(f"/{link}").status_code for link in linked] == [200] * len(linked)


def test_what_is_in_the_document_is_text_on_the_page() -> None:
    info = {"title": "<b>", "version": "1"}
    operation = {"description": "<script>", "parameters": [{"name": "<i>", "in": "query"}]}
    page = api_html({"info": info, "paths": {"/<u>": {"get": operation}}})
    assert not any(tag in page for tag in ("<b>", "<script>", "<i>", "<u>"))
