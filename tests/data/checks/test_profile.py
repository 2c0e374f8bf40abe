"""Pixels and columns that are the label are recognised from a silo's examples."""

from __future__ import annotations

import numpy as np
from small_silos import examples, notes_of

from fedilc import Federation, Silo


def test_pixels_from_0_to_255_are_noted() -> None:
    x = np.random.default_rng(0).integers(0, 256, (12, 1, 6, 6)).astype(np.float32)
    assert "divide them by 255" in notes_of(Federation("f", [Silo("a", x, np.arange(12) % 2)]))[0]
    assert notes_of(Federation("f", [Silo("a", x / 255, np.arange(12) % 2)])) == []


def test_pixels_that_were_resized_or_have_sixteen_bits_are_noted() -> None:
    random = np.random.default_rng(0)
    x, y = random.uniform(0, 255, (12, 1, 6, 6)).astype(np.float32), np.arange(12) % 2
    assert "divide them by 255" in notes_of(Federation("f", [Silo("a", x, y)]))[0]
    assert "divide them by 65535" in notes_of(Federation("f", [Silo("a", 250 * x, y)]))[0]


def test_a_label_in_other_numbers_is_noted() -> None:
    x, y = examples(0)
    x[:, 2] = 200 * y - 100
    assert "determines it exactly" in notes_of(Federation("f", [Silo("a", x, y)]))[0]
