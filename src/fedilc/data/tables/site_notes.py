"""Notes on silos: copies, patients at two silos, names that differ in case, different units.

All but `shared_patients`, which compares rows, need the silos' summaries only.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from math import log, sqrt
from statistics import median

import numpy as np
import polars as pl
from numpy.typing import NDArray

from fedilc.data.checks.notes import DROP, EXCLUDE, Note
from fedilc.data.tables.column_values import names_of, numbers_of
from fedilc.data.tables.preprocessing import Preprocessing
from fedilc.data.tables.silo_summary import ColumnSummary, SiloSummary
from fedilc.errors import listed

_FEWEST_NUMBERS = 20
_SEVERAL = 3  # different numbers, so that a column is more than yes or no
_FACTOR = 6.0  # patients differ less; from here on, mean and deviation differ because of a unit
_KNOWN = {  # factor and offset
    "2.2 (pounds and kilograms)": (2.2046, 0.0),
    "2.54 (inches and centimetres)": (2.54, 0.0),
    "1.8, plus 32 (degrees Celsius and Fahrenheit)": (1.8, 32.0),
}
_SPREAD = 2.0  # how much the means of silos with one unit may differ
_NEAR = 0.05
_NARROW = 0.3  # weights, lengths and temperatures deviate by less than this share of their mean
_ALIKE = log(1.3)
_BANDS = 3  # two cells that differ leave one of three bands of columns equal
_MOST_ALIKE = 20
_SHARE_ALIKE = 0.8
_FEWEST_ALIKE = 4
_CHANCE = 1e-3
_FEW_CERTAIN, _FEW_RARE = 2, 10


def copied_silos(summaries: Sequence[SiloSummary]) -> list[Note]:
    """Return a note on each silo whose rows, labels and exact sums are those of an earlier one."""
    notes, seen = [], dict[object, str]()
    for silo in summaries:
        key = _content(silo)
        if key is None:
            continue
        if key in seen:
            notes.append(
                Note(
                    f"silo {silo.name!r} is a copy of {seen[key]!r}: it has the same rows, so a model would "
                    "be tested on what it was trained on;",
                    "{} are copies of other silos, so a model would be tested on what it was trained on;",
                    f"{silo.name!r} of {seen[key]!r}",
                    (EXCLUDE, silo.name),
                    "silos",
                )
            )
        else:
            seen[key] = silo.name
    return notes


def _content(silo: SiloSummary) -> object | None:
    """Return what two copies have in common; None if no column has sums that distinguish silos."""
    columns = {
        column.name: (column.count, column.total, column.squares, column.levels) for column in silo.columns
    }
    tells = [
        column
        for column in silo.columns
        if column.numbers and (column.levels is None or column.other or len(column.levels) >= _SEVERAL)
    ]
    labels = tuple(sorted(silo.labels.items()))
    return (silo.rows, labels, tuple(sorted(columns.items(), key=lambda entry: entry[0]))) if tells else None


def similar_names(summaries: Sequence[SiloSummary]) -> list[Note]:
    """Return a note on silos whose names differ only in case or spaces."""
    spelled: dict[str, list[str]] = {}
    for silo in summaries:
        spelled.setdefault(folded(silo.name), []).append(silo.name)
    return [
        Note(
            f"silos {' and '.join(map(repr, names))} differ only in case or spaces; if they are one site, "
            "put their rows into one file"
        )
        for names in spelled.values()
        if len(names) > 1
    ]


def folded(name: str) -> str:
    """Return a silo's name without what people write in several ways: case, spaces, hyphens and underscores.

    >>> folded(" St. Mary") == folded("st._mary"), folded("site 1") == folded("site 11")
    (True, False)
    """
    return " ".join(name.casefold().replace("_", " ").replace("-", " ").split())


def site_columns(
    name: str, parts: Mapping[str, ColumnSummary], summaries: Sequence[SiloSummary]
) -> Iterator[Note]:
    """Yield a note if a column has one value in all rows of each silo, and not the same one everywhere."""
    values = [_only_value(parts.get(silo.name), silo.rows) for silo in summaries]
    if len(values) > 1 and None not in values and len(set(values)) > 1:
        what = "names the silo" if len(set(values)) == len(values) else "is the same within each silo"
        yield Note(
            f"column {name!r} {what}: it has one value in all rows of a silo, and says nothing at a new one;",
            "{} have one value in all rows of a silo, and say nothing at a new one;",
            repr(name),
            (DROP, name),
        )


def _only_value(part: ColumnSummary | None, rows: int) -> str | None:
    """Return the value of all rows of a silo, "" if all are missing, None if there are several."""
    if part is None or part.count == 0:
        return ""
    levels = {folded(level) for level in part.levels or ()}
    return f"={levels.pop()}" if part.count == rows and len(levels) == 1 and not part.other else None


def units(name: str, parts: Mapping[str, ColumnSummary]) -> Iterator[Note]:
    """Yield a note if a column has another unit at some silos: mean and deviation are larger by one factor.

    Silos are divided where their means differ most. Differences between patients change mean and deviation by
    different factors, and seldom by six; known units with smaller factors need silos that agree closely.
    """
    sizes = {silo: found for silo, part in parts.items() if (found := _size(part)) is not None}
    order = sorted(sizes, key=lambda silo: sizes[silo][0])
    if len(order) < 2:
        return
    steps = [sizes[large][0] / sizes[small][0] for small, large in pairwise(order)]
    cut = 1 + int(np.argmax(steps))
    low, high = order[:cut], order[cut:]
    (low_mean, low_deviation), (high_mean, high_deviation) = (
        (median(sizes[silo][0] for silo in group), median(sizes[silo][1] for silo in group))
        for group in (low, high)
    )
    means, deviations = high_mean / low_mean, high_deviation / low_deviation
    spread = max(sizes[group[-1]][0] / sizes[group[0]][0] for group in (low, high))
    factor = None
    if min(means, deviations) >= _FACTOR and max(means, deviations) < 2 * min(means, deviations):
        factor = f"{means:.3g}" if spread < _SPREAD else None
    elif spread < 1 + 2 * _NEAR and low_deviation < _NARROW * low_mean:
        near = {
            known: abs(log(deviations / times))
            for known, (times, plus) in _KNOWN.items()
            if abs(high_mean / (times * low_mean + plus) - 1) < _NEAR
        }
        factor = min(near, key=near.__getitem__, default=None)
        factor = factor if factor is not None and near[factor] < _ALIKE else None
    if factor is not None:
        few, where = (high, "larger") if len(high) <= len(low) else (low, "smaller")
        sites = listed([repr(silo) for silo in few])
        yield Note(
            f"column {name!r} is {where} at {sites} than elsewhere by a "
            f"factor of about {factor}, like another unit; give it in one unit",
            "{} have another unit at some silos, because they differ there by a factor; give each in one "
            "unit",
            f"{name!r} {where} at {sites} by about {factor}",
        )


def _size(part: ColumnSummary) -> tuple[float, float] | None:
    """Return mean and deviation of positive numbers; None if they are few, codes, or yes and no."""
    count, total, squares = part.sums
    few = part.levels is not None and not part.other and len(part.levels) < _SEVERAL
    if count < _FEWEST_NUMBERS or few or part.code is not None or total <= 0:
        return None
    mean = total / count
    variance = squares / count - mean * mean
    return (float(mean), sqrt(variance)) if variance > 0 else None


def shared_patients(frames: Mapping[str, pl.DataFrame], made: Preprocessing) -> list[Note]:
    """Return a note on each pair of silos that have rows in common, up to a few cells.

    The columns that are used are compared, with numbers rounded to three digits. Two rows may be the same
    patient if at least four known cells are equal, and 80 % of all known cells. Such a pair is rare if chance
    makes one pair in all tables that is equal in values as rare as these, and certain if it makes a
    thousandth of one. Two certain pairs are noted, or ten rare ones. Pairs that differ in up to two cells are
    found, unless many other rows are like them.
    """
    every = _comparable(pl.concat(frames.values(), how="diagonal_relaxed"), made)
    total = len(every)
    if every.width < _FEWEST_ALIKE or len(frames) < 2:
        return []
    silos = np.repeat(np.arange(len(frames)), [len(frame) for frame in frames.values()])
    pairs = _candidates(every, silos)
    one, two = pairs.T
    equal, known, surprise = (np.zeros(len(pairs)) for _ in range(3))
    for column in every.get_columns():
        first, second = column[one], column[two]
        same = (first == second).fill_null(value=False).to_numpy()
        counts = column.to_frame().select(pl.len().over(column.name)).to_series().to_numpy()
        equal += same
        known += (first.is_not_null() | second.is_not_null()).to_numpy()
        surprise += same * np.log(total / counts[one])
    rare = log(total * total / 2)
    names = list(frames)
    found = pl.DataFrame(
        {"a": silos[one], "b": silos[two], "one": one, "two": two, "certain": surprise >= rare - log(_CHANCE)}
    ).filter((equal >= _FEWEST_ALIKE) & (equal >= _SHARE_ALIKE * known) & (surprise >= rare))
    rows = pl.min_horizontal(pl.col("one").n_unique(), pl.col("two").n_unique())
    counted = found.group_by("a", "b").agg(rows.alias("rows"), pl.col("certain").sum())
    noted = counted.filter((pl.col("certain") >= _FEW_CERTAIN) | (pl.col("rows") >= _FEW_RARE)).sort("a", "b")
    return [
        Note(
            f"{count} rows of {names[a]!r} are also in {names[b]!r}, up to a few cells; if they are the same "
            "patients, keep each at one site",
            "{} have rows in common, up to a few cells; if they are the same patients, keep each at one site",
            f"{names[a]!r} and {names[b]!r} {count} rows",
            unit="pairs of silos",
        )
        for a, b, count in noted.select("a", "b", "rows").rows()
    ]


def _comparable(every: pl.DataFrame, made: Preprocessing) -> pl.DataFrame:
    """Return the columns that are used as text with null for missing values, numbers with three digits."""
    found = []
    for feature in made.features:
        _, values = feature.read(every[feature.name], made.missing)
        if feature.kind == "number":
            values = numbers_of(values).round_sig_figs(3)
        found.append(names_of(values).alias(feature.name))
    return pl.DataFrame(found)


def _candidates(every: pl.DataFrame, silos: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return pairs of rows of different silos that are equal in all columns of one band."""
    found = [np.empty((0, 2), dtype=np.int64)]
    for band in range(_BANDS):
        part = every.select(every.columns[band::_BANDS])
        filled = part.select(pl.any_horizontal(pl.all().is_not_null())).to_series()
        rows = pl.DataFrame({"key": part.hash_rows(), "row": np.arange(len(every)), "silo": silos})
        several = (pl.col("silo").n_unique().over("key") > 1) & (pl.len().over("key") <= _MOST_ALIKE)
        shared = rows.filter(filled).filter(several)
        pairs = shared.join(shared, on="key").filter(pl.col("silo") < pl.col("silo_right"))
        found.append(pairs.select("row", "row_right").to_numpy())
    return np.unique(np.concatenate(found), axis=0)
