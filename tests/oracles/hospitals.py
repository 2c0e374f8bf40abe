"""Made-up tables of several hospitals: mixed types, coded missing values, an identifier."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl

from fedilc.data.tables.silo_tables import TableSettings, read_tables
from fedilc.studies.study.data import TableData


def hospitals(sites: int, rows: int = 40, seed: int = 0) -> pl.DataFrame:
    """Return one table: who dies depends on age, lactate and sex, and how often on the hospital."""
    random = np.random.default_rng(seed)
    parts = []
    for site in range(sites):
        age = random.normal(60 + 2 * site % 5, 12, rows).round(1)
        lactate = np.exp(random.normal(0.3, 0.5, rows)).round(2)
        sex = random.choice(["m", "f"], rows)
        risk = 0.08 * (age - 60) + 1.5 * (lactate - 1.4) + 0.8 * (sex == "m") - 0.4 + 0.3 * random.normal()
        died = random.random(rows) < 1 / (1 + np.exp(-risk))
        died[:4] = True, False, True, False
        parts.append(
            pl.DataFrame(
                {
                    "hospital": [f"H{site}"] * rows,
                    "patient": [f"p{site}-{row}" for row in range(rows)],
                    "age": ["NA" if random.random() < 0.1 else str(value) for value in age],
                    "sex": sex,
                    "lactate": np.where(random.random(rows) < 0.1, -9, lactate),
                    "died": np.where(died, "yes", "no"),
                }
            )
        )
    return pl.concat(parts)


def study_table(folder: Path, frame: pl.DataFrame, name: str = "patients") -> TableData:
    """Return the data of a study from a table that was written as CSV."""
    path = folder / f"{name}.csv"
    frame.write_csv(path)
    tables = read_tables([path], TableSettings(label="died", missing=["lactate=-9"]), "hospital")
    return TableData(name, tables)


def patients(rows: int = 40, silos: int = 3, seed: int = 0) -> pl.DataFrame:
    """Return patients of some hospitals: numbers, names, missing values and an outcome."""
    random = np.random.default_rng(seed)
    count = rows * silos
    age = random.normal(60, 10, count).round(1)
    return pl.DataFrame(
        {
            "hospital": [f"h{i // rows}" for i in range(count)],
            "age": age,
            "sex": random.choice(["male", "female"], count),
            "lactate": random.normal(2, 1, count).round(2),
            "died": random.choice(["no", "yes"], count),
        }
    )
