"""Labels: whether they fit the loss and the model's classes, and class numbers that begin at 1."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fedilc.algorithms.loss_name import LossName, has_classes, task_of
from fedilc.errors import DataError, FedILCWarning

if TYPE_CHECKING:
    from fedilc.data.silo import Silo


def note_numbered_from_one(classes: int) -> None:
    """Warn that class numbers from 1 on are taken as class numbers from 0 on."""
    warnings.warn(
        f"the labels 1 to {classes} are taken as the classes 0 to {classes - 1}: logit 0 stands for the "
        'label 1; that they have an order is not used (loss = "regression" takes labels as quantities)',
        FedILCWarning,
        stacklevel=4,
    )


def numbered_from_zero(silo: Silo) -> Silo:
    """Return a copy of a silo whose class numbers are lower by 1."""
    other = copy.copy(silo)
    other.y = silo.y - 1
    other.y_val = None if silo.y_val is None else silo.y_val - 1
    return other


def check_classes(silos: Iterable[Silo], y_test: Tensor | None, classes: int) -> None:
    """Raise if a label is not one of the class numbers 0..classes-1."""
    labelled = [(f"silo {s.name!r}", y) for s in silos for y in (s.y, s.y_val)]
    for where, labels in [*labelled, ("the test set", y_test)]:
        if labels is not None and int(labels.max()) >= classes:
            raise DataError(
                f"{where} has the label {int(labels.max())}, but the model has {classes} "
                f"logits for the classes 0 to {classes - 1}; widen the model's last layer or "
                "correct the label"
            )


def check_labels(silo: Silo, loss: LossName) -> None:
    """Raise if a label of a silo does not fit the loss."""
    require_labels(silo.y, loss, f"silo {silo.name!r}: y")
    require_labels(silo.y_val, loss, f"silo {silo.name!r}: y_val")


def require_labels(labels: Tensor | None, loss: LossName, where: str) -> None:
    """Raise if a label does not fit the loss; the error begins with `where`."""
    wrong = None if labels is None else label_problem(labels.cpu().numpy(), loss)
    if wrong is not None:
        raise DataError(f"{where} {wrong[1]}")


def label_problem(labels: NDArray[Any], loss: LossName) -> tuple[int, str] | None:
    """Return the first example whose label does not fit the loss, and a sentence about it."""
    if not has_classes(loss):
        return None
    if task_of(loss) == "binary":
        wrong = (labels != 0) & (labels != 1)
        expected = '0 or 1 for loss = "binary"; loss = "multiclass" takes class numbers'
    else:
        wrong = (labels < 0) | (labels != np.round(labels))
        expected = 'class numbers 0, 1, 2, ... for loss = "multiclass"'
    if not wrong.any():
        return None
    first = int(wrong.argmax())
    known = np.unique(labels)
    if task_of(loss) == "binary" and len(known) == 2:
        expected = f'0 and 1 for loss = "binary": write {known[0]:g} as 0 and {known[1]:g} as 1'
    return first, f"holds the label {labels[first]:g}; labels must be {expected}"
