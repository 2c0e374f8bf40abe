"""The outline of a federation: what the training side knows of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import Tensor

from fedilc.algorithms.loss_name import LossName
from fedilc.data.digest import digest
from fedilc.data.inputs import Inputs

if TYPE_CHECKING:
    from fedilc.data.image_folder import ImagePreprocessing
    from fedilc.data.tables.preprocessing import Preprocessing


@dataclass(frozen=True)
class Outline:
    """The facts of a federation that training needs; for a remote one they include no example.

    Args:
        name: of the federation.
        facts: of each silo, in order, the size and digest of its data, as far as they are known here.
        sample: two inputs, or two of the same shape and type, to try the model on.
        loss: which one, by name.
        x_test: inputs of the out-of-distribution test set, if it is here.
        y_test: its labels.
        columns: the names of the inputs, in order, if they have names.
        label: the name of the labels, if it is known.
        validates: whether a silo holds out examples for validation; None if that is not known here.
        preprocessing: how inputs are made of a table or of pictures, if they are.
        first_label: the label that class 0 had before classes were numbered from 0.
    """

    name: str
    facts: Mapping[str, Mapping[str, Any]]
    sample: Inputs
    loss: LossName
    x_test: Inputs | None = None
    y_test: Tensor | None = None
    columns: tuple[str, ...] = ()
    label: str | None = None
    validates: bool | None = None
    preprocessing: Preprocessing | ImagePreprocessing | None = None
    first_label: int = 0

    @property
    def silos(self) -> tuple[str, ...]:
        """Return the names of the silos, in order."""
        return tuple(self.facts)

    def never_records(self, key: str) -> bool:
        """Return whether no round can have this number, because there are no examples for it."""
        missing = {"validation": self.validates is False, "test": self.x_test is None}
        return missing.get(key.partition("_")[0], False)


def data_facts(outline: Outline) -> dict[str, Any]:
    """Return the facts that identify the data of a run: digests of its silos and of its test set."""
    return {"silos": dict(outline.facts), "test": digest(outline.x_test, outline.y_test)}
