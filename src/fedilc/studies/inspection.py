"""Look at data before training: the problems of an experiment, and how its silos differ."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import torch
from pydantic import BeforeValidator, TypeAdapter, ValidationError
from torch import nn

from fedilc.algorithms.loss_name import has_classes
from fedilc.api import train
from fedilc.config import Experiment
from fedilc.data import Federation
from fedilc.data.checks.federation import Report
from fedilc.data.checks.notes import details, grouped, proposals
from fedilc.data.checks.profile import TEST
from fedilc.data.inputs import Shape
from fedilc.data.silo_store import SiloStore
from fedilc.data.sources import FileSource, Remote, RemoteTables
from fedilc.data.tables.preprocessing import Preprocessing
from fedilc.data.tables.silo_summary import SiloSummary
from fedilc.data.tables.silo_tables import SiloTables
from fedilc.data.tables.table_notes import table_notes
from fedilc.errors import (
    CheckpointError,
    ConfigError,
    DataError,
    DataProblemsError,
    FedILCError,
    FedILCWarning,
    listed,
    writing,
)
from fedilc.evaluation.inconsistency import curvatures, inconsistency
from fedilc.evaluation.shift import (
    LARGE_INDEX,
    ColumnShift,
    SiloDescription,
    column_shifts,
    describe_silo,
    describe_summary,
    pair_shifts,
)
from fedilc.federation.protocol import Reply, Request
from fedilc.models import build_model
from fedilc.runtimes.base import Runtime
from fedilc.storage.files import write_atomically
from fedilc.storage.run_folder import SUMMARIES, RunFolder
from fedilc.training.loaded_model import read_preprocessing

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
    from fedilc.runtimes.remote.silo_client import user_network

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


FILE = "inspection.json"
_LEARNING_RATE = 1e-3
_LOW_AGREEMENT = 0.5
_LARGE_GAP = 0.25


def _settings(value: object) -> object:
    """Return proposals as pairs; a file of version 0.2 has the text of a command, which is not used."""
    return () if isinstance(value, str) else value


@dataclass(frozen=True)
class AtStart:
    """How silos' gradients compare at the initial weights of a small network.

    Attributes:
        agreement: |mean over silos of the gradient's sign|, averaged over parameters: 1 if all agree.
        expected: the same for signs that are drawn at random.
        worst: the highest inconsistency score of a pair of silos (1 if they curve alike).
        pair: which pair that is.
    """

    agreement: float
    expected: float
    worst: float
    pair: tuple[str, str]


@dataclass(frozen=True)
class Inspection:
    """What `fedilc inspect` found: descriptions, notes, shifts per column and per pair of silos.

    `notes` has a sentence per kind, `details` one per column or silo; `proposals` are the
    settings of tables that notes propose, each with its value.
    """

    name: str
    classes: tuple[str, ...]
    silos: tuple[SiloDescription, ...]
    notes: tuple[str, ...]
    at_start: AtStart | None = None
    details: tuple[str, ...] = ()
    proposals: Annotated[tuple[tuple[str, str], ...], BeforeValidator(_settings)] = ()

    @property
    def columns(self) -> list[ColumnShift]:
        """Return the shift of each column, the largest first."""
        return column_shifts(self.silos)

    @property
    def pairs(self) -> dict[tuple[str, str], dict[str, float]]:
        """Return the shift of each pair of silos."""
        return pair_shifts(self.silos)

    def suggestion(self) -> str:
        """Return a sentence on what the differences between silos suggest."""
        shifted = [shift.name for shift in self.columns if shift.large]
        worst = max(self.pairs.items(), key=lambda entry: entry[1].get("label", 0.0))
        label = worst[1].get("label", 0.0)
        parts = []
        if shifted:
            parts.append(f"{len(shifted)} of {len(self.columns)} columns differ much ({listed(shifted)})")
        gaps = [shift.name for shift in self.columns if shift.missing > _LARGE_GAP]
        if gaps:
            verb = "is" if len(gaps) == 1 else "are"
            parts.append(f"{listed(gaps)} {verb} missing much more often at some silos")
        if label > LARGE_INDEX:
            parts.append(f"the label is distributed differently in {worst[0][0]} and {worst[0][1]}")
        if self.at_start is not None and self.at_start.agreement < _LOW_AGREEMENT * (
            1 + self.at_start.expected
        ):
            parts.append("the silos' gradients often disagree at the start")
        if not parts:
            return (
                "The silos look alike: averaging (fedavg, fedsgd) is a fair first choice, though a site from "
                "elsewhere may still differ."
            )
        reasons = "; ".join(parts)
        how = "fedilc study" if self.at_start is not None else "serve a run without each of them in turn"
        return (
            f"{reasons[0].upper()}{reasons[1:]}: a model averaged over these silos may rely on what differs, "
            f"so compare it with fishr-inter-geo and geometric on silos left out ({how})."
        )


def inspect_tables(name: str, tables: SiloTables, seed: int = 0) -> Inspection:
    """Return the inspection of silos whose tables are here."""
    _require_two(name, list(tables.silos))
    preprocessing = tables.fit(list(tables.silos))
    described = [describe_silo(table, preprocessing) for table in tables.silos.values()]
    silos = [table.silo(preprocessing, 0.0, seed) for table in tables.silos.values()]
    federation = Federation(name, silos, loss=tables.label.loss)
    return Inspection(
        name,
        tables.label.classes,
        tuple(described),
        tuple(tables.notes),
        at_start(federation, seed),
        tuple(details(tables.findings)),
        proposals(tables.findings),
    )


def inspect_run(folder: Path) -> Inspection:
    """Return the inspection of silos elsewhere, from the summaries that they sent before round 1."""
    preprocessing = read_preprocessing(folder)
    if RunFolder(folder).settings_file.exists():
        RunFolder(folder).require_whole(SUMMARIES)
    try:
        summaries = TypeAdapter(list[SiloSummary]).validate_json((folder / SUMMARIES).read_bytes())
    except FileNotFoundError as error:
        raise ConfigError(
            f"{folder} has no {SUMMARIES}: only a run over tables elsewhere (fedilc serve) keeps summaries"
        ) from error
    except ValueError as error:
        raise CheckpointError(f"{folder / SUMMARIES} is damaged", "restore it from a copy") from error
    if not isinstance(preprocessing, Preprocessing):
        raise ConfigError(f"{folder} has no preprocessing yet; wait until its first round has begun")
    _require_two(folder.name, [summary.name for summary in summaries])
    described = tuple(describe_summary(summary, preprocessing) for summary in summaries)
    found = table_notes(summaries, preprocessing)
    return Inspection(
        folder.name,
        preprocessing.label.classes,
        described,
        tuple(grouped(found)),
        details=tuple(details(found)),
        proposals=proposals(found),
    )


def _require_two(name: str, silos: Sequence[str]) -> None:
    if len(silos) < 2:
        raise DataError(
            f"an inspection compares silos, and {name} has one, {silos[0]!r}; give others' tables too"
        )


def write_inspection(folder: Path, found: Inspection) -> None:
    """Write inspection.json, from which a report is made: counts and sums, and no row."""
    with writing(folder / FILE):
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(folder / FILE, TypeAdapter(Inspection).dump_json(found, indent=1) + b"\n")


def read_inspection(folder: Path) -> Inspection:
    """Return the inspection in a folder."""
    try:
        return TypeAdapter(Inspection).validate_json((folder / FILE).read_bytes())
    except (OSError, ValidationError) as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(f"{folder / FILE} is damaged ({reason}); inspect the tables again") from error


def at_start(federation: Federation, seed: int) -> AtStart:
    """Return how far the silos' gradients agree at the initial weights of a network with 32 hidden units."""
    model = build_model("mlp", federation.inputs, federation.outputs, seed, hidden=[32])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FedILCWarning)  # what there is to say of the tables, their notes say
        result = train(federation, model, "geometric", rounds=1, learning_rate=_LEARNING_RATE, seed=seed)
    by_parameter = result.history[0]["sign_agreement"]
    sizes = {name: parameter.numel() for name, parameter in model.named_parameters()}
    agreement = sum(sizes[name] * value for name, value in by_parameter.items()) / sum(sizes.values())
    scores = inconsistency(curvatures(federation, model))
    pairs = {pair: score for pair, score in scores.items() if pair[0] < pair[1]}
    pair = max(pairs, key=pairs.__getitem__)
    return AtStart(float(agreement), _random_agreement(len(federation.silos)), pairs[pair], pair)


def _random_agreement(silos: int) -> float:
    """Return the mean of |sum of random signs| / silos."""
    total = sum(math.comb(silos, up) * abs(2 * up - silos) for up in range(silos + 1))
    return float(total / (2**silos * silos))
