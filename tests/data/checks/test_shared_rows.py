"""Rows in two places are noted with counts and names, unless chance explains them."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest
from small_silos import QUICK, examples, notes_of, silo
from torch import nn

from fedilc import Federation, Silo, train
from fedilc.errors import FedILCWarning
from fedilc.paper.plugin import EicuSynthetic


def test_train_notes_rows_that_are_in_two_places_with_counts_and_names() -> None:
    a, b = silo("a", 1), silo("b", 2)
    x, y = examples(3)
    x[:5], y[:5] = a.x[:5], a.y[:5]
    b.x[:4], b.y[:4] = a.x[-4:], a.y[-4:]
    assert b.x_val is not None
    assert b.y_val is not None
    b.x_val[:2], b.y_val[:2] = b.x[10:12], b.y[10:12]
    with pytest.warns(FedILCWarning) as said:
        train(Federation("f", [a, b], x, y), nn.Linear(3, 1), **QUICK)
    assert [str(note.message).split(";")[0] for note in said] == [
        "5 of the 40 rows of the test set are also in 'a' (5)",
        "4 rows are in more than one silo: 'a' (4), 'b' (4)",
        "2 of the 40 validation rows are also training rows of their silo: 'b' (2)",
    ]


def test_the_same_inputs_with_other_labels_are_noted() -> None:
    x, y = examples(1)
    with pytest.warns(FedILCWarning, match=r"40 of the 40 rows of the test set are also in 'a' \(40\)"):
        train(Federation("f", [Silo("a", x, y)], x, 1 - y), nn.Linear(3, 1), **QUICK)


def test_rows_that_are_equal_by_chance_are_not_noted() -> None:
    random = np.random.default_rng(0)
    silos = [Silo(name, random.integers(0, 2, (60, 4)), np.arange(60) % 2) for name in "abc"]
    assert notes_of(Federation("f", silos, random.integers(0, 2, (50, 4)), np.arange(50) % 2)) == []


def test_the_made_up_patients_of_the_package_are_not_noted_although_some_are_repeated() -> None:
    assert notes_of(EicuSynthetic(silos=4).build(0, Path())) == []


def test_ten_times_the_silos_take_about_ten_times_the_work() -> None:
    """Comparing every silo with every other would take a hundred times as much."""
    random = np.random.default_rng(0)

    def work(count: int) -> float:
        x = random.normal(size=(count, 20, 10)).astype(np.float32)
        silos = [
            Silo(f"s{i}", rows[:15], np.arange(15) % 2, rows[15:], np.arange(5) % 2)
            for i, rows in enumerate(x)
        ]
        federation = Federation("many", silos, random.normal(size=(400, 10)), np.arange(400) % 2)
        started = time.process_time()
        assert notes_of(federation) == []
        return time.process_time() - started

    work(10)
    assert work(3000) < 40 * work(300)
