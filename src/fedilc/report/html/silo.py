"""The page that a silo writes for itself after a study: its scores, its place among others, what it sent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fedilc.algorithms.loss_registry import task_of
from fedilc.errors import writing
from fedilc.evaluation.estimates import size_of
from fedilc.evaluation.metrics import HIGHER_IS_BETTER
from fedilc.report.clinical_tables import clinical_tables
from fedilc.report.html.charts import Panel, common_limits
from fedilc.report.html.page import Part, make_part, page
from fedilc.report.html.prediction_charts import prediction_charts
from fedilc.report.score_tables import Study, score_cell, score_column
from fedilc.report.tables import TableData, words
from fedilc.storage.files import write_atomically
from fedilc.studies.study.assessment import clinical_facts
from fedilc.studies.study.site_scores import SiteScores, Told
from fedilc.studies.study.verdict import NAMES

_PLACE_NOTE = (
    "Rank 1 is the best. The scores of the other held-out sites come without their names; they differ in "
    "patients and in models, so that a low rank need not be a fault of this site or of its data."
)


def write_silo_page(
    path: Path, document: SiteScores, told: Told, sent: Sequence[tuple[str, int, int]] = ()
) -> None:
    """Write the page of one silo.

    Args:
        path: of the file.
        document: what the silo says of its scores.
        told: what the study tells it of the others.
        sent: what else it sent: the kind of message, how many of them, and their bytes.
    """
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        content = page(f"{document.site} in the study {told.name}", [silo_part(document, told, sent)])
        write_atomically(path, content.encode())


def silo_part(document: SiteScores, told: Told, sent: Sequence[tuple[str, int, int]] = ()) -> Part:
    """Return the part on one silo."""
    study = _study(document, told)
    rows = [
        (method, colour, of.scores[told.metric].found.interval)
        for colour, (method, of) in enumerate(document.methods.items())
    ]
    messages = [*sent, ("scores at this site (this page)", 1, len(document.to_bytes()))]
    return make_part(
        "silo.html.jinja",
        document.site,
        f"its part in the study {told.name}",
        _verdict(document, told),
        sizes=[("rows", f"{document.examples:,}"), ("of them", _size(document, told))],
        scores=Panel(f"{NAMES[told.metric]} at this site", rows, common_limits([one for *_, one in rows])),
        table=_scores(document, told),
        places=_places(document, told),
        predicted=prediction_charts(study),
        clinical={table.name: table for table in clinical_tables(study)},
        sent=TableData.of(
            "sent", document.site, "Messages", words("what", "messages", "bytes"), messages, ()
        ),
        floors=document.floors,
    )


def _study(document: SiteScores, told: Told) -> Study:
    """Return the parts of study.json that tables and charts of this site are made from."""
    names = {method: method for method in document.methods}
    found: dict[str, Any] = clinical_facts(told.loss, document, names)
    site = document.site
    of_site: dict[str, Any] = {key: {site: found[key]} for key in ("calibration", "drawn") if key in found}
    benefits = {"thresholds": list(told.thresholds), "sites": {site: found.get("net_benefit", {})}}
    if document.treat_all:
        of_site["net_benefit"] = benefits
    return {
        "name": told.name,
        "loss": told.loss,
        "held_out": [site],
        "silos": {site: {}},
        "methods": list(names),
        "headline": told.chosen or told.reference,
        "reference": told.reference,
        "settings": {"seeds": told.seeds, "algorithms": [told.reference]},
        "subgroups": found["subgroups"],
        **of_site,
    }


def _verdict(document: SiteScores, told: Told) -> list[str]:
    """Return the score of the method that was chosen without this site, and its place."""
    method, name = told.chosen or told.reference, NAMES[told.metric]
    if method not in document.methods:
        return [f"No model of {method} was scored at {document.site}."]
    score = document.methods[method].scores[told.metric].found
    what = f"{method}, which was chosen without this site," if told.chosen else method
    if score.value is None:
        return [f"At {document.site}, the {name} of {what} is not estimable ({score.reason})."]
    rank, many = _rank(score.value, told, method)
    place = f"; this is place {rank} of {many} held-out sites" if many > 1 else ""
    return [f"At {document.site}, {what} had {name} {score.interval}{place}."]


def _rank(value: float, told: Told, method: str) -> tuple[int, int]:
    """Return how many held-out sites are at least as good, this one included, and how many there are."""
    others, higher = told.others.get(method, ()), told.metric in HIGHER_IS_BETTER
    better = sum(one > value if higher else one < value for one in others)
    return better + 1, len(others) + 1


def _size(document: SiteScores, told: Told) -> str:
    events = (document.classes or {}).get("1", 0)
    return size_of(document.examples, events if task_of(told.loss) == "binary" else None)


def _scores(document: SiteScores, told: Told) -> TableData:
    rows = [
        (method, *(score_cell(asdict(of.scores[metric].found.interval)) for metric in told.metrics))
        for method, of in document.methods.items()
    ]
    notes = ("Means over seeds; 95 % intervals over the site's examples.",)
    columns = (*words("method"), *map(score_column, told.metrics))
    return TableData.of("scores", document.site, "All scores at this site", columns, rows, notes)


def _places(document: SiteScores, told: Told) -> TableData | None:
    """Return where this site is among the held-out ones; None if there is no other."""
    rows = []
    for method, of in document.methods.items():
        value, others = of.scores[told.metric].found.value, told.others.get(method, ())
        if value is None or not others:
            continue
        rank, many = _rank(value, told, method)
        rows.append((method, f"{value:.3f}", f"{rank} of {many}", ", ".join(f"{one:.3f}" for one in others)))
    columns = words("method", "here", "rank", "at the other sites, in order")
    title = f"{NAMES[told.metric]} here and at the other held-out sites"
    return TableData.of("places", document.site, title, columns, rows, (_PLACE_NOTE,)) if rows else None
