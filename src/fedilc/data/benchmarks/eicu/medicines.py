"""The medicine of each eICU order, and the 0/1 table of patients and medicines."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from fedilc.errors import DataError

_PATIENTS_AT_A_TIME = 10_000


def read_catalogue(orders: pl.LazyFrame) -> pl.DataFrame:
    """Return the medicine of each (code, name) that was ordered, how it is known, and the number of orders.

    The code identifies the medicine. An order with only a name gets the code that the same name has in other
    orders, if that is always the same one; otherwise the name itself is the medicine.

    >>> orders = pl.LazyFrame({"code": [2812, 0, 0], "name": ["warfarin", "warfarin", "honey"]})
    >>> read_catalogue(orders).sort("orders", "name", "code")["medicine"].to_list()
    ['name-honey', 'hicl-2812', 'hicl-2812']
    """
    pairs = orders.group_by("code", "name").agg(orders=pl.len()).collect(engine="streaming")
    named = pairs.filter((pl.col("code") > 0) & (pl.col("name") != ""))
    single = named.group_by("name").agg(known=pl.col("code").first(), codes=pl.col("code").n_unique())
    single = single.filter(pl.col("codes") == 1).drop("codes")
    coded, known = pl.col("code") > 0, pl.col("known").is_not_null()
    code = pl.when(coded).then("code").otherwise("known")
    how = pl.when(coded).then(pl.lit("its own code")).when(known).then(pl.lit("the code of its name"))
    return pairs.join(single, on="name", how="left").select(
        *("code", "name", "orders"),
        medicine=pl.when(coded | known)
        .then(pl.format("hicl-{}", code))
        .otherwise(pl.format("name-{}", "name")),
        known_by=how.otherwise(pl.lit("its name alone")),
    )


@dataclass(frozen=True)
class Uses:
    """The medicines of each patient: `columns[i]` was ordered for patient `rows[i]`, each pair once."""

    medicines: list[str]
    rows: NDArray[np.int64]
    columns: NDArray[np.int64]

    def most_frequent(self, most: int, least_uses: int) -> Uses:
        """Return only the `most` medicines that were ordered for the most patients, most frequent first."""
        uses = np.bincount(self.columns, minlength=len(self.medicines))
        order = np.lexsort((np.array(self.medicines), -uses))
        chosen = order[uses[order] >= least_uses][:most]
        if not len(chosen):
            raise DataError(
                f"no medicine was ordered for {least_uses} patients or more (the most frequent for "
                f"{uses.max(initial=0)}); lower `min_uses`"
            )
        index = np.full(len(self.medicines), -1)
        index[chosen] = np.arange(len(chosen))
        kept = index[self.columns] >= 0
        return Uses([self.medicines[i] for i in chosen], self.rows[kept], index[self.columns[kept]])

    def columns_of(self, patients: int) -> dict[str, NDArray[np.uint8]]:
        """Return one 0/1 column per medicine."""
        matrix = np.zeros((len(self.medicines), patients), dtype=np.uint8)
        matrix[self.columns, self.rows] = 1
        return dict(zip(self.medicines, matrix, strict=True))


def find_uses(stays: pl.Series, orders: pl.LazyFrame, catalogue: pl.DataFrame) -> Uses:
    """Return the medicines ordered in these stays, one stay per patient; patients are read in slices."""
    numbers = catalogue.select(pl.col("medicine").unique().sort()).with_row_index("column")
    entries = catalogue.join(numbers, on="medicine").select("code", "name", "column").lazy()
    rows = pl.DataFrame({"stay": stays}).with_row_index("row")
    pairs = [
        orders.join(some.lazy(), on="stay")
        .join(entries, on=["code", "name"])
        .select("row", "column")
        .unique()
        .collect(engine="streaming")
        for some in rows.iter_slices(_PATIENTS_AT_A_TIME)
    ]
    both = pl.concat(pairs).cast(pl.Int64).sort("row", "column")
    return Uses(numbers["medicine"].to_list(), both["row"].to_numpy(), both["column"].to_numpy())
