"""An inspection of silos as tables and a picture."""

from __future__ import annotations

from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure

from fedilc.evaluation.shift import mean_difference
from fedilc.report.style import STYLE, add_title, save
from fedilc.report.table_formats import Cell, Column, TableData
from fedilc.studies.inspection import Inspection

_SHOWN = 15
_RULES = (
    "SMD: standardised mean difference, PSI: population stability index; each of the two silos that differ "
    "most. Bold: both are over 0.25 and over what chance explains. A column is compared between silos that "
    "have at least 20 values of it."
)


def inspection_tables(found: Inspection) -> list[TableData]:
    """Return the tables: silos, columns, and pairs of silos."""
    return [_silo_table(found), _column_table(found), _pair_table(found)]


def _silo_table(found: Inspection) -> TableData:
    named = [Column(f"label {name}") for name in found.classes]
    rows = []
    for silo in found.silos:
        cells = sum(column.missing for column in silo.columns)
        share = cells / max(1, silo.rows * len(silo.columns))
        empty = [column.name for column in silo.columns if not column.count]
        labels = [Cell(f"{count} ({count / silo.rows:.0%})") for count in silo.classes]
        rows.append(
            (
                Cell(silo.silo),
                Cell(str(silo.rows)),
                *labels,
                Cell(f"{share:.1%}"),
                Cell(", ".join(empty) or "-"),
            )
        )
    columns = (
        Column("silo"),
        Column("rows"),
        *named,
        Column("cells missing"),
        Column("empty columns"),
    )
    return TableData("silos", found.name, f"{found.name} · silos", columns, tuple(rows))


def _column_table(found: Inspection) -> TableData:
    rows = []
    shifts = found.columns
    for shift in shifts[:_SHOWN]:
        difference = "-" if shift.difference is None else f"{shift.difference:.2f}"
        rows.append(
            (
                Cell(shift.name, bold=shift.large),
                Cell(difference),
                Cell("-" if shift.index is None else f"{shift.index:.2f}"),
                Cell(" / ".join(shift.pair)),
                Cell(f"{shift.missing:.0%}"),
            )
        )
    names = ("column", "largest SMD", "largest PSI", "between", "missing differs by")
    more = f" {len(shifts) - _SHOWN} more columns differ less." if len(shifts) > _SHOWN else ""
    columns = tuple(Column(name) for name in names)
    return TableData("columns", found.name, f"{found.name} · columns", columns, tuple(rows), (_RULES + more,))


def _pair_table(found: Inspection) -> TableData:
    ranked = sorted(found.pairs.items(), key=lambda entry: -sum(entry[1].values()))
    rows = []
    for pair, entry in ranked[:_SHOWN]:
        numbers = [f"{entry[key]:.2f}" if key in entry else "-" for key in ("columns", "label")]
        rows.append((Cell(" / ".join(pair)), *map(Cell, numbers)))
    columns = (Column("pair of silos"), Column("mean PSI of columns"), Column("PSI of the label"))
    notes = []
    if found.at_start is not None:
        start = found.at_start
        notes.append(
            f"At the initial weights of a small network, the signs of the silos' gradients agree to "
            f"{start.agreement:.2f} (random signs: {start.expected:.2f}; all alike: 1), and the "
            f"inconsistency score is at most {start.worst:.1f} ({' / '.join(start.pair)}; alike: 1)."
        )
    more = [f"{len(ranked) - _SHOWN} more pairs differ less."] if len(ranked) > _SHOWN else []
    title = f"{found.name} · pairs of silos"
    return TableData("pairs", found.name, title, columns, tuple(rows), tuple(notes + more))


def inspection_picture(path: Path, found: Inspection) -> None:
    """Draw each silo's columns against those of all silos: the shift of the mean, and the share missing."""
    shifts, means, missing = shift_shares(found)
    names = [silo.silo for silo in found.silos]
    with mpl.rc_context(STYLE):
        height = 1.8 + 0.32 * len(names)
        figure = Figure(figsize=(4 + 0.42 * len(shifts), 2 * height), layout="constrained")
        for axes, values, title, colours, limit in zip(
            figure.subplots(2, 1, sharex=True),
            (means, missing),
            ("SMD from the other silos (signed for numbers)", "share of missing cells"),
            ("RdBu_r", "Greys"),
            (1.0, 1.0),
            strict=True,
        ):
            low = -limit if colours == "RdBu_r" else 0.0
            image = axes.imshow(values, cmap=colours, vmin=low, vmax=limit, aspect="auto")
            axes.set_yticks(range(len(names)), names)
            axes.set_xticks(range(len(shifts)), shifts, rotation=60, ha="right")
            axes.set_title(title)
            axes.grid(False)
            figure.colorbar(image, ax=axes)
        add_title(figure, f"{found.name} · how silos differ", "columns that differ most first")
        save(figure, path)


def shift_shares(found: Inspection) -> tuple[list[str], list[list[float]], list[list[float]]]:
    """Return the columns that differ most; by silo, the shifts of their means and the shares missing."""
    shifts = [shift.name for shift in found.columns[:_SHOWN]]
    places = {column.name: place for place, column in enumerate(found.silos[0].columns)}
    chosen = [places[name] for name in shifts]
    means = [[_shift(found, silo, place) for place in chosen] for silo in range(len(found.silos))]
    missing = [[silo.columns[place].missing / silo.rows for place in chosen] for silo in found.silos]
    return shifts, means, missing


def _shift(found: Inspection, silo: int, place: int) -> float:
    """Return how far a silo's column is from the mean of the other silos, in standard deviations."""
    own = found.silos[silo].columns[place]
    if not own.count:
        return float("nan")
    others = [other.columns[place] for at, other in enumerate(found.silos) if at != silo]
    if own.is_number:
        total, count = sum(other.total for other in others), sum(other.count for other in others)
        return own.mean - total / count if count else 0.0
    differences = [mean_difference(own, other) or 0.0 for other in others]
    return float(np.mean(differences)) if differences else 0.0
