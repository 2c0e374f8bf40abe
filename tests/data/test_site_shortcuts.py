"""Synthetic sites whose own markers tell the label there, and are noise elsewhere."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from fedilc.data.embedded_data import site_shortcuts

FEDERATION = site_shortcuts(seed=1, silos=4, examples=4000, validation=50)


def effects(x: Tensor, y: Tensor) -> Tensor:
    """Half the difference of each column's means between the labels."""
    return (x[y == 1].mean(0) - x[y == 0].mean(0)) / 2


def test_there_are_ten_silos_of_300_rows_with_common_features_and_markers_for_each() -> None:
    federation = site_shortcuts()
    assert [silo.name for silo in federation.silos] == [f"site-{number:02d}" for number in range(1, 11)]
    assert {(tuple(silo.x.shape), len(silo.x_val)) for silo in federation.silos} == {((300, 68), 100)}
    assert federation.x_test is not None
    assert tuple(federation.x_test.shape) == (4000, 68)


@pytest.mark.parametrize("number", range(4))
def test_a_silos_markers_tell_its_labels_and_those_of_others_are_noise(number: int) -> None:
    silo = FEDERATION.silos[number]
    expected = torch.zeros(32)
    expected[:8] = 0.25
    expected[8 + 6 * number : 14 + 6 * number] = 1.5
    torch.testing.assert_close(effects(silo.x, silo.y), expected, rtol=0, atol=0.08)  # five standard errors
    assert abs(silo.y.mean() - 0.5) < 0.04


def test_at_the_new_site_no_marker_tells_the_label() -> None:
    assert FEDERATION.x_test is not None
    assert FEDERATION.y_test is not None
    found = effects(FEDERATION.x_test, FEDERATION.y_test)
    torch.testing.assert_close(found[:8], torch.full((8,), 0.25), rtol=0, atol=0.08)
    torch.testing.assert_close(found[8:], torch.zeros(24), rtol=0, atol=0.08)


def test_one_seed_gives_one_federation_to_the_bit_and_another_seed_another() -> None:
    first, again, other = (site_shortcuts(seed, silos=2, examples=5) for seed in (3, 3, 4))
    assert all(torch.equal(a.x, b.x) for a, b in zip(first.silos, again.silos, strict=True))
    assert not torch.equal(first.silos[0].x, other.silos[0].x)
    assert not torch.equal(first.silos[0].x, first.silos[1].x)
