"""Columns that are probably mistakes are noted with their silo, and training continues."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from small_silos import QUICK, examples, notes_of
from torch import nn

from fedilc import Federation, Silo, train
from fedilc.errors import FedILCWarning

Change = Callable[[np.ndarray, np.ndarray], object]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda x, _: np.copyto(x[:, 1], np.arange(len(x))), "column 1 differs in every row (everywhere)"),
        (
            lambda x, _: np.copyto(x[:, 1], np.random.default_rng(5).permutation(len(x)) + 5),
            "column 1 differs",
        ),
        (lambda x, _: np.copyto(x[:, 2], x[:, 2] * 1e4), "column 2 is up to"),
        (lambda x, _: x.__setitem__((slice(3), 0), -999), "-999 probably means a missing value in column 0"),
        (lambda x, _: x.__setitem__((slice(3), 0), 999), "999 probably means a missing value in column 0"),
        (
            lambda x, y: np.copyto(x[:, 2], 1 - y),
            "column 2 is the label itself, or determines it exactly",
        ),
        (
            lambda _, y: y.__imul__(0),
            "silos 'a' (label 0), 'b' (label 0) have training examples of one class",
        ),
    ],
    ids=["counter", "shuffled counter", "scales", "-999", "999", "label", "one class"],
)
def test_what_cannot_be_meant_is_noted_with_column_and_silo_and_trained(change: Change, said: str) -> None:
    silos = []
    for seed, name in enumerate("ab"):
        x, y = examples(seed)
        change(x, y)
        silos.append(Silo(name, x, y))
    with pytest.warns(FedILCWarning) as notes:
        result = train(Federation("f", silos), nn.Linear(3, 1), **QUICK)
    assert any(str(note.message).startswith(said) for note in notes), [str(note.message) for note in notes]
    assert len(result.history) == 1


def test_a_column_that_is_zero_throughout_one_silo_is_noted() -> None:
    silos = []
    for seed, name in enumerate(("cleveland", "switzerland")):
        x, y = examples(seed)
        x[:, 0] = 0 if seed else np.abs(x[:, 0]) * 40 + 160
        silos.append(Silo(name, x, y))
    (note,) = notes_of(Federation("f", silos))
    assert note.startswith("column 0 is 0 in every row of 'switzerland' and not elsewhere; if")
