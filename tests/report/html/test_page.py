"""The page: every text is escaped, headings and tables are in order, settings are in words."""

from __future__ import annotations

import pytest
from html_pages import Page, macro

from fedilc.report.html.page import Part, page, setting, settings_table
from fedilc.report.tables import Cell, TableData, words

HOSTILE = "<img src=x onerror=alert(1)>"


def test_names_are_text_and_never_html() -> None:
    found = Page(page(HOSTILE, [Part(HOSTILE, (HOSTILE,), ((HOSTILE, ""),))]))
    assert found.attributes("img") == []
    assert found.all("title", "h1", "h2") == [HOSTILE, HOSTILE, "Verdict", HOSTILE]
    told = settings_table(HOSTILE, "", [HOSTILE], {HOSTILE: {}})
    for name, value in (("command", HOSTILE), ("table", told), ("list", [HOSTILE]), ("note", HOSTILE)):
        rest = Page(macro("blocks", name, value))
        assert rest.attributes("img") == []
        assert HOSTILE in rest.all("pre", "th", "li", "p")


def test_characters_that_no_page_may_hold_are_replaced() -> None:
    assert Page(page("a\x00b\ud800", [])).all("h1") == ["a\ufffdb\ufffd"]


def test_verdicts_come_first_and_are_named_if_several_parts_have_one() -> None:
    parts = [Part(name, (f"{name} is best.",), (("Scores", ""),)) for name in ("a", "b")]
    one, two = Page(page("t", parts[:1])), Page(page("t", parts))
    assert one.all("h1", "h2", "h3") == ["t", "Verdict", "a", "Scores"]
    assert two.all("h1", "h2", "h3") == ["t", "Verdict", "a", "b", "a", "Scores", "b", "Scores"]
    targets = {a["id"] for _, a, _ in two.elements if "id" in a}
    assert {(a["href"] or "").removeprefix("#") for a in two.attributes("a")} <= targets


def test_a_table_has_a_caption_scopes_groups_and_its_notes_if_wanted() -> None:
    rows = [("x", "a", Cell("1", bold=True)), ("y", "b", 2)]
    data = TableData.of("t", "s", "Losses", (*words("group", "name"), "loss"), rows, ["a note"], grouped=True)
    found = Page(macro("blocks", "table", data))
    assert found.all("caption", "th") == ["Losses", "name", "loss", "x", "a", "y", "b"]
    scopes = [a["scope"] for a in found.attributes("th")]
    assert scopes == ["col", "col", "rowgroup", "row", "rowgroup", "row"]
    assert found.all("strong") == ["1"]
    assert found.all("p") == ["a note"]
    assert Page(macro("blocks", "table", data, with_notes=False)).all("p") == []


@pytest.mark.parametrize(
    ("value", "shown"),
    [(None, "none"), ({}, "none"), ([], "none"), (0.1, "0.1"), ([0.01, 3], "0.01, 3"), (True, "True")],
)
def test_settings_are_in_words(value: object, shown: str) -> None:
    assert setting(value) == shown
