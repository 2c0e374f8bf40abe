"""An inspection of silos as tables and a picture."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fedilc.errors import listed
from fedilc.evaluation.shift import mean_difference
from fedilc.report.plots import add_title, save, styled_figure
from fedilc.report.tables import Cell, TableData
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
    rows = []
    for silo in found.silos:
        share = sum(column.missing for column in silo.columns) / max(1, silo.rows * len(silo.columns))
        empty = [column.name for column in silo.columns if not column.count]
        labels = [f"{count} ({count / silo.rows:.0%})" for count in silo.classes]
        rows.append((silo.silo, silo.rows, *labels, f"{share:.1%}", listed(empty) or "-"))
    columns = ("silo", "rows", *(f"label {name}" for name in found.classes), "cells missing", "empty columns")
    return TableData.of("silos", found.name, f"{found.name} · silos", columns, rows)


def _column_table(found: Inspection) -> TableData:
    shifts = found.columns
    rows = []
    for shift in shifts[:_SHOWN]:
        numbers = ("-" if number is None else f"{number:.2f}" for number in (shift.difference, shift.index))
        name, pair = Cell(shift.name, bold=shift.large), " / ".join(shift.pair)
        rows.append((name, *numbers, pair, f"{shift.missing:.0%}"))
    columns = ("column", "largest SMD", "largest PSI", "between", "missing differs by")
    more = f" {len(shifts) - _SHOWN} more columns differ less." if len(shifts) > _SHOWN else ""
    return TableData.of("columns", found.name, f"{found.name} · columns", columns, rows, [_RULES + more])


def _pair_table(found: Inspection) -> TableData:
    ranked = sorted(found.pairs.items(), key=lambda entry: -sum(entry[1].values()))
    rows = [
        (" / ".join(pair), *(f"{entry[key]:.2f}" if key in entry else "-" for key in ("columns", "label")))
        for pair, entry in ranked[:_SHOWN]
    ]
    columns = ("pair of silos", "mean PSI of columns", "PSI of the label")
    notes = []
    if (start := found.at_start) is not None:
        notes.append(
            f"At the initial weights of a small network, the signs of the silos' gradients agree to "
            f"{start.agreement:.2f} (random signs: {start.expected:.2f}; all alike: 1), and the "
            f"inconsistency score is at most {start.worst:.1f} ({' / '.join(start.pair)}; alike: 1)."
        )
    if len(ranked) > _SHOWN:
        notes.append(f"{len(ranked) - _SHOWN} more pairs differ less.")
    return TableData.of("pairs", found.name, f"{found.name} · pairs of silos", columns, rows, notes)


def inspection_picture(path: Path, found: Inspection) -> None:
    """Draw each silo's columns against those of all silos: the shift of the mean, and the share missing."""
    shifts, means, missing = shift_shares(found)
    names = [silo.silo for silo in found.silos]
    panels = (
        (means, "SMD from the other silos (signed for numbers)", "RdBu_r", -1.0),
        (missing, "share of missing cells", "Greys", 0.0),
    )
    with styled_figure(4 + 0.42 * len(shifts), 2 * (1.8 + 0.32 * len(names))) as figure:
        places = figure.subplots(2, 1, sharex=True)
        for axes, (values, title, colours, low) in zip(places, panels, strict=True):
            image = axes.imshow(values, cmap=colours, vmin=low, vmax=1.0, aspect="auto")
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
