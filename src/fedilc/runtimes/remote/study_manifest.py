"""The manifest of a study over tables of silos: what is studied, and how tables are read."""

from __future__ import annotations

from functools import cached_property
from typing import Any

from pydantic import Field, PositiveInt

from fedilc.algorithms.loss_registry import LossName
from fedilc.data.tables.table_settings import TableSettings
from fedilc.errors import ProtocolError
from fedilc.runtimes.remote.manifest import PROTOCOL, Name, read_received
from fedilc.section import Section
from fedilc.storage.files import json_digest


class StudyManifest(Section):
    """A study as the coordinator and all its silos know it."""

    protocol: int = PROTOCOL
    run: Name
    silos: list[Name] = Field(max_length=100_000)
    table: TableSettings
    label: dict[str, Any] = Field(description="the rule of the label, as in a preprocessing")
    loss: LossName
    outputs: PositiveInt
    settings: dict[str, Any] = Field(description="the settings of the study, as in its section [study]")

    @cached_property
    def hash(self) -> str:
        """Return the study's identity: the SHA-256 of the manifest in canonical JSON."""
        return json_digest(self.model_dump(mode="json"))

    @property
    def secure(self) -> bool:
        """Return False: a study needs sums over sets of silos that differ in one."""
        return False

    def require_at_most(self, max_parameters: int) -> None:
        """Do nothing: each stack is compared with this limit when it is declared."""


def read_study_manifest(values: Any) -> StudyManifest:
    """Return the manifest of a study that came over the network; raise if it is not valid."""
    if not isinstance(values, dict) or values.get("protocol") != PROTOCOL:
        raise ProtocolError(
            "the coordinator's study has another protocol; install the same version of fedilc on both sides"
        )
    return read_received(StudyManifest, values, "the coordinator's study")
