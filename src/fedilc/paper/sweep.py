"""A sweep: one algorithm with several weights (lambda) of its penalty, its table and its picture."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedilc.algorithms import find_algorithm
from fedilc.config import Experiment, read_experiment
from fedilc.errors import ConfigError
from fedilc.evaluation.selection import CRITERIA, ORACLE, selections
from fedilc.evaluation.significance import spread
from fedilc.paper.reproduce import SYNTHETIC, size_in_words
from fedilc.report.plots import COLOURS, add_title, save, styled_figure
from fedilc.report.tables import Cell, Column, TableData, mean_cell, write_tables
from fedilc.storage.run_folder import RunFolder
from fedilc.studies.jobs import RunJob

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes

# By criterion and lambda: the record that the criterion chooses from the run of each seed.
Swept = dict[str, dict[float, list[Mapping[str, Any]]]]
_TEST = {"test_loss": "OOD loss", "test_accuracy": "OOD accuracy"}
_AT_VALIDATION = "at the round of lowest validation loss"
_AT_ORACLE = "at the oracle's round, which nobody can know"
_HOW = (
    "Validation chooses lambda = {best:g} (bold): the lowest mean validation loss over the silos, each run "
    "at its round of lowest validation loss. The OOD columns show the test site's numbers per lambda, at the "
    "same round, at the last and at the oracle's; a choice by them would be a choice on the test site."
)


@dataclass(frozen=True)
class Sweep:
    """An experiment, an algorithm with a penalty, the values of lambda, and seeds."""

    experiment: str
    algorithm: str
    values: tuple[float, ...]
    seeds: int
    changes: tuple[str, ...]
    out: Path

    @classmethod
    def of(
        cls,
        experiment: str,
        algorithm: str,
        values: Sequence[float],
        seeds: int,
        changes: Sequence[str],
        out: Path | None,
    ) -> Sweep:
        """Return a sweep; raise if its algorithm has no penalty."""
        name = find_algorithm(algorithm)[0]
        settings, _ = read_experiment(experiment, [f"algorithm={name}", *changes])
        if settings.parts.penalty is None:
            raise ConfigError(f"{name} has no penalty, so lambda changes nothing; choose one with a penalty")
        folder = out or Path("results") / f"{Path(experiment).stem}-lambda"
        return cls(experiment, name, tuple(values), seeds, tuple(changes), folder)

    def job(self, value: float, seed: int) -> RunJob:
        """Return the run of one value and seed."""
        own = (f"algorithm={self.algorithm}", f"penalty_weight={value!r}", f"seed={seed}")
        folder = self.out / "runs" / f"lambda-{value:g}" / f"seed-{seed}"
        return RunJob.of(self.experiment, (*own, *self.changes), folder)

    def jobs(self) -> list[RunJob]:
        """Return all runs, seed after seed."""
        return [self.job(value, seed) for seed in range(self.seeds) for value in self.values]

    @property
    def settings(self) -> Experiment:
        """Return the settings that all runs share: those of the first run."""
        return self.job(self.values[0], 0).settings

    @property
    def title(self) -> str:
        """Return the experiment and the algorithm, with a warning if the data are synthetic."""
        synthetic = " (SYNTHETIC DATA)" if self.settings.data.source in SYNTHETIC else ""
        return f"{self.settings.name}{synthetic} · {self.algorithm}"

    @property
    def note(self) -> str:
        """Return the size of the sweep in words, and the units of lambda."""
        settings = self.settings
        size = [f"{self.seeds} seed{'s' * (self.seeds != 1)}", *size_in_words(settings, settings.rounds)]
        return f'{", ".join(size)}; fishr_reduction="{settings.fishr_reduction}"'

    def swept(self) -> Swept:
        """Return the records that each criterion chooses, by value and seed.

        A criterion that cannot choose a round of every run, for want of examples, is left out.
        """
        chosen = {
            value: [selections(RunFolder(self.job(value, s).folder).history()) for s in range(self.seeds)]
            for value in self.values
        }
        return {
            criterion: {value: [run[criterion] for run in runs] for value, runs in chosen.items()}
            for criterion in CRITERIA
            if all(criterion in run for runs in chosen.values() for run in runs)
        }


def write_sweep(sweep: Sweep) -> TableData:
    """Write the sweep's table and picture into its folder, and return the table."""
    swept = sweep.swept()
    table = lambda_table(Path(sweep.experiment).stem, sweep.title, swept, note=sweep.note)
    write_tables(sweep.out, [table])
    lambda_picture(sweep.out / "lambda.png", sweep.title, swept, note=sweep.note)
    return table


def chosen_lambda(swept: Swept) -> float | None:
    """Return the lambda of lowest mean validation loss, the lowest of equal ones; None without validation.

    >>> record = lambda loss: [{"round": 1, "validation_loss": loss}]
    >>> chosen_lambda({"validation": {0.0: record(0.5), 1.0: record(0.25), 5.0: record(0.25)}})
    1.0
    """
    means = {value: mean for value, (mean, _) in _spreads(swept, "validation", "validation_loss").items()}
    return min(sorted(means), key=lambda value: means[value], default=None)


