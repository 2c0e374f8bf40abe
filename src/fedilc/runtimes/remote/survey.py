"""What is asked before a run over tables, and the preprocessing that follows from the silos' summaries.

`rest/survey.py` collects the summaries over HTTP.
A summary has counts, sums, squares and names per column, never a row (see `fedilc.data.tables.silo_summary`).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import Field

from fedilc.config.section import Section
from fedilc.config.user_sources import ColumnSettings, RemoteTables
from fedilc.errors import ProtocolError
from fedilc.runtimes.remote.manifest import PROTOCOL, Name, read_received

if TYPE_CHECKING:
    from fedilc.data import Silo
    from fedilc.data.tables.preprocessing import Preprocessing
    from fedilc.data.tables.silo_summary import SiloSummary
    from fedilc.runtimes.remote.manifest import Manifest


class Survey(Section):
    """What the coordinator sends every silo: how to read its table before summarising it."""

    protocol: int = PROTOCOL
    run: Name
    silos: list[Name] = Field(max_length=100_000)
    table: ColumnSettings

    @classmethod
    def of(cls, run: str, data: RemoteTables) -> Survey:
        """Return the survey of a run whose tables are at the silos."""
        table = ColumnSettings(**{key: getattr(data, key) for key in ColumnSettings.model_fields})
        return cls(run=run, silos=data.silos, table=table)

    def preprocessing(self, summaries: Mapping[str, SiloSummary]) -> Preprocessing:
        """Return the preprocessing that follows from summaries."""
        from fedilc.data.tables.preprocessing import fit_preprocessing

        settings = self.table.settings()
        found = [summaries[silo] for silo in self.silos if silo in summaries]
        return fit_preprocessing(found, settings.rule([summary.labels for summary in found]), settings)


def read_survey(values: Any) -> Survey:
    """Return a survey that came over the network; raise if it is not valid."""
    return read_received(Survey, values, "the coordinator's survey")


def summarise_table(name: str, path: Path, survey: Survey) -> SiloSummary:
    """Return the summary of a silo's table, read as the survey asks."""
    from fedilc.data.tables.silo_summary import summarise
    from fedilc.data.tables.silo_tables import read_features

    settings = survey.table.settings()
    features, label, unlabelled = read_features(path, settings, name)
    return summarise(name, features, label, settings, unlabelled)


def silo_from_table(name: str, path: Path, manifest: Manifest, validation_share: float) -> Silo:
    """Return the silo of a table, with the preprocessing of the manifest."""
    from fedilc.data.tables.preprocessing import Preprocessing
    from fedilc.data.tables.silo_tables import SiloTable, TableSettings, read_features

    made = read_received(Preprocessing, manifest.preprocessing, "the manifest's preprocessing")
    if list(made.inputs) != manifest.model.inputs:
        raise ProtocolError("the manifest's preprocessing does not make the inputs of its network")
    settings = TableSettings(label=made.label.text, missing=made.missing)
    features, label, unlabelled = read_features(path, settings, name)
    table = SiloTable(name, features, made.label.encode(label), label, unlabelled)
    return table.silo(made, validation_share, manifest.seed)
