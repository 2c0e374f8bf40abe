"""The data of a study: silos whose inputs are made by what the training silos know, and nobody else."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedilc.algorithms.loss_name import LossName
from fedilc.data import Federation
from fedilc.data.digest import digest

if TYPE_CHECKING:
    from fedilc.data.tables.silo_tables import SiloTables


class StudyData(Protocol):
    """What a study asks of its data."""

    @property
    def name(self) -> str:
        """Return how the data are called."""

    @property
    def loss(self) -> LossName:
        """Return "binary", "multiclass" or "regression"."""

    @property
    def outputs(self) -> int:
        """Return how many outputs a model has."""

    @property
    def silos(self) -> tuple[str, ...]:
        """Return the names, in order."""

    @property
    def notes(self) -> tuple[str, ...]:
        """Return sentences on what is probably not meant."""

    @property
    def leaks(self) -> tuple[str, ...]:
        """Return the columns that alone predict the label almost perfectly."""

    @property
    def is_table(self) -> bool:
        """Return whether an input is a row of numbers, and no image."""

    def labels(self, silo: str) -> NDArray[Any]:
        """Return the labels of a silo's examples."""

    def inputs(self, training: Sequence[str], silo: str) -> Tensor:
        """Return a silo's inputs, preprocessed by what the training silos hold."""

    def inputs_by_rows(self, silo: str, rows: NDArray[np.intp]) -> Tensor:
        """Return a silo's inputs, preprocessed by what these rows of its own hold."""

    def fingerprint(self, silo: str) -> str:
        """Return a digest of a silo's features and of how they are read, without its labels."""


@dataclass(frozen=True)
class TableData:
    """Tables as `read_tables` reads them; inputs of the last training silos asked for are kept."""

    name: str
    tables: SiloTables
    _kept: dict[tuple[str, ...], dict[str, Tensor]] = field(default_factory=dict, repr=False, compare=False)
    _fingerprints: dict[str, str] = field(default_factory=dict, repr=False, compare=False)

    @property
    def loss(self) -> LossName:
        """Return the task."""
        return self.tables.label.loss

    @property
    def outputs(self) -> int:
        """Return how many outputs a model has."""
        return self.tables.label.outputs

    @property
    def silos(self) -> tuple[str, ...]:
        """Return the names."""
        return tuple(self.tables.silos)

    @property
    def is_table(self) -> bool:
        """Return that an input is a row of numbers."""
        return True

    @property
    def notes(self) -> tuple[str, ...]:
        """Return what reading found."""
        return tuple(self.tables.notes)

    @property
    def leaks(self) -> tuple[str, ...]:
        """Return the columns that alone predict the label almost perfectly."""
        return self.tables.leaks

    def labels(self, silo: str) -> NDArray[Any]:
        """Return the labels of a silo's examples."""
        return self.tables.silos[silo].y

    def inputs(self, training: Sequence[str], silo: str) -> Tensor:
        """Return a silo's inputs, preprocessed by what the training silos hold."""
        key = tuple(training)
        if key not in self._kept:
            self._kept.clear()
            fitted = self.tables.fit(key)
            frames = {name: table.frame for name, table in self.tables.silos.items()}
            self._kept[key] = {name: fitted.transform(frame) for name, frame in frames.items()}
        return self._kept[key][silo]

    def inputs_by_rows(self, silo: str, rows: NDArray[np.intp]) -> Tensor:
        """Return a silo's inputs, preprocessed by what these rows of its own hold."""
        table = self.tables.silos[silo]
        part = replace(table, frame=table.frame[rows], y=table.y[rows], labels=table.labels[rows])
        return replace(self.tables, silos={silo: part}).fit([silo]).transform(table.frame)

    def fingerprint(self, silo: str) -> str:
        """Return a digest of a silo's features and of how they are read, without its labels."""
        if silo not in self._fingerprints:
            text = self.tables.silos[silo].frame.write_csv()
            whole = f"{self.tables.settings!r}\n{text}".encode()
            self._fingerprints[silo] = hashlib.sha256(whole).hexdigest()[:16]
        return self._fingerprints[silo]


@dataclass(frozen=True)
class ArrayData:
    """Arrays that are inputs already: images, NPZ files, a `Federation`; nothing is fitted to them."""

    name: str
    loss: LossName
    outputs: int
    arrays: dict[str, tuple[Tensor, NDArray[Any]]]
    notes: tuple[str, ...] = ()
    leaks: tuple[str, ...] = ()

    @classmethod
    def of(cls, federation: Federation) -> ArrayData:
        """Return the silos of a federation, each with its validation examples; its test set is left out."""
        arrays = {}
        for silo in federation.silos:
            x = silo.x if silo.x_val is None else torch.cat([silo.x, silo.x_val])
            y = silo.y if silo.y_val is None else torch.cat([silo.y, silo.y_val])
            arrays[silo.name] = (x.float(), y.numpy())
        return cls(federation.name, federation.loss, federation.outputs, arrays)

    @property
    def silos(self) -> tuple[str, ...]:
        """Return the names."""
        return tuple(self.arrays)

    @property
    def is_table(self) -> bool:
        """Return whether an input is a row of numbers, and no image."""
        return next(iter(self.arrays.values()))[0].dim() == 2

    def labels(self, silo: str) -> NDArray[Any]:
        """Return the labels of a silo's examples."""
        return self.arrays[silo][1]

    def inputs(self, _training: Sequence[str], silo: str) -> Tensor:
        """Return a silo's inputs as they are."""
        return self.arrays[silo][0]

    def inputs_by_rows(self, silo: str, _rows: NDArray[np.intp]) -> Tensor:
        """Return a silo's inputs as they are."""
        return self.arrays[silo][0]

    def fingerprint(self, silo: str) -> str:
        """Return a digest of a silo's inputs."""
        return digest(self.arrays[silo][0])
