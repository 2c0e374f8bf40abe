"""Templates: rooms find their own, values are escaped in HTML, and a name that is missing is an error."""

from __future__ import annotations

import pytest
from jinja2 import UndefinedError

from fedilc.storage.templating import templates

ROOMS = {
    "fedilc.report.html": {"page.html.jinja", "blocks.html.jinja", "page.css"},
    "fedilc.training": {"model-card.md.jinja"},
    "fedilc.runtimes.flower": {"pyproject.toml.jinja", "client_app.py.jinja"},
}


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_finds_its_own_templates_and_each_can_be_compiled(room: str) -> None:
    found = templates(room)
    assert ROOMS[room] <= set(found.list_templates())
    for name in found.list_templates():
        found.get_template(name)


def test_values_are_escaped_in_html_alone() -> None:
    text = "{{ value }}"
    room = "fedilc.report.html"
    assert templates(room, html=True).from_string(text).render(value="<b>") == "&lt;b&gt;"
    assert templates(room).from_string(text).render(value="<b>") == "<b>"


def test_a_name_that_is_not_given_is_an_error_and_not_an_empty_text() -> None:
    with pytest.raises(UndefinedError, match="'value' is undefined"):
        templates("fedilc.training").from_string("{{ value }}").render()
