"""Notes on tables before training, from silos' summaries only: what is unusual, and its consequence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from shlex import quote

from fedilc.data.checks.missing_values import ColumnFacts, missing_value_notes, places
from fedilc.data.tables.label_rule import LabelRule
from fedilc.data.tables.preprocessing import DATES, IDENTIFIER, TOO_MANY_NAMES, Preprocessing
from fedilc.data.tables.silo_summary import (
    MOST_DECLARED,
    MOST_LEVELS,
    ColumnSummary,
    SiloSummary,
    columns_by_silo,
)
from fedilc.errors import listed

LEAK = 0.97
_MOST_SILOS = 5


def table_notes(summaries: Sequence[SiloSummary], preprocessing: Preprocessing) -> list[str]:
    """Return notes on the silos and columns of a study, each a sentence."""
    leaks = leaking_columns(summaries, preprocessing.label)
    used = {feature.name for feature in preprocessing.features}
    numbers = {feature.name for feature in preprocessing.features if feature.kind == "number"}
    notes = [*_left_out(preprocessing), *_labels(summaries, preprocessing.label)]
    for name, parts in columns_by_silo(summaries).items():
        if name in leaks:
            notes.append(
                f"column {name!r} alone predicts the label almost perfectly (mean AUROC {leaks[name]:.3f} "
                f"over the silos): if it is not known before the outcome, drop it with --drop {quote(name)}"
            )
        if name in used:
            notes += _absent(name, parts, summaries)
            notes += _mixed(name, parts, name in numbers)
            notes += _missing_values(name, parts)
    return notes


def leaking_columns(summaries: Sequence[SiloSummary], label: LabelRule) -> dict[str, float]:
    """Return the columns that alone predict a binary label almost perfectly, and their mean AUROC over silos.

    The mean decides, since a few wrong cells make the area of a small silo much lower.
    """
    found = {}
    for name, parts in columns_by_silo(summaries).items():
        areas = [part.auroc for part in parts.values() if part.auroc is not None]
        mean = sum(areas) / len(areas) if areas and label.loss == "binary" else 0.5
        if max(mean, 1 - mean) > LEAK:
            found[name] = max(mean, 1 - mean)
    return found


def _left_out(preprocessing: Preprocessing) -> list[str]:
    cures = {
        IDENTIFIER: " (--keep {} keeps it)",
        TOO_MANY_NAMES.format(MOST_LEVELS): f" (--categorical {{}} keeps up to {MOST_DECLARED} names)",
        DATES: "; make a number of it if it matters",
    }
    return [
        f"column {name!r} is left out: {reason}{cures.get(reason, '').format(quote(name))}"
        for name, reason in preprocessing.left_out.items()
    ]


def _labels(summaries: Sequence[SiloSummary], label: LabelRule) -> list[str]:
    notes = []
    if label.comparison is None and label.loss == "binary" and label.classes != ("0", "1"):
        notes.append(f"label {label.text!r}: {label.classes[1]!r} counts as 1, {label.classes[0]!r} as 0")
    notes += [
        f"silo {silo.name!r} has {silo.unlabelled} rows without a label, which are left out"
        for silo in summaries
        if silo.unlabelled
    ]
    prefix = "" if label.comparison is not None else f"{label.column} = "
    single = [f"{s.name!r} ({prefix}{next(iter(s.labels))})" for s in summaries if len(s.labels) == 1]
    if single and label.classes:
        named = listed(single, _MOST_SILOS)
        verb = "has" if len(single) == 1 else "have"
        notes.append(f"{named} {verb} one class only and so no AUROC")
    return notes


def _absent(name: str, parts: dict[str, ColumnSummary], summaries: Sequence[SiloSummary]) -> list[str]:
    gone = [s.name for s in summaries if s.name not in parts or parts[s.name].count == 0]
    if not gone:
        return []
    return [
        f"column {name!r} has no value at {listed([repr(silo) for silo in gone], _MOST_SILOS)}; it counts as "
        "missing in every row there"
    ]


def _mixed(name: str, parts: dict[str, ColumnSummary], is_number: bool) -> list[str]:
    texts = [repr(silo) for silo, part in parts.items() if part.kind == "text"]
    if is_number and texts:
        strays = sum(part.strays for part in parts.values())
        return [
            f"column {name!r} holds numbers and {strays} cells of text ({places(texts, parts)}), which count "
            f"as missing; correct them, or say --categorical {quote(name)}"
        ]
    if not texts or not any(part.kind == "number" for part in parts.values()):
        return []
    return [
        f"column {name!r} holds text ({places(texts, parts)}) and numbers elsewhere, and each counts as a "
        "name; write it in one way"
    ]


def _missing_values(name: str, parts: Mapping[str, ColumnSummary]) -> list[str]:
    facts = {
        repr(silo): ColumnFacts(part.code, part.code is not None, part.zero, part.sums[2] / part.numbers)
        for silo, part in parts.items()
        if part.numbers
    }
    return missing_value_notes(
        f"column {name!r}", facts, lambda code: f"say --missing {quote(f'{name}={code:g}')}"
    )
