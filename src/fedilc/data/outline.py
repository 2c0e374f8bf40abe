"""What the side that trains knows of a federation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import Tensor

from fedilc.algorithms.loss_name import LossName
from fedilc.data.digest import digest
from fedilc.data.silo_store import SiloStore

if TYPE_CHECKING:
    from fedilc.data.preprocessing import Preprocessing


@dataclass(frozen=True)
class Outline:
    """What the side that trains knows of a federation: all of a local one, no example of a remote one.

    Args:
        name: how the federation is called.
        silos: the participants' names, in the order in which their replies are added up.
        sample: two inputs, or two of the same shape and type, to try the model on.
        loss: which one, by name.
        facts: what identifies each silo's data, as far as it is known here.
        x_test: inputs of the out-of-distribution test set, if it is here.
        y_test: its labels.
        columns: the names of the inputs, in order, if they have names.
        label: what the labels are called, if that is known.
        validates: whether a silo holds out examples for validation; None if that is not known here.
        preprocessing: how inputs are made of a table's columns, if they are.
    """

    name: str
    silos: tuple[str, ...]
    sample: Tensor
    loss: LossName
    facts: Mapping[str, Mapping[str, Any]]
    x_test: Tensor | None = None
    y_test: Tensor | None = None
    columns: tuple[str, ...] = ()
    label: str | None = None
    validates: bool | None = None
    preprocessing: Preprocessing | None = None

    @classmethod
    def of(cls, store: SiloStore) -> Outline:
        """The outline of a federation whose silos can be opened here."""
        facts: dict[str, dict[str, Any]] = {name: {"examples": size} for name, size in store.sizes.items()}
        for name, fingerprint in store.fingerprints().items():
            facts[name]["digest"] = fingerprint
        test = store.x_test, store.y_test
        known = store.name, store.silos, store.sample, store.loss, facts
        return cls(*known, *test, store.columns, store.label, store.validates, store.preprocessing)

    def never_records(self, key: str) -> bool:
        """Whether no round can have this number, because there are no examples to compute it from."""
        missing = {"validation": self.validates is False, "test": self.x_test is None}
        return missing.get(key.partition("_")[0], False)


def data_facts(outline: Outline) -> dict[str, Any]:
    """Return what identifies the data of a run: digests of its silos and of its test set."""
    return {"silos": dict(outline.facts), "test": digest(outline.x_test, outline.y_test)}
