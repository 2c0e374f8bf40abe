"""The silos of a federation: all in memory, or opened one at a time if there are thousands."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor

from fedilc.algorithms.loss_name import LossName
from fedilc.data.digest import silo_digest
from fedilc.data.labels import check_classes
from fedilc.data.silo import Federation, Silo
from fedilc.errors import DataError

if TYPE_CHECKING:
    from fedilc.data.image_folder import ImagePreprocessing
    from fedilc.data.tables.preprocessing import Preprocessing


@dataclass(frozen=True)
class SiloStore:
    """A federation whose silos are opened by name.

    Args:
        name: of the federation.
        sizes: the number of training examples of each silo, in order.
        make: returns a silo that is not in memory, by name, and checks it.
        sample: two inputs.
        outputs: how many logits a model for the labels has.
        loss: which one, by name.
        x_test: inputs of the out-of-distribution test set, if there is one.
        y_test: its labels.
        held: the silos, if they stay in memory between requests; None if they do not.
        seen: digests of silos that are not in memory, by name; None if the settings alone determine them.
        columns: the names of the inputs, in order, if they have names.
        label: the name of the labels, if they have one.
        validates: whether a silo holds out examples for validation; None if that is not known.
        preprocessing: how inputs were made of a table or of pictures, if they were.
        first_label: the label that class 0 had before classes were numbered from 0.

    >>> silos = [Silo("a", [[0.0], [1.0]], [0, 1]), Silo("b", [[2.0]], [1])]
    >>> store = SiloStore.of(Federation("demo", silos))
    >>> store.sizes, store.open("b")
    ({'a': 2, 'b': 1}, Silo('b', 1 examples of shape (1,), 0 for validation))
    """

    name: str
    sizes: Mapping[str, int]
    make: Callable[[str], Silo]
    sample: Tensor
    outputs: int
    loss: LossName
    x_test: Tensor | None = None
    y_test: Tensor | None = None
    held: dict[str, Silo] | None = None
    seen: Mapping[str, str] | None = None
    columns: tuple[str, ...] = ()
    label: str | None = None
    validates: bool | None = None
    preprocessing: Preprocessing | ImagePreprocessing | None = None
    first_label: int = 0

    @classmethod
    def of(cls, federation: Federation) -> SiloStore:
        """Return the store of a federation that is in memory."""
        return cls(
            federation.name,
            {silo.name: len(silo) for silo in federation.silos},
            _elsewhere,
            federation.silos[0].x[:2].clone(),  # a view would keep the whole silo in memory
            federation.outputs,
            federation.loss,
            federation.x_test,
            federation.y_test,
            {silo.name: silo for silo in federation.silos},
            columns=federation.columns,
            label=federation.label,
            validates=any(silo.x_val is not None for silo in federation.silos),
            preprocessing=federation.preprocessing,
            first_label=federation.first_label,
        )

    @property
    def silos(self) -> tuple[str, ...]:
        """Return the names of the silos, in order."""
        return tuple(self.sizes)

    @property
    def inputs(self) -> tuple[int, ...]:
        """Return the shape of one input."""
        return tuple(self.sample.shape[1:])

    @property
    def resident(self) -> bool:
        """Return whether silos stay in memory between requests."""
        return self.held is not None

    def open(self, name: str) -> Silo:
        """Return a silo, without cost if it is in memory."""
        silo = self.held.get(name) if self.held is not None else None
        return self.make(name) if silo is None else silo

    def digests(self) -> Mapping[str, str]:
        """Return a digest of the examples per silo, as far as it is known."""
        if self.held is None:
            return self.seen or {}
        return {name: silo_digest(self.open(name)) for name in self.silos}

    def keep_only(self, names: Iterable[str]) -> None:
        """Keep only some silos in memory; of the others, names and sizes stay."""
        if self.held is not None:
            for name in self.held.keys() - set(names):
                del self.held[name]

    def check_classes(self, classes: int) -> None:
        """Raise if a label of a silo in memory, or of the test set, is not one of 0..classes-1."""
        if self.held and self.loss == "multiclass":
            check_classes(self.held.values(), self.y_test, classes)


def _elsewhere(name: str) -> Silo:
    raise DataError(f"silo {name!r} is not in memory here; another rank of the run has it, or it is unknown")
