"""Notes are one line per kind, and what they propose is one command or one section of an experiment."""

from __future__ import annotations

import tomllib

from fedilc.data.checks.notes import Note, as_settings, details, grouped, proposals

CODED = [
    Note(f"-9 in {n};", "-9 in {};", repr(n), ("missing", f"{n}=-9"))
    for n in ("a b", "c", "d", "e", "f", "g")
]


def test_many_notes_of_a_kind_are_one_line_and_all_of_them_are_in_the_details() -> None:
    notes = [*CODED, Note("a file is in Windows-1252"), Note("h is empty", "{} are empty", "'h'")]
    assert grouped(notes) == [
        "-9 in 6 columns ('a b', 'c', 'd', 'e', 'f', 'g'); use `missing` for each",
        "a file is in Windows-1252",
        "h is empty",
    ]
    assert details(notes)[0] == '-9 in a b; use `missing = ["a b=-9"]`'
    assert len(details(notes)) == len(notes)
    assert grouped(CODED[:2]) == ["-9 in 2 columns ('a b', 'c'); use `missing = [\"a b=-9\", \"c=-9\"]`"]


def test_proposals_are_made_once_and_not_for_columns_that_are_dropped() -> None:
    drop = Note("c is the label;", "", "'c'", ("drop", "c"))
    site = Note("n is a copy;", "", "'n'", ("exclude_site", "n 2"), "silos")
    asked = proposals([*CODED[:2], drop, drop, site])
    assert asked == (("missing", "a b=-9"), ("drop", "c"), ("exclude_site", "n 2"))
    written = tomllib.loads(as_settings(asked).replace("`", "").replace(" and ", "\n"))
    assert written == {"missing": ["a b=-9"], "drop": ["c"], "exclude_sites": ["n 2"]}
