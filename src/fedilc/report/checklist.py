"""checklist.md: which items of TRIPOD+AI and TRIPOD-Cluster a study's report covers, and what authors write.

Items are named by their numbers, and described in our own words: the texts of the checklists are those of
their authors (doi 10.1136/bmj-2023-078378 and doi 10.1136/bmj-2022-071018).
"""

from __future__ import annotations

from typing import NamedTuple

from fedilc.report.study_tables import Study, next_site_rows

FILE = "checklist.md"


class Item(NamedTuple):
    """An item: its number, its subject, the sections that cover it, and what is left to the authors."""

    number: str
    subject: str
    sections: tuple[str, ...]
    authors: str


_NEXT, _EACH, _ROWS = "The next site", "Each held-out site", "Rows, sites and variables"
_CHOSEN, _COMMAND, _NOTES = (
    "Settings chosen on the training sites",
    "Settings and command",
    "Notes on the data",
)
_CALIBRATION, _DECISIONS, _SUBGROUPS = "Calibration", "Decision curves", "Subgroups"
_SENSITIVITY, _VERDICT = "Without indicators of missing values", "Verdict"
# A section that is not in every report, and the key of study.json without which it is not there.
_NEEDS = {
    _CALIBRATION: "calibration",
    _DECISIONS: "net_benefit",
    _SUBGROUPS: "subgroups",
    _SENSITIVITY: "sensitivity",
    _ROWS: "flow",
    _NOTES: "notes",
}

TRIPOD_AI = (
    Item("1", "title", (), "say that a model is developed and evaluated, for whom, and for which outcome"),
    Item("2", "abstract", (), "follow the checklist for abstracts; the verdict has the numbers"),
    Item("3a-c", "background", (), "the care pathway, the reason for a model, known inequalities"),
    Item("4", "objectives", (), "development, evaluation at held-out sites, or both"),
    Item("5a-b", "sources of data and dates", (), "where the data come from, when they were collected"),
    Item("6a-c", "participants", (), "setting, eligibility, and treatments of each site"),
    Item("7", "preparation of data", (_NOTES, _COMMAND), "cleaning before the tables were read"),
    Item("8a-c", "outcome", (_COMMAND,), "how and when it was assessed, by whom, blinded or not"),
    Item("9a-c", "predictors", (_ROWS,), "why these, and how and when they were measured"),
    Item("10", "sample size", (_ROWS,), "why it is enough; events per input are in the report"),
    Item("11", "missing data", (_ROWS, _SENSITIVITY), "why values are missing"),
    Item("12a", "partition of the data", (_EACH, _CHOSEN), "whether the declared plan was followed"),
    Item("12b", "handling of predictors", (_COMMAND,), "transformations before the tables were read"),
    Item("12c", "type of model and its choices", (_CHOSEN, _COMMAND), "why these methods"),
    Item("12d", "differences between sites", (_NEXT,), "what was expected to differ, and why"),
    Item("12e", "measures of performance", (_EACH, _CALIBRATION, _DECISIONS), "why these thresholds"),
    Item("12f", "updating", (), "that no model was updated, unless one was"),
    Item("12g", "how predictions are made", (_COMMAND,), "how others obtain the model"),
    Item("13", "class imbalance", (_COMMAND,), "the reason, if classes were balanced"),
    Item("14", "fairness", (_SUBGROUPS,), "which groups were named beforehand, and why"),
    Item("15", "output of the model", (_CALIBRATION,), "the threshold of a decision, if there is one"),
    Item("16", "development against evaluation data", (_ROWS,), "differences that tables do not show"),
    Item("17", "ethics", (), "approval, and consent or its waiver"),
    Item("18a-f", "open science", (_VERDICT, _COMMAND), "funding, interests, registration, data, code"),
    Item("19", "patients and the public", (), "how they took part, or that they did not"),
    Item("20a", "flow of participants", (_ROWS,), "exclusions before the tables were made, follow-up"),
    Item("20b", "characteristics", (_ROWS,), "dates and treatments"),
    Item("20c", "held-out sites against development", (_ROWS,), "nothing, or comments"),
    Item("21", "numbers per analysis", (_ROWS,), "nothing, or comments"),
    Item("22", "the full model", (), "give the trained model or its coefficients, and how to use it"),
    Item("23a", "performance", (_EACH, _CALIBRATION, _DECISIONS, _SUBGROUPS), "what it means for care"),
    Item("23b", "performance across sites", (_NEXT, _EACH), "why sites differ"),
    Item("24", "results of updating", (), "nothing, unless a model was updated"),
    Item("25", "interpretation", (_VERDICT,), "in the light of objectives and earlier studies"),
    Item("26", "limitations", (_VERDICT, _NOTES), "representativeness, sample size, bias"),
    Item("27a-c", "use in practice", (), "poor input, who uses it with which skills, next steps"),
)

