"""One algorithm over several weights of the Fishr penalty."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedilc.algorithms import find_algorithm
from fedilc.errors import ConfigError
from fedilc.jobs import Job
from fedilc.reproduction import SYNTHETIC

if TYPE_CHECKING:
    from fedilc.report.formats import TableData


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
        """A sweep whose algorithm has a penalty to weigh."""
        name, found = find_algorithm(algorithm)
        if not found.two_phase:
            raise ConfigError(f"{name} has no penalty, so lambda changes nothing; choose a fishr algorithm")
        folder = out or Path("results") / f"{Path(experiment).stem}-lambda"
        return cls(experiment, name, tuple(values), seeds, tuple(changes), folder)

    def job(self, value: float, seed: int) -> Job:
        """The run of one value and seed."""
        own = (f"algorithm={self.algorithm}", f"penalty={value!r}", f"seed={seed}")
        folder = self.out / "runs" / f"lambda-{value:g}" / f"seed-{seed}"
        return Job.of(self.experiment, (*own, *self.changes), folder)

    def jobs(self) -> list[Job]:
        """All runs, seed after seed."""
        return [self.job(value, seed) for seed in range(self.seeds) for value in self.values]

    def chosen(self, criterion: str) -> dict[float, list[Any]]:
        """For each value the records that a criterion chooses, a seed each."""
        from fedilc.evaluation import select
        from fedilc.federation import RunFolder

        return {
            value: [
                select(RunFolder(self.job(value, seed).folder).history(), criterion)
                for seed in range(self.seeds)
            ]
            for value in self.values
        }


def write_sweep(sweep: Sweep) -> TableData:
    """Put the sweep's table and picture into its folder; returns the table."""
    from fedilc.evaluation import CRITERIA
    from fedilc.evaluation.summary import spread
    from fedilc.report.campaign_plots import lambda_picture
    from fedilc.report.cells import mean_cell, with_best
    from fedilc.report.formats import Cell, Column, TableData, write_tables

    columns, cells = [Column("lambda")], [[Cell(f"{value:g}") for value in sweep.values]]
    for criterion in CRITERIA:
        chosen = sweep.chosen(criterion)
        for key, title, lower in (("test_loss", "OOD loss", True), ("test_accuracy", "OOD accuracy", False)):
            means = {f"{value:g}": mean_cell([r[key] for r in chosen[value]]) for value in sweep.values}
            heading = f"{title}, {criterion}"
            columns.append(Column(heading, parts=(f"{heading} mean", f"{heading} std")))
            cells.append(list(with_best(means, lower).values()))
    made_up = " (SYNTHETIC DATA)" if sweep.job(0.0, 0).settings.data.source in SYNTHETIC else ""
    title = f"{sweep.job(0.0, 0).settings.name}{made_up} · {sweep.algorithm}"
    settings = sweep.job(0.0, 0).settings
    note = f"{sweep.seeds} seed{'s' * (sweep.seeds != 1)}, {settings.rounds} rounds"
    if (subset := getattr(settings.data, "subset", 1.0)) < 1:
        note += f", {100 * subset:g} % of the training and validation examples"
    table = TableData(
        name="lambda",
        source=Path(sweep.experiment).stem,
        title=f"Fishr penalty weight lambda · {title}",
        columns=tuple(columns),
        rows=tuple(zip(*cells, strict=True)),
        notes=(note,),
    )
    write_tables(sweep.out, [table])
    points = {
        value: spread([float(record["test_loss"]) for record in records])
        for value, records in sweep.chosen("oracle").items()
    }
    lambda_picture(sweep.out / "lambda.png", title, points, note=note)
    return table
