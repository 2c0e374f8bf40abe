"""The survey before a run over tables, and the preprocessing that follows from the silos' summaries.

`rest/survey.py` collects the summaries over HTTP. A summary has counts, sums, squares and names per column,
never a row (see `fedilc.data.tables.silo_summary`). The silo's owner limits what it may contain;
`fedilc.data.tables.summary_checks` limits what is believed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import (
    Field,
    SerializerFunctionWrapHandler,
    TypeAdapter,
    ValidationError,
    model_serializer,
)

from fedilc.data.sources import RemoteTables, Section
from fedilc.data.tables.table_settings import TableSettings
from fedilc.errors import ConfigError, DataError, ProtocolError, nearest
from fedilc.runtimes.remote.manifest import PROTOCOL, Name, read_received
from fedilc.storage.files import json_digest
from fedilc.storage.run_folder import SUMMARIES

if TYPE_CHECKING:
    import polars as pl

    from fedilc.data import Silo
    from fedilc.data.tables.label_rule import LabelRule
    from fedilc.data.tables.preprocessing import Preprocessing
    from fedilc.data.tables.silo_summary import SiloSummary
    from fedilc.runtimes.remote.manifest import Manifest

MOST_PREPROCESSING_BYTES = 2 << 20
LEAST_CATEGORY = 10
LEAST_ROWS = 50


class Survey(Section):
    """What the coordinator sends every silo: how to read its table before summarising it."""

    protocol: int = PROTOCOL
    run: Name
    silos: list[Name] = Field(max_length=100_000)
    table: TableSettings
    roster: Name | None = Field(None, description="digest of the silos' public keys, for secure sums")
    members: int = Field(0, ge=0, description="how many silos a secure sum needs at least")

    @classmethod
    def of(cls, run: str, data: RemoteTables, roster: str | None = None, members: int = 0) -> Survey:
        """Return the survey of a run whose tables are at the silos."""
        return cls(run=run, silos=data.silos, table=data.settings(), roster=roster, members=members)

    @property
    def hash(self) -> str:
        """Return the SHA-256 of the survey."""
        return json_digest(self.model_dump(mode="json"))

    @model_serializer(mode="wrap")
    def _without_absent(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out what only secure sums need, so that earlier silos can read the survey."""
        values: dict[str, Any] = dump(self)
        hidden = () if self.roster is not None else ("roster", "members")
        return {key: value for key, value in values.items() if key not in hidden}

    def preprocessing(self, summaries: Mapping[str, SiloSummary]) -> Preprocessing:
        """Return the preprocessing that follows from summaries."""
        from fedilc.data.tables.preprocessing import fit_preprocessing

        found = [summaries[silo] for silo in self.silos if silo in summaries]
        made = fit_preprocessing(found, label_rule(self.table, found), self.table)
        size = len(made.model_dump_json())
        if size > MOST_PREPROCESSING_BYTES:
            raise DataError(
                f"the preprocessing of {len(made.columns)} inputs has {size} bytes, more than the "
                f"{MOST_PREPROCESSING_BYTES} that silos accept; drop columns or categories"
            )
        return made


def label_rule(settings: TableSettings, summaries: Sequence[SiloSummary]) -> LabelRule:
    """Return the rule of the label that follows from summaries."""
    levels = [named for summary in summaries for named in summary.label_levels]
    if not levels:
        raise DataError(
            f"no silo may name a value of the label {settings.label!r}, because each is in fewer than "
            f"{settings.min_category} rows; declare its classes in data.categories"
        )
    return settings.rule(levels)


def read_survey(values: Any) -> Survey:
    """Return a survey that came over the network; raise if it is not valid."""
    return read_received(Survey, values, "the coordinator's survey")


@dataclass(frozen=True)
class SurveyLimits:
    """What the owner of a table allows; it can only tighten a run's settings.

    Args:
        columns: the columns that may be used and mentioned, the label among them; None for all.
        min_category: the rows that a category or a sum needs.
        min_rows: the rows that a summary needs; None takes the run's number, at least 50.
        round_survey: the unit to which counts and sums are rounded; None takes the run's.
    """

    columns: tuple[str, ...] | None = None
    min_category: int = LEAST_CATEGORY
    min_rows: int | None = None
    round_survey: int | None = None

    def tightened(self, settings: TableSettings) -> TableSettings:
        """Return the settings with which this silo's table is summarised.

        An identifier stays one, whatever the run declares, unless the owner lists the column too.
        """
        listed = self.columns or ()
        units = [unit for unit in (settings.round_survey, self.round_survey) if unit is not None]
        return settings.model_copy(
            update={
                "min_category": max(LEAST_CATEGORY, settings.min_category, self.min_category),
                "round_survey": max(units, default=None),
                "keep": tuple(name for name in settings.keep if name in listed),
            }
        )

    def require_columns(self, label: str, found: Sequence[str]) -> None:
        """Raise if the label may not be used, or a listed column is not in the table."""
        for name in self.columns or ():
            if name not in found:
                raise ConfigError(
                    f"`columns` names {name!r}, which the table does not have{nearest(name, found)}"
                )
        if self.columns is not None and label not in self.columns:
            raise ConfigError(
                f"the run's label is the column {label!r}, which `columns` does not list; add it if you agree"
            )

    def require_listed(self, label: str, columns: Sequence[str] | None) -> None:
        """Raise if a run without a survey uses a column that the owner does not list."""
        if columns is None:
            raise ConfigError(
                "the run names no columns, so `columns` cannot be checked; ask its operator to set "
                "data.columns"
            )
        for name in (*columns, label):
            if name not in (self.columns or ()):
                raise ConfigError(
                    f"the run uses the column {name!r}, which `columns` does not list; add it if you agree"
                )

    def require_rows(self, silo: str, rows: int, settings: TableSettings) -> None:
        """Raise if the table is too small for a summary; say what the sums of a smaller one reveal."""
        least = max(LEAST_ROWS, settings.min_rows) if self.min_rows is None else self.min_rows
        if rows < least:
            raise ConfigError(
                f"silo {silo!r} has {rows} rows with a label, fewer than the {least} that a summary needs, "
                f"so nothing was sent; `min_rows={rows}` lets it take part, but then {_sums_of_few(rows)}"
            )

    def warning(self, rows: int) -> str | None:
        """Return what the sums of a small table reveal; None if it is large enough."""
        return _sums_of_few(rows) if rows < LEAST_ROWS else None


