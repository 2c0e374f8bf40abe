"""The UCI heart disease data: patients of four hospitals, 13 columns, and whether a vessel is narrowed.

Every patient of the published files is kept. Missing cells ("?") and zeros of cholesterol and blood pressure,
which mean "not measured", are filled with the federated mean and have an indicator of their own.
The files are inside the package; ATTRIBUTION.md beside them says who collected them, and their licence
(CC BY 4.0).
"""

from __future__ import annotations

from pathlib import Path

import polars as pl

from fedilc.data.tables.silo_tables import SiloTables, tables_of
from fedilc.data.tables.table_settings import TableSettings
from fedilc.errors import DataError

_EMBEDDED = Path(__file__).with_name("heart-disease")
HOSPITALS = ("cleveland", "hungarian", "switzerland", "va")
COLUMNS = (
    *("age", "sex", "cp", "trestbps", "chol", "fbs", "restecg", "thalach", "exang", "oldpeak"),
    *("slope", "ca", "thal", "num"),
)
SETTINGS = TableSettings(
    label="num>0",
    categorical=("cp", "restecg", "slope", "thal"),
    missing=("chol=0", "trestbps=0"),
    min_category=1,  # the data are published, so that no value needs to be hidden
)


def heart_disease(folder: Path) -> SiloTables:
    """Return the four hospitals' tables, from `folder` if it exists, otherwise from the package."""
    place, ending = (folder, "data") if folder.is_dir() else (_EMBEDDED, "data.gz")
    otherwise = f"correct it, or remove {folder} to use the files of the package"
    frames = {}
    for hospital in HOSPITALS:
        path = place / f"processed.{hospital}.{ending}"
        if not path.is_file():
            raise DataError(f"{path} does not exist; {otherwise}")
        frame = pl.read_csv(path, has_header=False, infer_schema=False, glob=False)
        if frame.width != len(COLUMNS):
            raise DataError(f"{path} has {frame.width} columns in place of {len(COLUMNS)}; {otherwise}")
        frames[hospital] = frame.rename(dict(zip(frame.columns, COLUMNS, strict=True)))
    return tables_of(frames, SETTINGS)
