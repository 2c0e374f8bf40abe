"""Every loss has classes or quantities as labels."""

from __future__ import annotations

from fedilc.algorithms.loss_registry import LOSSES, has_classes


def test_the_losses_with_classes_are_the_cross_entropies() -> None:
    assert {name for name in LOSSES.names() if has_classes(name)} == {"binary", "multiclass"}
