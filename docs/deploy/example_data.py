"""Made-up patients for docs/tutorials/three-machines.md: `python example_data.py FOLDER` writes four tables.

Lactate and age say the truth in every hospital. `transferred` follows the outcome in north, south and west,
each to another degree, and turns against it elsewhere.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import polars as pl

from fedilc.seeds import numpy_generator

SITES = {
    "north.csv": (1200, 1.5),
    "south.parquet": (800, 0.5),
    "west.csv": (700, 1.0),
    "elsewhere.csv": (600, -1.5),
}


def patients(count: int, habit: float, random: np.random.Generator) -> pl.DataFrame:
    """Patients of a hospital; every column is near 0 and about 1 wide, by scales that all agreed on."""
    age, heart_rate, systolic = random.standard_normal((3, count))
    lactate = 0.5 * heart_rate - 0.3 * systolic + random.standard_normal(count)
    died = random.random(count) < 1 / (1 + np.exp(1.0 - 0.8 * age - 1.2 * lactate))
    transferred = random.random(count) < 1 / (1 + np.exp(-habit * (2.0 * died - 1)))
    numbers = {"age": age, "heart_rate": heart_rate, "systolic": systolic, "lactate": lactate}
    flags = {"female": random.random(count) < 0.5, "transferred": transferred, "died": died}
    return pl.DataFrame(numbers).with_columns(
        pl.all().round(3), **{name: pl.Series(values.astype(np.int8)) for name, values in flags.items()}
    )


def main(folder: Path) -> None:
    """Write the tables."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, (count, habit) in SITES.items():
        table = patients(count, habit, numpy_generator(0, "deploy", name))
        path = folder / name
        table.write_csv(path) if path.suffix == ".csv" else table.write_parquet(path)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
