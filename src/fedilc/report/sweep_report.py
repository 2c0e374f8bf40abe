"""A sweep over lambda: the value that validation chooses, and what each value gives at the test site."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fedilc.errors import ConfigError
from fedilc.evaluation.selection import ORACLE
from fedilc.evaluation.summary import spread
from fedilc.report.cells import mean_cell
from fedilc.report.formats import Cell, Column, TableData, write_tables
from fedilc.report.style import COLOURS, STYLE, add_title, save
from fedilc.studies.sweep import Sweep, Swept

_TEST = {"test_loss": "OOD loss", "test_accuracy": "OOD accuracy"}
_ORDER = ("validation", "last", "oracle")
_HONEST = "at the round of lowest validation loss"
_HOW = (
    "Validation chooses lambda = {best:g} (bold): the lowest mean validation loss over the silos, each run "
    "at its round of lowest validation loss. The OOD columns tell what each lambda gives at the test site at "
    "the same round, at the last and at the oracle's; to choose by them is to choose on the test site."
)


def write_sweep(sweep: Sweep) -> TableData:
    """Write the sweep's table and picture into its folder, and return the table."""
    found = sweep.found()
    table = lambda_table(Path(sweep.experiment).stem, sweep.title, found, note=sweep.note)
    write_tables(sweep.out, [table])
    lambda_picture(sweep.out / "lambda.png", sweep.title, found, note=sweep.note)
    return table


def chosen_lambda(found: Swept) -> float | None:
    """Return the lambda of lowest mean validation loss, the least of several; None without validation.

    >>> record = lambda loss: [{"round": 1, "validation_loss": loss}]
    >>> chosen_lambda({"validation": {0.0: record(0.5), 1.0: record(0.25), 5.0: record(0.25)}})
    1.0
    """
    means = {value: mean for value, (mean, _) in _spreads(found, "validation", "validation_loss").items()}
    return min(sorted(means), key=lambda value: means[value], default=None)


def lambda_table(source: str, title: str, found: Swept, *, note: str) -> TableData:
    """Return a row for each lambda: its validation loss, and its test loss and accuracy by criterion."""
    best = chosen_lambda(found)
    lambdas = sorted(next(iter(found.values())))
    columns = [Column("lambda")]
    cells = [[Cell(f"{value:g}", bold=value == best) for value in lambdas]]
    wanted = [("validation", "validation_loss", "validation loss")]
    wanted += [(by, key, f"{name}, {by}") for by in _ORDER for key, name in _TEST.items()]
    for criterion, key, heading in wanted:
        values = {value: _numbers(found, criterion, value, key) for value in lambdas}
        if any(values.values()):
            columns.append(Column(heading, parts=(f"{heading} mean", f"{heading} std")))
            made = {value: mean_cell(numbers) for value, numbers in values.items()}
            bold = key == "validation_loss"
            cells.append(
                [Cell(cell.text, bold and value == best, cell.parts) for value, cell in made.items()]
            )
    how = ["No silo has validation examples, so that no lambda is chosen."]
    if best is not None:
        how = [_HOW.format(best=best)]
    oracle = [f"{ORACLE}."] if "oracle" in found else []
    return TableData(
        name="lambda",
        source=source,
        title=f"penalty weight lambda · {title}",
        columns=tuple(columns),
        rows=tuple(zip(*cells, strict=True)),
        notes=(note, *how, *oracle),
    )


