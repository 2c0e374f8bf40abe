"""Labels that do not fit the loss are named with what is expected; classes from 1 become classes from 0."""

from __future__ import annotations

import numpy as np
import pytest

from fedilc import Silo
from fedilc.data.silo import check_classes, check_labels, label_problem, numbered_from_zero
from fedilc.errors import DataError


@pytest.mark.parametrize(
    ("labels", "loss", "first", "sentence"),
    [
        ([0, 1, 2], "binary", 2, "holds the label 2; labels must be 0 or 1"),
        ([1, 2, 2], "binary", 1, "write 1 as 0 and 2 as 1"),
        ([0, 1.5], "multiclass", 1, "class numbers 0, 1, 2"),
        ([0, -1], "multiclass", 1, "holds the label -1"),
    ],
)
def test_the_first_wrong_label_is_named(labels: list[float], loss: str, first: int, sentence: str) -> None:
    found = label_problem(np.array(labels), loss)
    assert found is not None
    assert found[0] == first
    assert sentence in found[1]


def test_labels_that_fit_are_no_problem() -> None:
    assert label_problem(np.array([0.0, 1.0]), "binary") is None
    assert label_problem(np.array([0, 7]), "multiclass") is None
    assert label_problem(np.array([-3.5, 1e6]), "regression") is None


def test_validation_labels_are_checked_and_numbered_too() -> None:
    silo = Silo("north", [[0.0], [1.0]], [1, 2], [[2.0]], [3])
    with pytest.raises(DataError, match="silo 'north': y_val holds the label 3"):
        check_labels(Silo("north", [[0.0]], [1], [[2.0]], [3]), "binary")
    with pytest.raises(DataError, match="silo 'north' has the label 3, but the model has 3 logits"):
        check_classes([silo], None, 3)
    other = numbered_from_zero(silo)
    assert (other.y.tolist(), other.y_val.tolist(), silo.y.tolist()) == ([0, 1], [2], [1, 2])
