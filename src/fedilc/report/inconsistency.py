"""The paper's inconsistency score as a table."""

from __future__ import annotations

from collections.abc import Sequence

from fedilc.evaluation.inconsistency import CURVATURES
from fedilc.evaluation.summary import INCONSISTENCY, Campaign
from fedilc.report.cells import our_cell, with_best
from fedilc.report.formats import Cell, Column, TableData
from fedilc.report.paper import in_paper_order

_TITLES = {"variance": "C_e", "hessian": "Hessian"}
_NOTE = (
    "I / epsilon of a pair of silos is the largest ratio of their curvatures over the directions of the "
    "classifier, 1 if they curve alike; lower is better. The curvature is C_e, the variance of the gradient, "
    "as Fishr has it, or the exact diagonal of the Hessian, both at the weights of the last round. typical: "
    "the geometric mean over pairs of silos; worst: the highest pair."
)


def inconsistency_table(campaign: Campaign, notes: Sequence[str]) -> TableData:
    """Return, per algorithm, the typical pair of silos and the worst: mean and deviation over seeds."""
    metrics = {
        f"{_TITLES[curvature]}, {pair}": f"{INCONSISTENCY}{curvature}{end}"
        for curvature in CURVATURES
        for pair, end in (("typical", ""), ("worst", "_worst"))
    }
    found = {
        title: {name: our_cell(campaign, name, "last", metric) for name in campaign.algorithms}
        for title, metric in metrics.items()
    }
    names = in_paper_order(name for name in campaign.algorithms if any(c[name].parts for c in found.values()))
    columns = {title: with_best(cells, lower=True) for title, cells in found.items()}
    return TableData(
        name="inconsistency",
        source=campaign.name,
        title=f"{campaign.heading}: inconsistency score (lower is better)",
        columns=(
            Column("algorithm", words=True),
            *(Column(title, (f"{title}, mean", f"{title}, deviation")) for title in metrics),
        ),
        rows=tuple((Cell(name), *(cells[name] for cells in columns.values())) for name in names),
        notes=(*notes, _NOTE),
    )
