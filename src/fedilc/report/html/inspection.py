"""The part of an HTML report on how silos differ before training."""

from __future__ import annotations

import math

from fedilc.report.html.page import Part, boxed, lines, note, table, text
from fedilc.report.inspection_report import inspection_tables, shift_shares
from fedilc.studies.inspection import Inspection

_MAX_TINT = 35  # per cent of the colour, so that the text keeps its contrast


def inspection_part(found: Inspection, judged: bool) -> Part:
    """Return the part on an inspection; `judged` is whether the verdict and the notes are its own."""
    sections = [(one.title.partition(" · ")[2].capitalize(), table(one)) for one in inspection_tables(found)]
    if len(found.silos) > 1:
        sections.insert(1, ("How the silos' columns differ", _pictures(found)))
    if found.notes and judged:
        sections.append(("Notes on the tables", lines(found.notes)))
    verdict = (found.suggestion(),) if judged else ()
    return Part(f"{found.name}: silos before training", verdict, tuple(sections))


def _pictures(found: Inspection) -> str:
    names, means, missing = shift_shares(found)
    silos = [silo.silo for silo in found.silos]
    numbers = [column.name for column in found.silos[0].columns if column.is_number]
    shifts = [[_shift(value, name in numbers) for name, value in zip(names, of, strict=True)] for of in means]
    shares = [[_cell(f"{value:.0%}", value, "below") for value in of] for of in missing]
    return (
        f"<p>{text(found.suggestion())}</p>"
        + _shaded("Distance from the other silos, in standard deviations", silos, names, shifts)
        + note("Orange is above the others, blue below; violet are categories, which have no direction.")
        + (
            _shaded("Share of missing cells", silos, names, shares)
            if any(map(any, missing))
            else note("No cell is missing.")
        )
    )


def _shaded(caption: str, silos: list[str], columns: list[str], cells: list[list[str]]) -> str:
    """Return a table with a row per column, or per silo if there are more of them."""
    first, across, down = "column", silos, columns
    rows = [list(row) for row in zip(*cells, strict=True)]
    if len(silos) > len(columns):
        first, across, down, rows = "silo", columns, silos, cells
    head = "".join(f'<th scope="col">{text(name)}</th>' for name in (first, *across))
    body = "".join(
        f'<tr><th scope="row">{text(name)}</th>{"".join(row)}</tr>\n'
        for name, row in zip(down, rows, strict=True)
    )
    return boxed(caption, f"<thead><tr>{head}</tr></thead>\n<tbody>\n{body}</tbody>", "shaded")


def _shift(value: float, is_number: bool) -> str:
    if math.isnan(value):
        return "<td>-</td>"
    if not is_number:
        return _cell(f"{value:.2f}", value, "apart")
    return _cell(f"{value:+.2f}", value, "above" if value > 0 else "below")


def _cell(shown: str, value: float, kind: str) -> str:
    return f'<td class="{kind}" style="--share:{round(_MAX_TINT * min(1.0, abs(value)))}">{shown}</td>'
