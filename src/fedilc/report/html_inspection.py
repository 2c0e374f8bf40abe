"""The part of an HTML report on how silos differ before training."""

from __future__ import annotations

import math

from fedilc.report.html_page import Part, boxed, note, table, text
from fedilc.report.inspection_report import inspection_tables, shift_shares
from fedilc.studies.inspection import Inspection

_MOST_TINT = 35  # per cent of the colour, so that the text keeps its contrast


def inspection_part(found: Inspection) -> Part:
    """Return the part on an inspection; its suggestion is the verdict."""
    sections = [(one.title.partition(" · ")[2].capitalize(), table(one)) for one in inspection_tables(found)]
    if len(found.silos) > 1:
        sections.insert(1, ("How the silos' columns differ", _pictures(found)))
    if found.notes:
        sections.append(("Notes on the tables", "".join(note(line) for line in found.notes)))
    verdict = (found.suggestion(),) if len(found.silos) > 1 else ()
    return Part(f"{found.name}: silos before training", verdict, tuple(sections))


def _pictures(found: Inspection) -> str:
    names, means, missing = shift_shares(found)
    silos = [silo.silo for silo in found.silos]
    return (
        _shaded("Distance from the other silos, in standard deviations", names, silos, means)
        + note("Orange is above the others, blue below; a column of categories has no direction.")
        + _shaded("Share of missing cells", names, silos, missing)
    )


def _shaded(caption: str, columns: list[str], silos: list[str], values: list[list[float]]) -> str:
    head = "".join(f'<th scope="col">{text(name)}</th>' for name in silos)
    rows = "".join(
        f'<tr><th scope="row">{text(name)}</th>'
        + "".join(_shade(values[silo][place], caption.startswith("Share")) for silo in range(len(silos)))
        + "</tr>"
        for place, name in enumerate(columns)
    )
    heading = '<thead><tr><th scope="col">column</th>'
    return boxed(caption, f"{heading}{head}</tr></thead><tbody>{rows}</tbody>", "shaded")


def _shade(value: float, is_share: bool) -> str:
    if math.isnan(value):
        return "<td>-</td>"
    tint = round(_MOST_TINT * min(1.0, abs(value)))
    shown = f"{value:.0%}" if is_share else f"{value:+.2f}"
    return f'<td class="{"above" if value > 0 and not is_share else "below"}" style="--share:{tint}">{shown}</td>'
