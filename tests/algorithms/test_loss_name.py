"""Every loss has classes or quantities as labels."""

from __future__ import annotations

from typing import get_args

from fedilc.algorithms.loss_name import LossName, has_classes


def test_the_losses_with_classes_are_the_cross_entropies() -> None:
    assert {name for name in get_args(LossName) if has_classes(name)} == {"binary", "multiclass"}
