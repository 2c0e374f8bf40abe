"""Signs and logarithms of outer products that are never formed are those of the formed ones."""

from __future__ import annotations

import pytest
import torch

from fedilc.aggregation import WeightedGeometricMean
from fedilc.aggregation import signed_logs as outer_products
from fedilc.aggregation.signed_logs import outer_sums


@pytest.mark.parametrize("signs", ["both", "positive inputs"])
def test_outer_products_are_odd_to_the_bit(signs: str, generator: torch.Generator) -> None:
    left = torch.randn(300, 37, generator=generator)
    right = torch.randn(300, 29, generator=generator)
    right = right.relu() if signs == "positive inputs" else right
    found = []
    for d in (left, -left):
        aggregator = WeightedGeometricMean()
        sink = aggregator.stream({"w": torch.zeros(37, 29)}, "a silo")
        sink.outer("w", d, right)
        sink.counted(300)
        found.append(aggregator.finalize(sink.state).value["w"])
    assert torch.equal(found[0], -found[1])


@pytest.mark.parametrize("rows", [1, 5, 11])
@pytest.mark.parametrize("signs", ["both", "positive inputs"])
def test_counts_and_logarithms_equal_those_of_the_products(
    signs: str, rows: int, monkeypatch: pytest.MonkeyPatch, generator: torch.Generator
) -> None:
    monkeypatch.setattr(outer_products, "ROWS", 4)
    left = torch.randn(rows, 3, generator=generator, dtype=torch.float64)
    right = torch.randn(rows, 2, generator=generator, dtype=torch.float64)
    left[torch.rand(left.shape, generator=generator) < 0.3] = 0.0
    right = right.relu() if signs == "positive inputs" else right
    products = left.unsqueeze(2) * right.unsqueeze(1)
    counts, logs = outer_sums(left, right)
    for place, side in enumerate((products > 0, products < 0)):
        assert torch.equal(counts[place], side.sum(0))
        expected = products.abs().log2().where(side, 0.0).sum(0)
        torch.testing.assert_close(logs[place], expected, rtol=1e-12, atol=1e-12)
