"""A test set that silos train on is refused; silos and classes without examples are noted."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from small_silos import QUICK, examples, notes_of, silo
from torch import nn

from fedilc import Federation, Silo, train
from fedilc.errors import DataError


@pytest.mark.parametrize("order", ["same", "shuffled"])
def test_train_refuses_a_test_set_that_is_a_silo(order: str) -> None:
    a, b = silo("a", 1), silo("b", 2)
    rows = torch.arange(40) if order == "same" else torch.randperm(40, generator=torch.manual_seed(0))
    federation = Federation("f", [a, b], b.x[rows], b.y[rows])
    with pytest.raises(DataError, match="the test set has the same rows as silo 'b'"):
        train(federation, nn.Linear(3, 1), **QUICK)


def test_a_silo_with_one_example_is_named() -> None:
    federation = Federation("f", [silo("a", 1), Silo("b", [[1.0, 2.0, 3.0]], [1])])
    assert notes_of(federation)[0].startswith("silo 'b' has one training example only")


@pytest.mark.parametrize(
    ("labels", "said"),
    [((0, 2), "no silo has an example of class 1:"), ((0, 5), "no silo has an example of class 1, 2, 3, 4:")],
)
def test_classes_that_nobody_has_are_named(labels: tuple[int, int], said: str) -> None:
    x, y = examples(0)
    federation = Federation("f", [Silo("a", x, np.array(labels)[y])], loss="multiclass")
    assert [note for note in notes_of(federation) if note.startswith(said)]


def test_a_test_set_that_lies_almost_wholly_in_the_silos_is_refused() -> None:
    silos = [Silo(name, *examples(seed)) for seed, name in enumerate("ab")]
    x, y = (torch.cat(parts)[1:] for parts in zip(*((silo.x, silo.y) for silo in silos), strict=True))
    with pytest.raises(DataError, match="rows of the test set are also in"):
        train(Federation("f", silos, x, y), torch.nn.Linear(3, 1), rounds=1, learning_rate=0.1)