def lambda_table(source: str, title: str, swept: Swept, *, note: str) -> TableData:
    """Return a row per lambda: its validation loss, and its test loss and accuracy by criterion."""
    best = chosen_lambda(swept)
    lambdas = sorted(next(iter(swept.values())))
    columns = [Column("lambda")]
    cells = [[Cell(f"{value:g}", bold=value == best) for value in lambdas]]
    wanted = [("validation", "validation_loss", "validation loss")]
    wanted += [
        (by, key, f"{name}, {by}") for by in ("validation", "last", "oracle") for key, name in _TEST.items()
    ]
    for criterion, key, heading in wanted:
        numbers = {value: _numbers(swept, criterion, value, key) for value in lambdas}
        if any(numbers.values()):
            columns.append(Column(heading, parts=(f"{heading} mean", f"{heading} std")))
            made = {value: mean_cell(seeds) for value, seeds in numbers.items()}
            bold = best if key == "validation_loss" else None
            cells.append([Cell(cell.text, value == bold, cell.parts) for value, cell in made.items()])
    none = "No silo has validation examples, so no lambda is chosen."
    notes = [note, none if best is None else _HOW.format(best=best), *[f"{ORACLE}."] * ("oracle" in swept)]
    rows = zip(*cells, strict=True)
    return TableData.of("lambda", source, f"penalty weight lambda · {title}", columns, rows, notes)


def lambda_picture(path: Path, title: str, swept: Swept, *, note: str = "") -> None:
    """Draw the validation loss against lambda, and beside it the test loss, with the lambda chosen.

    The axis is logarithmic; lambda = 0 is apart from the others at its left end.
    """
    lambdas = sorted(next(iter(swept.values())))
    best = chosen_lambda(swept)
    panels: dict[str, dict[str, dict[float, tuple[float, float]]]] = {}
    for name, key, criterion, label in (
        ("validation loss (mean over silos)", "validation_loss", "validation", _AT_VALIDATION),
        ("OOD test loss", "test_loss", "validation", _AT_VALIDATION),
        ("OOD test loss", "test_loss", "oracle", _AT_ORACLE),
    ):
        if curve := _spreads(swept, criterion, key):
            panels.setdefault(name, {})[label] = curve
    if not panels:
        raise ConfigError("a picture over lambda needs validation examples or a test set; give one of them")
    with styled_figure(1 + 5 * len(panels), 4.8) as figure:
        all_axes = figure.subplots(1, len(panels), squeeze=False)[0]
        legend: dict[str, Artist] = {}
        for axes, (name, some) in zip(all_axes, panels.items(), strict=True):
            _draw_panel(axes, lambdas, some, best)
            axes.set_title(name)
            handles, labels = axes.get_legend_handles_labels()
            legend |= {str(label): handle for label, handle in zip(labels, handles, strict=True)}
        figure.legend(list(legend.values()), list(legend), loc="outside lower center", ncols=2)
        chosen = f"; chosen by validation: lambda = {best:g}" if best is not None else ""
        several = any(len(seeds) > 1 for by_lambda in swept.values() for seeds in by_lambda.values())
        bars = "; mean ± sample deviation over seeds" if several else ""
        add_title(figure, title, f"{note}{bars}{chosen}")
        save(figure, path)


def _draw_panel(
    axes: Axes,
    lambdas: Sequence[float],
    curves: Mapping[str, Mapping[float, tuple[float, float]]],
    best: float | None,
) -> None:
    positions = _positions(lambdas)
    zero = int(lambdas[0] == 0)
    for label, points in curves.items():
        oracle = label == _AT_ORACLE
        # The oracle's points are moved aside, so that two bars of deviation do not hide each other.
        x = np.array(positions) + 0.012 * oracle * (positions[-1] - positions[0])
        colour, style, marker = (COLOURS[-1], "--", "D") if oracle else (COLOURS[0], "-", "o")
        means, deviations = np.array([points[value] for value in lambdas]).T
        axes.plot(x[zero:], means[zero:], color=colour, linestyle=style, linewidth=1.6)
        errors = deviations if deviations.any() else None
        axes.errorbar(x, means, errors, fmt=marker, color=colour, capsize=3, linewidth=1.2, label=label)
        if best is not None and not oracle:
            at = lambdas.index(best)
            label = "the lambda chosen by validation"
            axes.plot(x[at], means[at], "o", color=COLOURS[3], markersize=8, zorder=5, label=label)
    if zero and len(lambdas) > 1:
        axes.axvline((positions[0] + positions[1]) / 2, color="grey", linestyle=":", linewidth=1)
    axes.set_xticks(positions, [f"{one:g}" for one in lambdas], rotation=45 if len(lambdas) > 9 else 0)
    axes.set(xlabel="lambda, the weight of the penalty (log scale)", ylabel="cross-entropy")


def _positions(lambdas: Sequence[float]) -> list[float]:
    """Return the position of each lambda on the axis: its logarithm, and 0 some way before the first."""
    logs = [math.log10(one) for one in lambdas if one > 0]
    if lambdas[0] > 0:
        return logs
    return [(logs[0] - max(0.5, 0.12 * (logs[-1] - logs[0]))) if logs else 0.0, *logs]


def _numbers(swept: Swept, criterion: str, value: float, key: str) -> list[float]:
    """Return the numbers of the seeds at one lambda, of those seeds that have it."""
    records = swept.get(criterion, {}).get(value, [])
    return [float(record[key]) for record in records if record.get(key) is not None]


def _spreads(swept: Swept, criterion: str, key: str) -> dict[float, tuple[float, float]]:
    """Return mean and deviation over seeds by lambda; empty if a lambda has no number."""
    values = {value: _numbers(swept, criterion, value, key) for value in swept.get(criterion, {})}
    return {value: spread(numbers) for value, numbers in values.items()} if all(values.values()) else {}