def _sums_of_few(rows: int) -> str:
    return (
        f"each of its sums is over {rows} patients or fewer: whoever knows the others among them learns the "
        "values of the last one, and two surveys with and without a patient give that patient's values"
    )


def rows_of_summaries(folder: Path) -> dict[str, tuple[int, int]]:
    """Return the rows of each silo's summary in a run folder, and the unit to which they are rounded."""
    return {name: (summary.rows, summary.unit) for name, summary in read_summaries(folder).items()}


def read_summaries(folder: Path) -> dict[str, SiloSummary]:
    """Return the summary of each silo in a run folder; none if it has none."""
    from fedilc.data.tables.silo_summary import SiloSummary

    file = folder / SUMMARIES
    if not file.exists():
        return {}
    try:
        found = TypeAdapter(list[SiloSummary]).validate_json(file.read_bytes())
    except ValidationError as error:
        raise DataError(f"{file} cannot be read; restore it, or start the run in another folder") from error
    return {summary.name: summary for summary in found}


def table_digest(path: Path) -> str:
    """Return the SHA-256 of a table's file, by which a silo notices that it has changed."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}") from error


def summarise_table(name: str, path: Path, survey: Survey, limits: SurveyLimits | None = None) -> SiloSummary:
    """Return the summary of a silo's table, read as the survey asks, within its owner's limits."""
    from fedilc.data.tables.label_rule import LabelRule
    from fedilc.data.tables.silo_summary import label_identifies, summarise
    from fedilc.data.tables.silo_tables import read_features

    limits = limits or SurveyLimits()
    settings = limits.tightened(survey.table)
    everything = settings.model_copy(update={"drop": (), "columns": ()})
    features, label, unlabelled, _ = read_features(path, everything, name)
    column = LabelRule.parse(settings.label).column
    limits.require_columns(column, [column, *features.columns])
    limits.require_rows(name, len(label), settings)
    if column not in settings.keep and label_identifies(column, label):
        raise ConfigError(
            f"the run's label is the column {column!r} of silo {name!r}, whose values or name are like "
            "those of an identifier, so that it could single out patients; nothing was sent; if it is not an "
            "identifier, list it in `columns`, and ask the operator to name it in data.keep"
        )
    features = features.select(name for name in features.columns if settings.uses(name))
    return summarise(name, features, label, settings, unlabelled, listed=limits.columns, sent=True)


def silo_from_table(
    name: str, path: Path, manifest: Manifest, validation_share: float, limits: SurveyLimits | None = None
) -> Silo:
    """Return the silo of a table, with the preprocessing of the manifest, within its owner's limits.

    A column that the owner does not list counts as missing in every row.
    """
    from fedilc.data.tables.preprocessing import Preprocessing
    from fedilc.data.tables.silo_tables import SiloTable, read_features

    limits = limits or SurveyLimits()
    made = read_received(Preprocessing, manifest.preprocessing, "the manifest's preprocessing")
    if list(made.inputs) != manifest.model.inputs:
        raise ProtocolError("the manifest's preprocessing does not make the inputs of its network")
    settings = TableSettings(label=made.label.text, missing=made.missing, patient_column=made.patient_column)
    features, label, unlabelled, patients = read_features(path, settings, name)
    limits.require_columns(made.label.column, [made.label.column, *features.columns])
    if limits.columns is not None:
        features = features.select(column for column in features.columns if column in limits.columns)
    refuse_identifiers(name, features, label, made, limits)
    table = SiloTable(name, features, made.label.encode(label), label, unlabelled, patients=patients)
    return table.silo(made, validation_share, manifest.seed)


def refuse_identifiers(
    name: str, features: pl.DataFrame, label: pl.Series, made: Preprocessing, limits: SurveyLimits
) -> None:
    """Raise if a run makes categories of a column that identifies this silo's patients."""
    from fedilc.data.tables.silo_summary import summarise

    named = [feature.name for feature in made.features if feature.kind == "category"]
    known = features.select(column for column in named if column in features.columns)
    settings = TableSettings(label=made.label.text, missing=made.missing, keep=limits.columns or ())
    for column in summarise(name, known, label, settings).columns:
        if column.identifier:
            raise ConfigError(
                f"the run makes categories of the column {column.name!r}, whose values or name are like "
                f"those of an identifier at silo {name!r}; if it is not an identifier, list it in `columns`"
            )
