"""Where a study's data come from: tables, a data set by name, an experiment's data, or folders of images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedilc.config import read_experiment
from fedilc.config.experiment import SOURCES, shipped_experiments
from fedilc.config.section import Source, validated
from fedilc.data.image_folder import read_image_folder
from fedilc.data.tables.silo_tables import TableSettings, read_tables
from fedilc.errors import ConfigError, DataError, nearest
from fedilc.studies.study.data import ArrayData, StudyData, TableData


def study_data(
    sources: Sequence[str], label: str | None, options: Mapping[str, Any], image_size: int = 32
) -> StudyData:
    """Return the data of a study.

    Args:
        sources: tables (one with a column of silos, or one file per silo), or one data set's name, one
            experiment, or one folder of images by domain and class.
        label: the label's column or comparison, for tables.
        options: `silo_column` and further `TableSettings`, those that were given.
        image_size: pixels per side, for a folder of images.
    """
    paths = [Path(source) for source in sources]
    if len(paths) == 1 and not paths[0].exists():
        return _named(sources[0])
    if len(paths) == 1 and paths[0].suffix == ".toml":
        settings, folder = read_experiment(sources[0])
        return _of_source(settings.name, settings.data, folder)
    if len(paths) == 1 and paths[0].is_dir():
        images = read_image_folder(paths[0], image_size)
        rule, name = images.preprocessing.label, paths[0].resolve().name
        return ArrayData(name, rule.loss, rule.outputs, images.arrays, tuple(images.notes))
    for path in paths:
        if not path.is_file():
            wrong = "is a folder" if path.is_dir() else "does not exist"
            raise DataError(f"{path} {wrong}; give tables (.csv, .parquet, .npz)")
    if label is None:
        raise ConfigError("--label is missing; name the column to predict, or a comparison such as 'num>0'")
    silo_column = options.get("silo_column")
    if len(paths) == 1 and silo_column is None:
        raise ConfigError(
            f"{paths[0]} is one table; name the column of silos with --silo-column, or give a file per silo"
        )
    name = paths[0].name.partition(".")[0] if len(paths) == 1 else paths[0].resolve().parent.name
    given = {key: value for key, value in options.items() if key != "silo_column"}
    return TableData(name, read_tables(paths, TableSettings(label=label, **given), silo_column))


def _named(name: str) -> StudyData:
    """Return a data set by its source's name, or an experiment's data."""
    if name in SOURCES and not any(field.is_required() for field in SOURCES[name].model_fields.values()):
        return _of_source(name, validated(SOURCES[name], {}, "data"), Path())
    shipped = shipped_experiments()
    if name in shipped:
        settings, folder = read_experiment(name)
        return _of_source(name, settings.data, folder)
    if "." in name or "/" in name:
        raise DataError(f"{name} does not exist; give a table, or the name of a data set")
    raise ConfigError(f"{name!r} is neither a file nor a data set{nearest(name, [*SOURCES, *shipped])}")


def _of_source(name: str, source: Source, folder: Path) -> StudyData:
    tables = getattr(source, "tables", None)
    if tables is not None:
        return TableData(name, tables(folder))
    return ArrayData.of(source.build(0, folder))