def lambda_picture(path: Path, title: str, found: Swept, *, note: str = "") -> None:
    """Draw the validation loss against lambda, and beside it the test loss, with the lambda chosen.

    The axis is logarithmic; lambda = 0 stands apart at its left end, beyond a break.
    """
    lambdas = sorted(next(iter(found.values()), {}))
    if not lambdas or lambdas[0] < 0:
        raise ConfigError(f"a picture over lambda needs at least one, none below 0, not {lambdas}")
    best = chosen_lambda(found)
    lines = {
        "validation loss (mean over silos)": {_HONEST: _spreads(found, "validation", "validation_loss")},
        "OOD test loss": {
            _HONEST: _spreads(found, "validation", "test_loss"),
            "at the oracle's round, which nobody can know": _spreads(found, "oracle", "test_loss"),
        },
    }
    panels = {
        name: {k: v for k, v in some.items() if v} for name, some in lines.items() if any(some.values())
    }
    if not panels:
        raise ConfigError("a picture over lambda needs validation examples or a test set; give one of them")
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(1 + 5 * len(panels), 4.8), layout="constrained")
        for axes, (name, curves) in zip(
            figure.subplots(1, len(panels), squeeze=False)[0], panels.items(), strict=True
        ):
            _panel(axes, lambdas, curves, best)
            axes.set_title(name)
        _legend(figure)
        chosen = f"; chosen by validation: lambda = {best:g}" if best is not None else ""
        several = any(len(seeds) > 1 for by in found.values() for seeds in by.values())
        bars = "; mean ± sample deviation over seeds" if several else ""
        add_title(figure, title, f"{note}{bars}{chosen}")
        save(figure, path)


def _panel(
    axes: Axes,
    lambdas: Sequence[float],
    curves: Mapping[str, Mapping[float, tuple[float, float]]],
    best: float | None,
) -> None:
    everywhere = _places(lambdas)
    aside = 0.012 * (everywhere[-1] - everywhere[0])  # so that two bars of deviation do not hide each other
    zero = int(lambdas[0] == 0)
    for number, (label, points) in enumerate(curves.items()):
        oracle = "oracle" in label
        places = [place + oracle * aside for place in everywhere]
        colour, style = (COLOURS[-1], "--") if oracle else (COLOURS[0], "-")
        means, deviations = np.array([points[value] for value in lambdas]).T
        axes.plot(places[zero:], means[zero:], color=colour, linestyle=style, linewidth=1.6)
        errors = deviations if deviations.any() else None
        axes.errorbar(
            places,
            means,
            errors,
            fmt="D" if oracle else "o",
            color=colour,
            capsize=3,
            linewidth=1.2,
            label=label,
        )
        if best is not None and not number and not oracle:
            at = lambdas.index(best)
            axes.plot(
                places[at],
                means[at],
                "o",
                color=COLOURS[3],
                markersize=8,
                zorder=5,
                label="the lambda chosen by validation",
            )
    if zero and len(lambdas) > 1:
        axes.axvline((everywhere[0] + everywhere[1]) / 2, color="grey", linestyle=":", linewidth=1)
    axes.set_xticks(everywhere, [f"{one:g}" for one in lambdas], rotation=45 if len(lambdas) > 9 else 0)
    axes.set(xlabel="lambda, the weight of the penalty (log scale)", ylabel="cross-entropy")


def _legend(figure: Figure) -> None:
    """One legend below all panels, with each line once."""
    found = {
        label: handle
        for axes in figure.axes
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    figure.legend(list(found.values()), list(found), loc="outside lower center", ncols=2)


def _places(lambdas: Sequence[float]) -> list[float]:
    """Where each lambda stands: its logarithm, and 0 some way before the first."""
    logs = [math.log10(one) for one in lambdas if one > 0]
    if lambdas[0] > 0:
        return logs
    return [(logs[0] - max(0.5, 0.12 * (logs[-1] - logs[0]))) if logs else 0.0, *logs]


def _numbers(found: Swept, criterion: str, value: float, key: str) -> list[float]:
    """The numbers of the seeds at one lambda, of those that have it."""
    records = found.get(criterion, {}).get(value, [])
    return [float(record[key]) for record in records if record.get(key) is not None]


def _spreads(found: Swept, criterion: str, key: str) -> dict[float, tuple[float, float]]:
    """Mean and deviation over seeds by lambda; empty if a lambda has no number."""
    values = {value: _numbers(found, criterion, value, key) for value in found.get(criterion, {})}
    return {value: spread(numbers) for value, numbers in values.items()} if all(values.values()) else {}
