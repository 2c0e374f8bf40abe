"""The page of an HTML report: one file with its style inside, made of sections, tables and figures.

Functions here return markup; every text that they are given is escaped.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from itertools import count
from string import Template
from typing import Literal

from fedilc import __version__
from fedilc.report.table_formats import Cell, Column, TableData, words

_numbers = count(1)


@dataclass(frozen=True)
class Part:
    """A part of a report: one study, one inspection, or the runs that share their data.

    Attributes:
        title: the part's heading.
        verdict: sentences that answer the reader's question; they come first on the page.
        sections: a heading and markup for each.
    """

    title: str
    verdict: tuple[str, ...]
    sections: tuple[tuple[str, str], ...]


def text(value: object) -> str:
    """Return a text escaped for HTML, without characters that no page may hold.

    >>> text('<b title="x">')
    '&lt;b title=&quot;x&quot;&gt;'
    """
    return html.escape(re.sub(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff]", "\ufffd", str(value)))


def page(title: str, parts: Sequence[Part]) -> str:
    """Return the whole page: the verdicts, then each part with its sections."""
    folder, judged = files("fedilc.report.html"), [part for part in parts if part.verdict]
    template = Template((folder / "page.html").read_text(encoding="utf-8"))
    return template.substitute(
        title=text(title),
        style=(folder / "page.css").read_text(encoding="utf-8"),
        verdict="\n".join(_verdict(part, named=len(judged) > 1) for part in judged),
        contents="\n".join(_entry(number, part) for number, part in enumerate(parts, 1)),
        parts="\n".join(_part(number, part) for number, part in enumerate(parts, 1)),
        version=text(__version__),
    )


def _verdict(part: Part, named: bool) -> str:
    heading = f"<h3>{text(part.title)}</h3>\n" if named else ""
    return heading + "\n".join(f"<p>{text(sentence)}</p>" for sentence in part.verdict)


def _entry(number: int, part: Part) -> str:
    links = "".join(
        f'<li><a href="#part-{number}-{place}">{text(title)}</a></li>'
        for place, (title, _) in enumerate(part.sections, 1)
    )
    return f'<li><a href="#part-{number}">{text(part.title)}</a><ul>{links}</ul></li>'


def _part(number: int, part: Part) -> str:
    sections = "\n".join(
        f'<section>\n<h3 id="part-{number}-{place}">{text(title)}</h3>\n{body}\n</section>'
        for place, (title, body) in enumerate(part.sections, 1)
    )
    return f'<div class="part">\n<h2 id="part-{number}">{text(part.title)}</h2>\n{sections}\n</div>'


def note(sentence: str) -> str:
    """Return a small line of explanation."""
    return f'<p class="note">{text(sentence)}</p>'


def grid(items: Iterable[str], kind: Literal["narrow", "middle", "wide"] = "middle") -> str:
    """Return items beside each other as far as there is room."""
    return f'<div class="grid {kind}">\n' + "\n".join(items) + "\n</div>"


def lines(sentences: Iterable[str]) -> str:
    """Return sentences as a list."""
    return "<ul>" + "".join(f"<li>{text(sentence)}</li>" for sentence in sentences) + "</ul>"


def folded(title: str, body: str) -> str:
    """Return markup that is shown when its title is clicked, and always in print."""
    return f"<details><summary>{text(title)}</summary>\n{body}\n</details>"


def command(line: str) -> str:
    """Return a command as it is typed."""
    return f'<pre tabindex="0"><code>{text(line)}</code></pre>'


def facts(entries: Iterable[tuple[str, object]]) -> str:
    """Return names with their values."""
    rows = "".join(f"<div><dt>{text(name)}</dt><dd>{text(value)}</dd></div>" for name, value in entries)
    return f'<dl class="facts">{rows}</dl>'


def table(data: TableData, *, notes: bool = True) -> str:
    """Return a table with its caption, headings with their scope, and its notes if they are wanted."""
    columns = data.columns[data.grouped :]
    head = "".join(_heading(column) for column in columns)
    body = []
    for name, rows in data.groups():
        group = f'<tr><th colspan="{len(columns)}" scope="rowgroup">{text(name)}</th></tr>\n'
        members = "\n".join(_row(row, columns) for row in rows)
        body.append(f"<tbody>\n{group * data.grouped}{members}\n</tbody>")
    below = "".join(map(note, data.notes)) if notes else ""
    return boxed(data.title, f"<thead><tr>{head}</tr></thead>\n" + "\n".join(body)) + below


def boxed(caption: str, rows: str, kind: str = "plain") -> str:
    """Return a table in a box that scrolls sideways, by keyboard too, if the page is narrower."""
    name = f"table-{next(_numbers)}"
    return (
        f'<div class="box" tabindex="0" role="group" aria-labelledby="{name}">\n'
        f'<table class="{kind}">\n<caption id="{name}">{text(caption)}</caption>\n{rows}\n</table>\n</div>'
    )


def _heading(column: Column) -> str:
    kind = ' class="words"' * column.words
    return f'<th scope="col"{kind}>{text(column.title)}</th>' if column.title else "<td></td>"


def _row(row: Sequence[Cell], columns: Sequence[Column]) -> str:
    first = f'<th scope="row">{_content(row[0])}</th>'
    rest = (
        f'<td class="words">{_content(cell)}</td>' if column.words else f"<td>{_content(cell)}</td>"
        for cell, column in zip(row[1:], columns[1:], strict=True)
    )
    return f"<tr>{first}{''.join(rest)}</tr>"


def _content(cell: Cell) -> str:
    return f"<strong>{text(cell.text)}</strong>" if cell.bold else text(cell.text)


def settings_table(
    title: str, source: str, keys: Iterable[str], columns: Mapping[str, Mapping[str, object]]
) -> str:
    """Return a table with a row per setting; each column is named, and has the settings of one run."""
    rows = ((key, *(setting(given.get(key)) for given in columns.values())) for key in keys)
    return table(TableData.of("settings", source, title, words("setting", *columns), rows))


def setting(value: object) -> str:
    """Return the value of a setting in words."""
    if isinstance(value, list | tuple):
        return ", ".join(map(setting, value)) or "none"
    return "none" if value in (None, {}) else f"{value:g}" if isinstance(value, float) else str(value)
