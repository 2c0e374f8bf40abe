"""`fedilc inspect`: what is known of silos before training, and what it suggests."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from pydantic import BeforeValidator, TypeAdapter, ValidationError

from fedilc.api import train
from fedilc.data import Federation
from fedilc.data.checks.notes import details, grouped, proposals
from fedilc.data.tables.preprocessing import Preprocessing
from fedilc.data.tables.silo_summary import SiloSummary
from fedilc.data.tables.silo_tables import SiloTables
from fedilc.data.tables.table_notes import table_notes
from fedilc.errors import (
    CheckpointError,
    ConfigError,
    DataError,
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
from fedilc.models import build_model
from fedilc.progress import counted
from fedilc.storage.files import write_atomically
from fedilc.storage.run_folder import SUMMARIES, RunFolder
from fedilc.training.loaded_model import read_preprocessing

if TYPE_CHECKING:
    pass


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
    described = [
        describe_silo(table, preprocessing)
        for table in counted("inspected sites", list(tables.silos.values()))
    ]
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
