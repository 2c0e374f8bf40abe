"""The paper's inconsistency score as a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fedilc.evaluation.inconsistency import Scores
from fedilc.evaluation.summary import Campaign
from fedilc.report.cells import mean_cell, with_best
from fedilc.report.formats import Cell, Column, TableData
from fedilc.report.paper import in_paper_order

_NOTE = (
    "I / epsilon of a pair of silos is the largest ratio of their curvatures over the directions of the "
    "classifier, 1 where they curve alike; the curvature is C_e at the weights of the last round. Lower is "
    "better."
)


def inconsistency_table(campaign: Campaign, scores: Mapping[str, Scores], notes: Sequence[str]) -> TableData:
    """For each algorithm the typical pair of silos and the worst, mean and deviation over seeds."""
    names = in_paper_order(scores)
    typical = with_best({name: mean_cell(scores[name].typical()) for name in names}, lower=True)
    worst = with_best({name: mean_cell(scores[name].worst()) for name in names}, lower=True)
    return TableData(
        name="inconsistency",
        source=campaign.name,
        title=f"Inconsistency score · {campaign.heading}",
        columns=(
            Column("algorithm", words=True),
            Column("typical pair", parts=("typical mean", "typical std")),
            Column("worst pair", parts=("worst mean", "worst std")),
        ),
        rows=tuple((Cell(name), typical[name], worst[name]) for name in names),
        notes=(*notes, _NOTE),
    )
