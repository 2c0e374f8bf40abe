"""The page at /docs names every route, fetches nothing from elsewhere, and shows text as text."""

from __future__ import annotations

import re

from fedilc.runtimes.rest.api_page import api_html
from rest import queue_of, served

LIVE = queue_of()


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
