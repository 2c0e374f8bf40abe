"""What a coordinator asks silos before there is a run: summaries of their tables, of which inputs are made.

A summary has counts, sums, squares and names per column, never a row (see `fedilc.data.tables.silo_summary`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import Field, ValidationError

from fedilc.config.section import Section
from fedilc.config.table_sources import ColumnSettings, RemoteTables
from fedilc.errors import ProtocolError
from fedilc.runtimes.remote.manifest import PROTOCOL, Name

if TYPE_CHECKING:
    from fedilc.data import Silo
    from fedilc.data.tables.preprocessing import Preprocessing
    from fedilc.data.tables.silo_summary import SiloSummary
    from fedilc.runtimes.remote.manifest import Manifest


class Survey(Section):
    """What every silo is asked: how to read its table before it sums up its columns."""

    protocol: int = PROTOCOL
    run: Name
    silos: list[Name] = Field(max_length=100_000)
    table: ColumnSettings

    @classmethod
    def of(cls, run: str, data: RemoteTables) -> Survey:
        """Return the survey of a run over tables elsewhere."""
        table = ColumnSettings(**{key: getattr(data, key) for key in ColumnSettings.model_fields})
        return cls(run=run, silos=data.silos, table=table)

    def preprocessing(self, summaries: Mapping[str, SiloSummary]) -> Preprocessing:
        """Return the preprocessing of the silos that have answered, in the order of the run."""
        settings = self.table.settings()
        found = [summaries[silo] for silo in self.silos if silo in summaries]
        return settings.fit(found, settings.rule([summary.labels for summary in found]))


def read_survey(values: Any) -> Survey:
    """Return a survey as it came over the wire."""
    try:
        return Survey.model_validate(values)
    except ValidationError as error:
        reason = error.errors()[0]["msg"]
        raise ProtocolError(f"the coordinator's survey cannot be read: {reason}") from error


def summary_from_file(name: str, path: Path) -> Callable[[Survey], SiloSummary]:
    """Return a function that sums up the silo's table as a survey asks."""

    def summarise(survey: Survey) -> SiloSummary:
        from fedilc.data.tables.silo_tables import read_features

        settings = survey.table.settings()
        return settings.summarise(name, *read_features(path, settings, name))

    return summarise


def silo_from_table(name: str, path: Path, manifest: Manifest, validation_share: float) -> Silo:
    """Return the silo of a table, with the preprocessing of the manifest."""
    from fedilc.data.tables.preprocessing import Preprocessing
    from fedilc.data.tables.silo_tables import SiloTable, TableSettings, read_features, silo_of_table

    try:
        made = Preprocessing.model_validate(manifest.preprocessing)
    except ValidationError as error:
        reason = error.errors()[0]["msg"]
        raise ProtocolError(f"the manifest's preprocessing cannot be read: {reason}") from error
    if list(made.inputs) != manifest.model.inputs:
        raise ProtocolError("the manifest's preprocessing does not make the inputs of its network")
    settings = TableSettings(made.label.text, missing=made.missing)
    features, label, unlabelled = read_features(path, settings, name)
    table = SiloTable(name, features, made.label.encode(label), label, unlabelled)
    return silo_of_table(table, made, validation_share, manifest.seed)
