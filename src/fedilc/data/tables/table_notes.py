"""Notes on tables before training, from silos' summaries only: what is unusual, and its consequence.

Notes that need the tables themselves, and notes on silos rather than columns, are in `site_notes.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean

from fedilc.algorithms.loss_registry import task_of
from fedilc.data.checks.columns import ColumnFacts, missing_values, places
from fedilc.data.checks.notes import CATEGORICAL, CURE, DROP, KEEP, MISSING, Note
from fedilc.data.tables.formats import MISSING as MISSING_WORDS
from fedilc.data.tables.label_rule import LabelRule
from fedilc.data.tables.preprocessing import DATES, IDENTIFIER, TOO_MANY_NAMES, Preprocessing
from fedilc.data.tables.silo_summary import (
    MOST_DECLARED,
    MOST_LEVELS,
    ColumnSummary,
    SiloSummary,
    columns_by_silo,
)
from fedilc.data.tables.site_notes import copied_silos, similar_names, site_columns, units
from fedilc.errors import listed

LEAK = 0.97
_FEWEST_PER_CLASS = 10  # over all silos at which a column is judged
_NEVER_A_VALUE = -99  # codes up to this one may be called missing in every column
_MOST_SILOS = 5


def table_notes(summaries: Sequence[SiloSummary], preprocessing: Preprocessing) -> list[Note]:
    """Return notes on the silos and columns of a study."""
    used = {feature.name for feature in preprocessing.features}
    numbers = {feature.name for feature in preprocessing.features if feature.kind == "number"}
    words = {
        feature.name: word
        for feature in preprocessing.features
        if feature.kind == "category"
        for word in feature.categories
        if word.lower() in MISSING_WORDS
    }
    by_column = columns_by_silo(summaries)
    notes = [*copied_silos(summaries), *similar_names(summaries)]
    for name, leak in leaking_columns(summaries, preprocessing.label).items():
        notes.append(_leak(name, leak, name in used))
    notes += [*_left_out(preprocessing), *_unconfirmed(summaries, preprocessing)]
    notes += [*_labels(summaries, preprocessing.label)]
    for name, parts in by_column.items():
        if name in used:
            notes += site_columns(name, parts, summaries)
            notes += _absent(name, parts, summaries, words.get(name))
            notes += _mixed(name, parts, name in numbers)
            notes += _missing_values(name, parts)
        if name in numbers:
            notes += units(name, parts)
    return notes


@dataclass(frozen=True)
class Leak:
    """How well a column alone predicts the label: its mean AUROC, and how many silos exceed the limit.

    `silos` are those at which the column varies and has an area; areas below 0.5 count as 1 minus the area.
    """

    mean: float
    over: int
    silos: int


def single_columns(summaries: Sequence[SiloSummary], label: LabelRule) -> dict[str, Leak]:
    """Return how well each column alone predicts a binary label at the silos where it varies."""
    found = {}
    fewest = {silo.name: min(label.class_rows(silo.labels), default=0) for silo in summaries}
    for name, parts in columns_by_silo(summaries).items() if task_of(label.loss) == "binary" else ():
        areas = {
            silo: max(part.auroc, 1 - part.auroc) for silo, part in parts.items() if part.auroc is not None
        }
        enough = label.comparison is not None or sum(fewest[silo] for silo in areas) >= _FEWEST_PER_CLASS
        if areas and enough:
            over = sum(area > LEAK for area in areas.values())
            found[name] = Leak(mean(areas.values()), over, len(areas))
    return found


def leaking_columns(summaries: Sequence[SiloSummary], label: LabelRule) -> dict[str, Leak]:
    """Return the columns that alone predict a binary label almost perfectly.

    They do so at most of the silos where they vary, or in the mean over these, since a few wrong cells make
    the area of a small silo much lower.
    """
    found = single_columns(summaries, label)
    return {name: leak for name, leak in found.items() if 2 * leak.over > leak.silos or leak.mean > LEAK}


def _leak(name: str, leak: Leak, used: bool) -> Note:
    how = f"(mean AUROC {leak.mean:.3f} at {leak.silos} silos where it varies, over {LEAK} at {leak.over})"
    where = "at most silos where they vary"
    if not used:
        return Note(
            f"column {name!r}, which is left out, alone predicts the label almost perfectly {how}",
            f"{{}}, which are left out, alone predict the label almost perfectly {where}",
            repr(name),
        )
    return Note(
        f"column {name!r} alone predicts the label almost perfectly {how}; if it is not known before the "
        "outcome,",
        f"{{}} alone predict the label almost perfectly {where}; if they are not known before the outcome,",
        f"{name!r} AUROC {leak.mean:.3f}",
        (DROP, name),
    )


def _left_out(preprocessing: Preprocessing) -> Iterator[Note]:
    cures = {
        IDENTIFIER: (f" ({CURE} keeps it)", f" ({CURE} keeps one)", KEEP),
        TOO_MANY_NAMES.format(MOST_LEVELS): (
            f" ({CURE} keeps up to {MOST_DECLARED} names)",
            f" ({CURE} keeps one with up to {MOST_DECLARED} names)",
            CATEGORICAL,
        ),
        DATES: ("; make a number of it if it matters", "; make numbers of them if they matter", None),
    }
    for name, reason in preprocessing.left_out.items():
        one, many, setting = cures.get(reason, ("", "", None))
        yield Note(
            f"column {name!r} is left out: {reason}{one}",
            f"{{}} are left out, each because {reason}{many}",
            repr(name),
            cure=(setting, name) if setting else None,
        )


def _unconfirmed(summaries: Sequence[SiloSummary], preprocessing: Preprocessing) -> Iterator[Note]:
    """Yield notes on columns that most silos lack, which are left out."""
    known = {*preprocessing.left_out, *(feature.name for feature in preprocessing.features)}
    for name, parts in columns_by_silo(summaries).items():
        if name not in known:
            where = listed([repr(silo) for silo in parts], _MOST_SILOS)
            have = "has" if len(parts) == 1 else "have"
            yield Note(
                f"column {name!r} is left out: only {where} of {len(summaries)} silos {have} it, which is "
                f"not a majority ({CURE} uses it)",
                f"{{}} are left out, because most silos lack them ({CURE} uses one)",
                repr(name),
                cure=(KEEP, name),
            )


def _labels(summaries: Sequence[SiloSummary], label: LabelRule) -> Iterator[Note]:
    if label.comparison is None and task_of(label.loss) == "binary" and label.classes != ("0", "1"):
        yield Note(f"label {label.text!r}: {label.classes[1]!r} counts as 1, {label.classes[0]!r} as 0")
    for silo in summaries:
        if silo.unlabelled:
            rows = "1 row" if silo.unlabelled == 1 else f"{silo.unlabelled} rows"
            yield Note(
                f"silo {silo.name!r} has {rows} without a label, left out",
                "{} have rows without a label, which are left out",
                repr(silo.name),
                unit="silos",
            )
    prefix = "" if label.comparison is not None else f"{label.column} = "
    named_one = [s for s in summaries if len(s.labels) == 1]
    single = [f"{s.name!r} ({prefix}{next(iter(s.labels))})" for s in named_one if not s.rare_labels]
    uneven = [repr(s.name) for s in named_one if s.rare_labels]
    if uneven and task_of(label.loss) == "binary":
        named = listed(uneven, _MOST_SILOS)
        verb = "has" if len(uneven) == 1 else "have"
        yield Note(f"{named} {verb} few rows of the other class; AUROC needs at least 10 of each")
    if single and label.classes:
        named = listed(single, _MOST_SILOS)
        verb = "has" if len(single) == 1 else "have"
        yield Note(f"{named} {verb} only one class and so no AUROC")


def _absent(
    name: str, parts: Mapping[str, ColumnSummary], summaries: Sequence[SiloSummary], word: str | None
) -> Iterator[Note]:
    """Yield a note on silos without a value; a word such as "none" is a category, but no value of its own."""
    gone = [s.name for s in summaries if s.name not in parts or parts[s.name].count == 0]
    if gone and word is not None:
        where = listed([repr(silo) for silo in gone], _MOST_SILOS)
        yield Note(f"column {name!r} has no value other than {word!r} at {where}")
    elif gone:
        yield Note(
            f"column {name!r} has no value at {listed([repr(silo) for silo in gone], _MOST_SILOS)}; it "
            "counts as missing in every row there",
            "{} have no value at some silos; they count as missing in every row there",
            repr(name),
        )


def _mixed(name: str, parts: Mapping[str, ColumnSummary], is_number: bool) -> Iterator[Note]:
    texts = [repr(silo) for silo, part in parts.items() if part.kind == "text"]
    if is_number and texts:
        strays = sum(part.strays for part in parts.values())
        cells, count = ("1 cell", "counts") if strays == 1 else (f"{strays} cells", "count")
        yield Note(
            f"column {name!r} holds numbers and {cells} of text ({places(texts, parts)}), which {count} "
            f"as missing; correct them, or use {CURE}",
            "{} hold numbers and some cells of text, which count as missing; correct them, or use "
            f"{CURE} for a column of names",
            repr(name),
            cure=(CATEGORICAL, name),
        )
    elif texts and any(part.kind == "number" for part in parts.values()):
        yield Note(
            f"column {name!r} holds text ({places(texts, parts)}) and numbers elsewhere, and each counts as "
            "a name; write it in one way",
            "{} hold text at some silos and numbers elsewhere, and each counts as a name; write each in one "
            "way",
            repr(name),
        )


def _missing_values(name: str, parts: Mapping[str, ColumnSummary]) -> Iterator[Note]:
    facts = {
        repr(silo): ColumnFacts(part.code, part.code is not None, part.zero, part.sums[2] / part.numbers)
        for silo, part in parts.items()
        if part.numbers
    }
    for found in missing_values(facts):
        code = f"{found.number:g}"
        several = f"{code} probably means a missing value in {{}} and is used as a number;"
        if found.zero:
            several = "{} are 0 in every row of some silos and not elsewhere; if it means a missing value,"
        everywhere = not found.zero and found.number <= _NEVER_A_VALUE
        yield Note(
            found.sentence(f"column {name!r}"),
            several,
            repr(name),
            (MISSING, code if everywhere else f"{name}={code}"),
        )
