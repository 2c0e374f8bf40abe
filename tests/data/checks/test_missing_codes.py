"""Numbers that probably mean a missing value are noted, and measurements are not."""

from __future__ import annotations

import numpy as np
from small_silos import examples, notes_of

from fedilc import Federation, Silo


def test_temperatures_below_zero_are_no_missing_codes() -> None:
    x, y = examples(0)
    x[:, 0] = np.random.default_rng(1).integers(-20, 20, len(x))
    x[:4, 0] = -9
    assert notes_of(Federation("f", [Silo("a", x, y)])) == []


def test_a_code_that_is_plain_in_one_silo_is_counted_in_all() -> None:
    silos = []
    for seed, name in enumerate("abc"):
        x, y = examples(seed)
        x[:, 0] = 999 if name == "c" else np.abs(x[:, 0])
        x[:4, 0] = 999
        silos.append(Silo(name, x, y))
    note = next(note for note in notes_of(Federation("f", silos)) if "999 probably" in note)
    assert f"'a' (4 times), 'b' (4 times), 'c' ({len(x)} times)" in note


def test_a_frequent_code_near_the_other_values_is_noted() -> None:
    x, y = examples(0)
    x[: len(x) // 4, 0] = -9
    assert "-9 probably means a missing value in column 0" in notes_of(Federation("f", [Silo("a", x, y)]))[0]
