"""A source of silos of one's own."""

from __future__ import annotations

from pathlib import Path

from fedilc import Federation, Silo
from fedilc.data.sources import Source


class TwoSilos(Source):
    """A source of the test's own."""

    source: str = "two-silos"

    def build(self, seed: int, folder: Path) -> Federation:
        return Federation(folder.name, [Silo("a", [[float(seed)]], [0]), Silo("b", [[1.0], [2.0]], [0, 1])])


def test_a_source_opens_its_silos_by_name() -> None:
    store = TwoSilos().store(7, Path("place"))
    assert (store.name, dict(store.sizes)) == ("place", {"a": 1, "b": 2})
    assert store.open("a").x.item() == 7.0
