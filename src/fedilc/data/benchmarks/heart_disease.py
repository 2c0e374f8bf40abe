"""The UCI heart disease data: patients of four hospitals, 13 columns, and whether a vessel is narrowed.

Every patient of the published files is kept. Missing cells ("?") and zeros of cholesterol and blood pressure,
which mean "not measured", are filled with the federated mean and have an indicator of their own.
"""

from __future__ import annotations

from pathlib import Path

import polars as pl

from fedilc.data.tables.silo_tables import SiloTables, TableSettings, tables_of
from fedilc.errors import DataError

HOSPITALS = ("cleveland", "hungarian", "switzerland", "va")
COLUMNS = (
    *("age", "sex", "cp", "trestbps", "chol", "fbs", "restecg", "thalach", "exang", "oldpeak"),
    *("slope", "ca", "thal", "num"),
)
SETTINGS = TableSettings(
    label="num>0", categorical=("cp", "restecg", "slope", "thal"), missing=("chol=0", "trestbps=0")
)


def heart_disease(folder: Path) -> SiloTables:
    """Return the four hospitals' tables from the published files in `folder`."""
    frames = {}
    for hospital in HOSPITALS:
        path = folder / f"processed.{hospital}.data"
        if not path.is_file():
            raise DataError(f"{path} does not exist; download it with `fedilc data fetch heart-disease`")
        frame = pl.read_csv(path, has_header=False, infer_schema=False, glob=False)
        if frame.width != len(COLUMNS):
            raise DataError(f"{path} has {frame.width} columns in place of {len(COLUMNS)}; fetch it again")
        frames[hospital] = frame.rename(dict(zip(frame.columns, COLUMNS, strict=True)))
    return tables_of(frames, SETTINGS)
