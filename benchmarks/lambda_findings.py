"""What the committed sweeps over lambda say, for docs/research/reproduction.md."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

_VALIDATION, _HONEST, _ORACLE = "validation loss", "OOD loss, validation", "OOD loss, oracle"
_LAST = "OOD loss, last"
_PAPERS = {"color-mnist": 15.0, "eicu-demo": 0.1, "eicu-synthetic": 0.1}


@dataclass(frozen=True)
class Lambdas:
    """One sweep: its means by lambda and column, and what it was made from."""

    name: str
    means: Mapping[float, Mapping[str, float]]
    deviation: float
    note: str

    @classmethod
    def read(cls, name: str, results: Path) -> Lambdas:
        """Read the table that `fedilc sweep lambda` has left."""
        rows = list(csv.DictReader((results / f"{name}-lambda" / "tables" / "lambda.csv").open()))
        columns = (_VALIDATION, _HONEST, _ORACLE, _LAST)
        means = {float(row["lambda"]): {one: float(row[f"{one} mean"]) for one in columns} for row in rows}
        deviation = max(float(row[f"{_HONEST} std"] or 0) for row in rows)
        return cls(name, means, deviation, rows[0]["note"])

    def lowest(self, column: str) -> float:
        """Return the lambda with the lowest mean, the least of several."""
        return min(sorted(self.means), key=lambda value: self.means[value][column])


def lambdas(results: Path) -> list[str]:
    """Return the lines on all sweeps: a table, and what each sweep comes to."""
    sweeps = [Lambdas.read(path.name.removesuffix("-lambda"), results) for path in _folders(results)]
    lines = [
        "| data | lambda | validation loss | OOD loss at its round | OOD loss (oracle) |",
        "|---|---|---|---|---|",
    ]
    for sweep in sweeps:
        lines += [_row(sweep, value) for value in sorted(sweep.means)]
    lines += ["", *(_told(sweep) for sweep in sweeps), ""]
    highest = all(max(s.means) == s.lowest(_ORACLE) > s.lowest(_VALIDATION) for s in sweeps)
    sentence = (
        "At the oracle's round the loss is lowest at the largest lambda of every sweep; validation, which "
        "sees the silos' own domains only, chooses a smaller one each time."
    )
    if not highest:
        raise ValueError(f"the sweeps do not support this: {sentence}")
    return [*lines, f"{sentence} One or two seeds are not tested for noise."]


def _folders(results: Path) -> list[Path]:
    return sorted(results.glob("*-lambda"))


def _row(sweep: Lambdas, value: float) -> str:
    numbers = [f"{sweep.means[value][one]:.4f}" for one in (_VALIDATION, _HONEST, _ORACLE)]
    if value == sweep.lowest(_VALIDATION):
        numbers[0] = f"**{numbers[0]}**"
    return f"| {' | '.join((sweep.name, f'{value:g}', *numbers))} |"


def _told(sweep: Lambdas) -> str:
    chosen, best, oracle = (sweep.lowest(one) for one in (_VALIDATION, _HONEST, _ORACLE))
    loss = sweep.means[chosen][_HONEST]
    none = sweep.means[min(sweep.means)][_HONEST]
    against = f"{loss:.4f} at the test site" + ("" if chosen == 0 else f", {none:.4f} without the penalty")
    paper = f" The paper has lambda = {_PAPERS[sweep.name]:g}." if sweep.name in _PAPERS else ""
    places = (
        f"Chosen on the test site, it would be {best:g} at that round ({sweep.means[best][_HONEST]:.4f}) and "
        f"{oracle:g} at the oracle's ({sweep.means[oracle][_ORACLE]:.4f})."
    )
    losses = [numbers[_HONEST] for numbers in sweep.means.values()]
    span = max(losses) - min(losses)
    noise = ""
    if sweep.deviation:
        noise = (
            f" At validation's round the lambdas differ by {span:.4f}, and seeds have a deviation of up to "
            f"{sweep.deviation:.4f}."
        )
    falling = [f"{value:g}" for value, one in sweep.means.items() if one[_HONEST] == one[_LAST]]
    if falling:
        which = "every lambda" if len(falling) == len(sweep.means) else f"lambda = {', '.join(falling)}"
        noise += f" The validation loss is lowest at the last round for {which}, and might fall further."
    choice = f"validation chooses lambda = {chosen:g} ({against})."
    return f"- **{sweep.name}** ({sweep.note}): {choice} {places}{noise}{paper}"
