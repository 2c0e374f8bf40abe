"""The silos of a federation, all in memory or opened one at a time, and what is known unopened."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray
from torch import Tensor

from fedilc.algorithms.loss_registry import LossName, task_of
from fedilc.data.digests import digest, silo_digest
from fedilc.data.inputs import Inputs, Shape, example_shape
from fedilc.data.silo import Federation, Silo, check_classes
from fedilc.errors import DataError

if TYPE_CHECKING:
    from fedilc.data.image_folder import ImagePreprocessing
    from fedilc.data.tables.preprocessing import Preprocessing


@dataclass(frozen=True)
class Outline:
    """The facts of a federation that training needs; for a remote one they include no example.

    Args:
        name: the federation's name.
        facts: the size and digest of each silo's data, in order, as far as they are known here.
        sample: two inputs, or two of the same shape and type, to try the model on.
        loss: the name of the loss.
        x_test: inputs of the out-of-distribution test set, if it is here.
        y_test: its labels.
        columns: the names of the inputs, in order, if they have names.
        label: the name of the labels, if it is known.
        validates: whether any silo holds out examples for validation; None if that is not known here.
        preprocessing: how inputs are made from a table or pictures, if they are.
        first_label: the label that class 0 had before classes were numbered from 0.
        test_patients: whose each example of the test set is, by number, if patients have several.
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
    test_patients: NDArray[Any] | None = None

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


@dataclass(frozen=True, kw_only=True)
class SiloStore(Outline):
    """A federation whose silos are opened by name; its facts are their numbers of training examples.

    `SiloStore.of` makes one of a federation in memory.

    Args:
        name: the federation's name.
        facts: {"examples": n} for each silo by name, in order.
        sample: two inputs, to try the model on.
        loss: the name of the loss.
        x_test: inputs of the out-of-distribution test set, if there is one.
        y_test: its labels.
        columns: the names of the inputs, in order, if they have names.
        label: the name of the labels, if it is known.
        validates: whether any silo holds out examples for validation; None if that is not known.
        preprocessing: how inputs are made from a table or pictures, if they are.
        first_label: the label that class 0 had before classes were numbered from 0.
        test_patients: whose each example of the test set is, by number, if patients have several.
        make: returns a silo that is not in memory, by name; it checks the silo.
        outputs: how many logits a model for the labels has.
        held: the silos, if they stay in memory between requests; None if they do not.
        seen: digests of silos that are not in memory, by name; None if the settings alone determine them.

    Raises:
        DataError: by `open`, if a silo is not here or is not valid.

    >>> silos = [Silo("a", [[0.0], [1.0]], [0, 1]), Silo("b", [[2.0]], [1])]
    >>> store = SiloStore.of(Federation("demo", silos))
    >>> store.sizes, store.open("b")
    ({'a': 2, 'b': 1}, Silo('b', 1 examples of shape (1,), 0 for validation))
    """

    make: Callable[[str], Silo]
    outputs: int
    held: dict[str, Silo] | None = None
    seen: Mapping[str, str] | None = None

    @classmethod
    def of(cls, federation: Federation) -> SiloStore:
        """Return the store of a federation that is in memory."""
        return cls(
            federation.name,
            {silo.name: {"examples": len(silo)} for silo in federation.silos},
            federation.silos[0].x[:2].clone(),  # a view would keep the whole silo in memory
            federation.loss,
            federation.x_test,
            federation.y_test,
            federation.columns,
            federation.label,
            any(silo.x_val is not None for silo in federation.silos),
            federation.preprocessing,
            federation.first_label,
            federation.test_patients,
            make=_elsewhere,
            outputs=federation.outputs,
            held={silo.name: silo for silo in federation.silos},
        )

    @cached_property
    def sizes(self) -> dict[str, int]:
        """Return the number of training examples of each silo, in order."""
        return {name: facts["examples"] for name, facts in self.facts.items()}

    @property
    def inputs(self) -> Shape:
        """Return the shape of one example: a tuple, or one shape per input if there are several."""
        return example_shape(self.sample)

    @property
    def resident(self) -> bool:
        """Return whether silos stay in memory between requests."""
        return self.held is not None

    def open(self, name: str) -> Silo:
        """Return a silo, without cost if it is in memory."""
        silo = self.held.get(name) if self.held is not None else None
        return self.make(name) if silo is None else silo

    def outline(self) -> Outline:
        """Return the outline of this federation, with the known digests of the silos' examples."""
        known = {field.name: getattr(self, field.name) for field in fields(Outline)}
        digests: Mapping[str, str | None] = self.seen or {}
        if self.held is not None:
            held = [self.open(name) for name in self.silos]
            digests = {silo.name: silo_digest(silo) if silo.has_digest else None for silo in held}
        known["facts"] = {
            name: {**facts, "digest": digests[name]} if name in digests else facts
            for name, facts in self.facts.items()
        }
        return Outline(**known)

    def keep_only(self, names: Iterable[str]) -> None:
        """Keep only some silos in memory; the names and sizes of the others stay."""
        if self.held is not None:
            for name in self.held.keys() - set(names):
                del self.held[name]

    def check_classes(self, classes: int) -> None:
        """Raise if a label of a silo in memory, or of the test set, is not one of 0..classes-1."""
        if self.held and task_of(self.loss) == "multiclass":
            check_classes(self.held.values(), self.y_test, classes)


def _elsewhere(name: str) -> Silo:
    raise DataError(f"silo {name!r} is not in memory here; another rank of the run has it, or it is unknown")