TRIPOD_CLUSTER = (
    Item("1", "title", (), "say that the data are clustered, and for which outcome"),
    Item("2", "abstract", (), "numbers of sites and participants, and the heterogeneity found"),
    Item("3a-b", "background and objectives", (), "the context, and why several sites are needed"),
    Item(
        "4a-b", "participants and sites", (), "eligibility of participants and of sites, origin of the data"
    ),
    Item("5", "sample size", (_ROWS,), "why it is enough"),
    Item("6a-b", "outcome and predictors", (_ROWS, _COMMAND), "definitions, and where sites differ in them"),
    Item(
        "7a-d", "preparation of data", (_NOTES, _ROWS, _SENSITIVITY), "harmonisation, risk of bias per site"
    ),
    Item("8a-b", "predictors, model and validation", (_CHOSEN, _COMMAND), "why these methods"),
    Item("8c", "sites in the model", (_COMMAND,), "why parameters are shared by all sites"),
    Item(
        "8d",
        "how predictions are made",
        (_EACH,),
        "nothing; 'alone' models and refitted log losses use the site's own labels",
    ),
    Item("8e", "measures of performance", (_EACH, _CALIBRATION, _DECISIONS), "why these thresholds"),
    Item("8f", "heterogeneity of performance", (_NEXT,), "nothing, or comments"),
    Item("8g", "updating", (), "that no model was updated, unless one was"),
    Item("9", "planned further analyses", (_SUBGROUPS, _SENSITIVITY), "which were planned"),
    Item("10a-c", "flow, characteristics, comparison", (_ROWS,), "dates, treatments, follow-up"),
    Item("11", "risk of bias per site", (), "the results of its assessment"),
    Item("12a-b", "heterogeneity found, final model", (_NEXT,), "give the model, and how to use it"),
    Item("13a-b", "performance per site and over sites", (_EACH, _NEXT, _CALIBRATION), "why sites differ"),
    Item("14", "results of updating", (), "nothing, unless a model was updated"),
    Item("15", "results of further analyses", (_SUBGROUPS, _SENSITIVITY), "what they mean"),
    Item("16a-c", "interpretation", (_VERDICT,), "results, comparison with other studies, limitations"),
    Item("17", "implications", (_VERDICT,), "for practice and for research"),
    Item("18", "supplements", (_COMMAND,), "where protocol, data, code and model are"),
    Item("19", "funding", (), "sources, and the role of funders"),
)


def checklist(study: Study) -> str:
    """Return which items a study's report covers and in which sections, and what its authors write."""
    parts = [
        f"# Reporting checklists for {study['name']}",
        "",
        "Sections are those of the HTML report. Items are described in other words than the checklists use: "
        "read them there ([TRIPOD+AI](https://doi.org/10.1136/bmj-2023-078378), "
        "[TRIPOD-Cluster](https://doi.org/10.1136/bmj-2022-071018)).",
    ]
    for title, items in (("TRIPOD+AI", TRIPOD_AI), ("TRIPOD-Cluster", TRIPOD_CLUSTER)):
        parts += [
            "",
            f"## {title}",
            "",
            "| item | about | in the report | left to the authors |",
            "|---|---|---|---|",
        ]
        parts += [
            f"| {item.number} | {item.subject} | {', '.join(covered(item, study)) or '-'} | {item.authors} |"
            for item in items
        ]
    missing = [
        name for name, key in _NEEDS.items() if key in ("subgroups", "sensitivity") and key not in study
    ]
    if missing:
        parts += ["", f"Not done in this study: {', '.join(missing)}."]
    return "\n".join(parts) + "\n"


def covered(item: Item, study: Study) -> list[str]:
    """Return those sections of an item that the report of this study has."""
    there = {name: bool(study.get(key)) for name, key in _NEEDS.items()}
    there[_NEXT] = bool(next_site_rows(study, study["reference"]))
    return [name for name in item.sections if there.get(name, True)]
