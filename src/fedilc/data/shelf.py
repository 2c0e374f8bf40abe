"""Silos on a shelf: all in memory, or opened one at a time, so that there may be thousands of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from torch import Tensor

from fedilc.data.silo import Federation, LossName, Silo


def _unchecked(_: int) -> None:
    """Silos that are opened later are checked by whoever opens them."""


@dataclass(frozen=True)
class Shelf:
    """A federation whose silos are opened by name.

    Args:
        name: how the federation is called.
        sizes: how many training examples each silo has, in order.
        open: gives a silo by name; where `resident`, it is in memory and costs nothing.
        sample: two inputs.
        outputs: how many logits a model for the labels has.
        loss: "binary" or "multiclass".
        resident: whether silos stay in memory between requests.
        x_test: inputs of the out-of-distribution test set, if there is one.
        y_test: its labels.
        check_classes: raises where a label does not suit a number of logits.

    >>> silos = [Silo("a", [[0.0], [1.0]], [0, 1]), Silo("b", [[2.0]], [1])]
    >>> shelf = Shelf.of(Federation("demo", silos))
    >>> shelf.sizes, shelf.open("b")
    ({'a': 2, 'b': 1}, Silo('b', 1 examples of shape (1,), 0 for validation))
    """

    name: str
    sizes: Mapping[str, int]
    open: Callable[[str], Silo]
    sample: Tensor
    outputs: int
    loss: LossName
    resident: bool = False
    x_test: Tensor | None = None
    y_test: Tensor | None = None
    check_classes: Callable[[int], None] = _unchecked

    @classmethod
    def of(cls, federation: Federation) -> Shelf:
        """A federation that is in memory."""
        silos = {silo.name: silo for silo in federation.silos}
        return cls(
            federation.name,
            {name: len(silo) for name, silo in silos.items()},
            silos.__getitem__,
            federation.silos[0].x[:2],
            federation.outputs,
            federation.loss,
            True,
            federation.x_test,
            federation.y_test,
            federation.check_classes,
        )

    @property
    def silos(self) -> tuple[str, ...]:
        """The names, in order."""
        return tuple(self.sizes)

    @property
    def inputs(self) -> tuple[int, ...]:
        """The shape of one input."""
        return tuple(self.sample.shape[1:])

    def only(self, names: Iterable[str]) -> Shelf:
        """The same shelf with these silos alone; the others' examples are let go."""
        chosen = {name: self.open(name) for name in names} if self.resident else None
        if chosen is None:
            return self
        return replace(self, open=chosen.__getitem__, check_classes=_unchecked)
