"""Check an experiment before it is run: its data, and whether its model and settings fit them."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import nn

from fedilc.algorithms.loss_registry import has_classes
from fedilc.config import Experiment
from fedilc.data.checks.federation import Report
from fedilc.data.checks.profile import TEST
from fedilc.data.inputs import Shape
from fedilc.data.silo_store import SiloStore
from fedilc.data.sources import FileSource, Remote, RemoteTables
from fedilc.errors import (
    DataProblemsError,
    FedILCError,
    FedILCWarning,
)
from fedilc.federation.protocol import Reply, Request
from fedilc.runtimes.base import Runtime

if TYPE_CHECKING:
    from fedilc.training.loop import Specification


NAMED = 50


@dataclass(frozen=True)
class Row:
    """A row about one silo, or about the test set; counts are None if its examples are not here."""

    name: str
    file: str = ""
    examples: int | None = None
    validation: int | None = None
    inputs: Shape = ()
    labels: dict[int, int] | None = None


@dataclass
class Checked:
    """The results of a check; `hidden` is the number of silos without a row, because there are too many."""

    rows: list[Row] = field(default_factory=list)
    hidden: int = 0
    report: Report = field(default_factory=Report)


def prepare(settings: Experiment, folder: Path, own: str | None = None) -> tuple[SiloStore, nn.Module]:
    """Return the data and the model of an experiment; raise all problems, and warn of the rest.

    The model comes from the user's own function if `own` names one as `module:function`.
    """
    store = settings.data.store(settings.seed, folder)
    return store, _model(settings, store, own)


def _model(settings: Experiment, store: SiloStore, own: str | None) -> nn.Module:
    if own is None:
        return settings.model.build(store, settings.seed)
    from fedilc.models.user_models import user_network

    return user_network(own, settings.seed)


def check_experiment(settings: Experiment, folder: Path, own: str | None = None) -> Checked:
    """Check the data of an experiment, and try its model and its settings on them, without training."""
    found = Checked()
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always", FedILCWarning)
        try:
            _check(settings, folder, own, found)
        except DataProblemsError as error:
            found.report.problems += error.problems
        except FedILCError as error:
            found.report.problems.append(str(error))
    notes = [str(note.message) for note in warned if issubclass(note.category, FedILCWarning)]
    found.report.notes += [note for note in notes if note not in found.report.notes]
    return found


def _check(settings: Experiment, folder: Path, own: str | None, found: Checked) -> None:
    data = settings.data
    if isinstance(data, Remote):
        from fedilc.runtimes.remote.run import RemoteRun

        spec = RemoteRun.of(settings, folder, own).specification
        found.rows = [Row(name, "joins from elsewhere", inputs=data.inputs) for name in data.silos]
        _try(spec, None)
        return
    if isinstance(data, RemoteTables):
        found.rows = [Row(name, "joins from elsewhere") for name in data.silos]
        return
    if isinstance(data, FileSource):
        examined = data.examine(settings.seed, folder, False)
        found.hidden = max(0, len(examined.profiles) - NAMED)
        parts = [*list(examined.profiles.values())[:NAMED], *([examined.test] if examined.test else [])]
        classes = has_classes(examined.loss)
        found.rows = [
            Row(
                p.name,
                _below(p.file, folder),
                len(p.trained),
                len(p.held_out),
                p.shape,
                dict(p.labels) if classes else None,
            )
            for p in parts
        ]
        store = examined.store()
    else:
        store = data.store(settings.seed, folder)
        found.rows, found.hidden = _rows(store), max(0, len(store.silos) - NAMED)
    from fedilc.training.loop import Specification

    _try(Specification.of(store, _model(settings, store, own), settings.algorithm, settings), store)


def _below(file: str, folder: Path) -> str:
    """Return a file's path relative to the experiment's folder if it is below that."""
    path = Path(file)
    return str(path.relative_to(folder)) if file and path.is_relative_to(folder) else file


def _rows(store: SiloStore) -> list[Row]:
    """Return a row per silo, at most `NAMED`, of a source that is not files."""
    rows = []
    for name in store.silos[:NAMED]:
        silo = store.open(name)
        held_out = 0 if silo.x_val is None else len(silo.x_val)
        labels = silo.y if silo.y_val is None else torch.cat([silo.y, silo.y_val])
        rows.append(Row(name, "", len(silo), held_out, store.inputs, _counts(labels)))
    if store.y_test is not None:
        rows.append(Row(TEST, "", len(store.y_test), 0, store.inputs, _counts(store.y_test)))
    return rows


def _counts(labels: torch.Tensor) -> dict[int, int]:
    values, counts = labels.unique(return_counts=True)
    return {int(value): int(count) for value, count in zip(values, counts, strict=True)}


class _NoSilos(Runtime):
    """A runtime without silos, which gets no replies."""

    def ask(self, _request: Request) -> Iterator[Reply]:
        return iter(())


def _try(spec: Specification, store: SiloStore | None) -> None:
    """Set the run up as `train` does, and stop before its first round."""
    from fedilc.training.loop import Training

    if store is not None:
        store.check_classes(spec.outputs)
    Training(spec, _NoSilos())
