"""The outline of a federation: what the training side knows of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import Tensor

from fedilc.algorithms.loss_name import LossName
from fedilc.data.digest import digest
from fedilc.data.silo_store import SiloStore

if TYPE_CHECKING:
    from fedilc.data.image_folder import ImagePreprocessing
    from fedilc.data.tables.preprocessing import Preprocessing


@dataclass(frozen=True)
class Outline:
    """The facts of a federation that training needs; for a remote one they include no example.

    Args:
        silos: the participants' names, in the order that records have them in.
        sample: two inputs, or two of the same shape and type, to try the model on.
        facts: the size and digest of each silo's data, as far as they are known here.
        x_test: inputs of the out-of-distribution test set, if it is here; all else is as in `SiloStore`.
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
    preprocessing: Preprocessing | ImagePreprocessing | None = None
    first_label: int = 0

    @classmethod
    def of(cls, store: SiloStore) -> Outline:
        """Return the outline of a federation whose silos can be opened here."""
        facts: dict[str, dict[str, Any]] = {name: {"examples": size} for name, size in store.sizes.items()}
        for name, text in store.digests().items():
            facts[name]["digest"] = text
        test = store.x_test, store.y_test
        known = store.name, store.silos, store.sample, store.loss, facts
        names = store.columns, store.label
        return cls(*known, *test, *names, store.validates, store.preprocessing, store.first_label)

    def never_records(self, key: str) -> bool:
        """Return whether no round can have this number, because there are no examples for it."""
        missing = {"validation": self.validates is False, "test": self.x_test is None}
        return missing.get(key.partition("_")[0], False)


def data_facts(outline: Outline) -> dict[str, Any]:
    """Return the facts that identify the data of a run: digests of its silos and of its test set."""
    return {"silos": dict(outline.facts), "test": digest(outline.x_test, outline.y_test)}
