"""Silos and federations: the examples of participants, their split for validation, and checks of labels."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fedilc.algorithms.loss_registry import LOSSES, LossName, has_classes, task_of
from fedilc.data.inputs import (
    Examples,
    Inputs,
    Shape,
    Streamed,
    example_shape,
    make_inputs,
    make_tensor,
    shape_of,
    shape_text,
    tensors_of,
)
from fedilc.data.streamed import stream
from fedilc.errors import DataError, FedILCWarning, nearest
from fedilc.seeds import numpy_generator

if TYPE_CHECKING:
    from fedilc.data.image_folder import ImagePreprocessing
    from fedilc.data.tables.preprocessing import Preprocessing


class Silo:
    """One participant: its training examples, and its validation examples if it has any.

    Args:
        name: the silo's name in messages, tables and errors.
        x: the inputs, examples first; a tensor or anything `torch.as_tensor` takes. A dict or a tuple of
            such inputs is for a model that takes several: it is called as `model(**x)` or `model(*x)`.
        y: one label per example: 0/1 (float or int), class numbers, or any numbers for regression.
        x_val: validation inputs of the same shape.
        y_val: validation labels.
        domains: the sub-domain of each validation example, if it is known; the validation is then also
            reported by sub-domain.

    Raises:
        DataError: if inputs, labels or domains are not valid.

    >>> Silo("clinic", [[0.0], [1.0]], [0, 1])
    Silo('clinic', 2 examples of shape (1,), 0 for validation)
    >>> Silo("clinic", {"image": np.zeros((2, 1, 8, 8)), "age": [61.0, 47.0]}, [0, 1])
    Silo('clinic', 2 examples of shape image (1, 8, 8), age (), 0 for validation)
    """

    def __init__(
        self,
        name: str,
        x: Any,
        y: Any,
        x_val: Any = None,
        y_val: Any = None,
        domains: Sequence[str] | None = None,
    ) -> None:
        self.name = str(name)
        where = f"silo {self.name!r}"
        self.x: Examples
        self.y: Tensor
        self.x, self.y = _pair(x, y, where, "x", "y")
        self.has_digest = True
        self.x_val: Examples | None = None
        self.y_val: Tensor | None = None
        if (x_val is None) != (y_val is None):
            raise DataError(f"{where} needs both x_val and y_val, or neither")
        if x_val is not None and len(y_val):
            self.x_val, self.y_val = _pair(x_val, y_val, where, "x_val", "y_val")
            _same_shape(self.x_val, self.x, f"{where}: x_val", "its x")
        self.domains = None if domains is None else [str(domain) for domain in domains]
        held_out = 0 if self.x_val is None else len(self.x_val)
        if self.domains is not None and len(self.domains) != held_out:
            raise DataError(
                f"{where}: domains has {len(self.domains)} names but x_val has {held_out} examples; "
                "name the sub-domain of each validation example"
            )

    @classmethod
    def from_dataset(
        cls,
        name: str,
        dataset: Any,
        validation: Any = None,
        domains: Sequence[str] | None = None,
        digest: bool = False,
    ) -> Silo:
        """Return a silo whose examples are read each time they are used, and never all in memory.

        All examples are read once here, to count and check them; labels and two examples are kept.

        Args:
            name: the silo's name in messages, tables and errors.
            dataset: a `torch.utils.data.Dataset`, or anything with `__len__` and `__getitem__`, with a pair
                (x, y) per index; or an iterable of batches (x, y), such as a `DataLoader` without shuffling,
                which is read in order only. Each reading must give the same examples.
            validation: validation examples, in the same form.
            domains: the sub-domain of each validation example, if it is known.
            digest: whether run folders have a digest of the examples, for which they are read once more (and
                once more per further input). Without it, a resumed run cannot tell whether they have changed.

        Raises:
            DataError: if examples are not valid.

        >>> import torch
        >>> pairs = torch.utils.data.TensorDataset(torch.zeros(3, 2), torch.tensor([0, 1, 1]))
        >>> Silo.from_dataset("clinic", pairs)
        Silo('clinic', 3 examples of shape (2,), 0 for validation)
        """
        where = f"silo {name!r}"
        x, y = stream(dataset, where)
        x_val, y_val = (None, None) if validation is None else stream(validation, f"{where}: validation")
        silo = cls(name, x, y, x_val, y_val, domains)
        silo.has_digest = digest
        return silo

    @property
    def streamed(self) -> bool:
        """Return whether examples are read when they are used."""
        return isinstance(self.x, Streamed) or isinstance(self.x_val, Streamed)

    def __len__(self) -> int:
        return len(self.x)

    def __repr__(self) -> str:
        held_out = 0 if self.x_val is None else len(self.x_val)
        shape = shape_text(shape_of(self.x))
        return f"Silo({self.name!r}, {len(self)} examples of shape {shape}, {held_out} for validation)"


class Federation:
    """Silos that train together, and a test set from a domain that no silo has seen.

    Args:
        name: the federation's name in tables and run folders.
        silos: the participants; their inputs must have one shape and their names must differ.
        x_test: inputs of the out-of-distribution test set, if there is one.
        y_test: its labels.
        loss: "binary" (one logit, labels 0/1), "multiclass" (one logit per class), "regression" (one output,
            squared error), "huber" (the same, but linear for errors over 1), or a loss of your own
            (`fedilc.gradients.losses.register`). For "multiclass", 1-based labels are shifted to 0-based,
            with a note.
        columns: the names of the inputs, in order, if they are a table's columns.
        label: what the labels are called, if they have a name; run folders keep it with the columns.
        preprocessing: how inputs were made from a table or pictures; run folders keep it, for `fedilc.load`.
        test_patients: whose each example of the test set is, by number, if patients have several.

    Raises:
        DataError: if silos or the test set do not fit together, or labels do not fit the loss.

    >>> silos = [Silo("a", [[0.0], [1.0]], [0, 1]), Silo("b", [[2.0]], [1])]
    >>> Federation("demo", silos)
    Federation('demo', silos: a, b)
    """

    def __init__(
        self,
        name: str,
        silos: Iterable[Silo],
        x_test: Any = None,
        y_test: Any = None,
        loss: LossName = "binary",
        columns: Sequence[str] = (),
        label: str | None = None,
        preprocessing: Preprocessing | ImagePreprocessing | None = None,
        test_patients: NDArray[Any] | None = None,
    ) -> None:
        self.name = str(name)
        self.preprocessing = preprocessing
        self.test_patients = test_patients
        self.columns = tuple(map(str, columns))
        self.label = label
        self.first_label = 0
        self.silos = list(silos)
        if loss not in LOSSES.names():
            raise DataError(f"loss={loss!r} is unknown{nearest(str(loss), LOSSES.names())}")
        self.loss: LossName = loss
        self.x_test: Inputs | None = None
        self.y_test: Tensor | None = None
        if (x_test is None) != (y_test is None):
            raise DataError("the test set needs both x_test and y_test, or neither")
        if x_test is not None:
            x, self.y_test = _pair(x_test, y_test, "the test set", "x_test", "y_test")
            assert not isinstance(x, Streamed), "a test set is in memory"
            self.x_test = x
        self._check_silos()
        self._number_from_zero()

    def _check_silos(self) -> None:
        if not self.silos:
            raise DataError(f"federation {self.name!r} has no silos; give at least one")
        names = [silo.name for silo in self.silos]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise DataError(f"two silos are called {twice[0]!r}; give each silo a name of its own")
        first = self.silos[0]
        for silo in self.silos:
            _same_shape(silo.x, first.x, f"silo {silo.name!r}", f"silo {first.name!r}")
            check_labels(silo, self.loss)
        if self.columns and shape_of(first.x) != [len(self.columns)]:
            raise DataError(
                f"{len(self.columns)} columns are named, but inputs have shape {shape_text(self.inputs)}; "
                "name each column of x, in order"
            )
        if self.x_test is not None:
            _same_shape(self.x_test, first.x, "the test set", f"silo {first.name!r}")
            require_labels(self.y_test, self.loss, "the test set: y_test")

    def __repr__(self) -> str:
        return f"Federation({self.name!r}, silos: {', '.join(silo.name for silo in self.silos)})"

    @property
    def inputs(self) -> Shape:
        """Return the shape of one example: a tuple, or one shape per input if there are several."""
        return example_shape(self.silos[0].x)

    @property
    def outputs(self) -> int:
        """Return the number of logits of a model for these labels."""
        if self.preprocessing is not None:
            return self.preprocessing.label.outputs
        if task_of(self.loss) != "multiclass":
            return 1
        return 1 + max(int(silo.y.max()) for silo in self.silos)

    def _number_from_zero(self) -> None:
        """Shift 1-based labels to 0-based, in copies of the silos."""
        every = [*(y for silo in self.silos for y in (silo.y, silo.y_val)), self.y_test]
        labels = [y for y in every if y is not None]
        if task_of(self.loss) != "multiclass" or self.preprocessing is not None:
            return
        if min(int(y.min()) for y in labels) != 1:
            return
        note_numbered_from_one(max(int(y.max()) for y in labels))
        self.first_label = 1
        self.silos = [numbered_from_zero(silo) for silo in self.silos]
        self.y_test = None if self.y_test is None else self.y_test - 1

    def check_classes(self, classes: int) -> None:
        """Raise if a label is not one of the class numbers 0..classes-1 of a multiclass model."""
        if task_of(self.loss) == "multiclass":
            check_classes(self.silos, self.y_test, classes)


def _pair(x: Any, y: Any, where: str, x_part: str, y_part: str) -> tuple[Examples, Tensor]:
    if isinstance(x, Streamed):
        return x, y
    inputs, labels = make_inputs(x, where, x_part), make_tensor(y, where, y_part)
    for tensor in tensors_of(inputs):
        if tensor.dim() == 0 or tensor.numel() == 0:
            missing = "no example" if tensor.dim() == 0 or not len(tensor) else "no inputs"
            raise DataError(f"{where} is empty: {x_part} holds {missing}; leave it out or give it data")
    if labels.dim() == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if labels.dim() != 1 or len(labels) != len(inputs):
        raise DataError(
            f"{where}: {y_part} has shape {tuple(labels.shape)} but {x_part} has {len(inputs)} "
            "examples; give one label per example"
        )
    return inputs, labels


def _same_shape(x: Examples, reference: Examples, where: str, other: str) -> None:
    if shape_of(x) != shape_of(reference):
        raise DataError(
            f"{where} has inputs of shape {shape_text(shape_of(x))} but {other} has "
            f"{shape_text(shape_of(reference))}; all inputs must have one shape"
        )


def split_silo(
    name: str,
    x: Any,
    y: NDArray[Any],
    validation_share: float,
    seed: int,
    loss: LossName = "binary",
    patients: NDArray[Any] | None = None,
) -> Silo:
    """Return a silo of examples, some of them held out for validation.

    The choice depends on the labels and the seed, not on the silo's name or position. If `patients` says
    whose each example is, whole patients are held out.
    """
    random = numpy_generator(seed, "files", "validation")
    held_out = by_patient(lambda labels: held_out_rows(labels, validation_share, random, loss), y, patients)
    if held_out.all():
        raise DataError(
            f"validation_share={validation_share:g} leaves silo {name!r}, which has {len(y)} examples, "
            "none to train on; lower it"
        )
    return Silo(name, x[~held_out], y[~held_out], x[held_out], y[held_out])


def held_out_rows(
    y: NDArray[Any], share: float, random: np.random.Generator, loss: LossName = "binary"
) -> NDArray[np.bool_]:
    """Return which examples are held out: a share of all, or of each class if labels are classes."""
    held_out = np.zeros(len(y), dtype=bool)
    classes = y if has_classes(loss) else np.zeros(len(y))
    for label in np.unique(classes):
        members = np.flatnonzero(classes == label)
        held_out[random.permutation(members)[: round(share * len(members))]] = True
    return held_out


def by_patient(
    deal: Callable[[NDArray[Any]], NDArray[Any]], y: NDArray[Any], patients: NDArray[Any] | None
) -> NDArray[Any]:
    """Return the part of a split in which each example is; all examples of a patient are in one part.

    `deal` returns the part of each label that it is given. A patient is dealt once, by its highest label.

    >>> by_patient(lambda labels: labels * 10, np.array([0, 1, 0, 0]), np.array([5, 5, 3, 3]))
    array([10, 10,  0,  0])
    """
    if patients is None:
        return deal(y)
    return deal(label_per_patient(y, patients))[np.unique(patients, return_inverse=True)[1]]


def folds_of(
    y: NDArray[Any], folds: int, loss: LossName, patients: NDArray[Any] | None = None
) -> NDArray[np.intp]:
    """Return the fold of each example: each class in proportion, in an order drawn once and for all.

    All examples of a patient are in one fold.
    """
    if patients is not None:
        return by_patient(lambda labels: folds_of(labels, folds, loss), y, patients)
    found = np.empty(len(y), dtype=np.intp)
    random = numpy_generator(0, "study", "folds")
    order = random.permutation(len(y))
    if has_classes(loss):
        order = order[np.argsort(y[order], kind="stable")]
    found[order] = np.arange(len(y)) % folds
    return found


def label_per_patient(y: NDArray[Any], patients: NDArray[Any] | None) -> NDArray[Any]:
    """Return the highest label of each patient, in the order of their numbers.

    >>> label_per_patient(np.array([0, 1, 0, 0]), np.array([5, 5, 3, 3]))
    array([0, 1])
    """
    if patients is None:
        return y
    places = np.unique(patients, return_inverse=True)[1]
    found = np.full(places.max() + 1, y.min())
    np.maximum.at(found, places, y)
    return found


def note_numbered_from_one(classes: int) -> None:
    """Warn that 1-based labels are shifted to 0-based ones."""
    warnings.warn(
        f"the labels 1 to {classes} are taken as the classes 0 to {classes - 1}: logit 0 stands for the "
        'label 1; their order is not used (loss = "regression" takes labels as quantities)',
        FedILCWarning,
        stacklevel=4,
    )


def numbered_from_zero(silo: Silo) -> Silo:
    """Return a copy of a silo with its labels shifted from 1-based to 0-based."""
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
