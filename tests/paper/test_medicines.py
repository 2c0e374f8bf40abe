"""Which medicine an order is for, and which medicines are kept."""

from __future__ import annotations

import numpy as np
import polars as pl
from hypothesis import given
from hypothesis import strategies as st

from fedilc.paper.eicu_tables import Uses, read_catalogue

orders_with_names = st.lists(
    st.tuples(st.integers(0, 4), st.sampled_from(["", "x", "y", "z"])).filter(lambda o: o != (0, "")),
    min_size=1,
    max_size=30,
)


@given(orders_with_names)
def test_the_catalogue_says_what_a_plain_loop_says(orders: list[tuple[int, str]]) -> None:
    expected = {}
    for code, name in orders:
        lent = {other for other, same in orders if same == name and other and name}
        key = code or (next(iter(lent)) if len(lent) == 1 else None)
        expected[code, name] = f"hicl-{key}" if key else f"name-{name}"
    frame = pl.LazyFrame({"code": [o[0] for o in orders], "name": [o[1] for o in orders]})
    found = read_catalogue(frame)
    assert {row[:2]: row[2] for row in found.select("code", "name", "medicine").rows()} == expected
    assert found["orders"].sum() == len(orders)


def test_the_uses_kept_are_those_of_the_most_frequent_medicines() -> None:
    random = np.random.default_rng(4)
    matrix = random.random((40, 12)) < np.linspace(0.05, 0.6, 12)
    rows, columns = np.nonzero(matrix)
    names = [f"m{number:02d}" for number in range(12)]
    kept = Uses(names, rows, columns).most_frequent(5, 3)
    order = sorted(names, key=lambda name: (-matrix[:, names.index(name)].sum(), name))[:5]
    assert kept.medicines == order
    for name, column in kept.columns_of(40).items():
        assert np.array_equal(column, matrix[:, names.index(name)])
