"""The page of an HTML report: one file with its style inside, made of parts that templates write."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Any

from fedilc import __version__
from fedilc.evaluation.intervals import CAUTION_MARK, NOT_ESTIMABLE
from fedilc.report.tables import TableData, words
from fedilc.storage.templating import templates

if TYPE_CHECKING:
    from jinja2 import Environment

_FORBIDDEN = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff]")
_next_number = count(1).__next__


@dataclass(frozen=True)
class Part:
    """A part of a report: one study, one inspection, or the runs that share their data.

    Attributes:
        title: the part's heading.
        verdict: sentences that answer the reader's question; they come first on the page.
        sections: a heading and markup for each.
        name: name of the study or data, for the title of the page.
    """

    title: str
    verdict: tuple[str, ...]
    sections: tuple[tuple[str, str], ...]
    name: str = ""


def page_templates() -> Environment:
    """Return the templates of pages; every value that they are given is escaped."""
    words = {"not_estimable": NOT_ESTIMABLE, "caution_mark": CAUTION_MARK}
    return templates(__package__, html=True, next_number=_next_number, **words)


def make_part(template: str, name: str, kind: str, verdict: Iterable[str], **values: Any) -> Part:
    """Return a part whose sections are those of a template: each is a `{% call section(heading) %}`.

    Its heading is the name of the study or data, and the kind of the part.
    """
    sections: list[tuple[str, str]] = []

    def section(heading: str, caller: Callable[[], str]) -> str:
        sections.append((heading, caller()))
        return ""

    page_templates().get_template(template).render(values, section=section)
    return Part(f"{name}: {kind}", tuple(verdict), tuple(sections), name)


def page(title: str, parts: Sequence[Part]) -> str:
    """Return the whole page, the verdicts first, without characters that no page may hold."""
    template = page_templates().get_template("page.html.jinja")
    return _FORBIDDEN.sub("\ufffd", template.render(title=title, parts=parts, version=__version__))


def settings_table(
    title: str, source: str, keys: Iterable[str], columns: Mapping[str, Mapping[str, object]]
) -> TableData:
    """Return a table with a row per setting; each column is named, and has the settings of one run."""
    rows = ((key, *(setting(given.get(key)) for given in columns.values())) for key in keys)
    return TableData.of("settings", source, title, words("setting", *columns), rows)


def setting(value: object) -> str:
    """Return the value of a setting in words."""
    if isinstance(value, list | tuple):
        return ", ".join(map(setting, value)) or "none"
    return "none" if value in (None, {}) else f"{value:g}" if isinstance(value, float) else str(value)
