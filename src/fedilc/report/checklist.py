"""checklist.md: which items of TRIPOD+AI and TRIPOD-Cluster a study's report covers, and what authors write.

Items are named by their numbers in the two publications, TRIPOD+AI of 2024 (doi 10.1136/bmj-2023-078378) and
TRIPOD-Cluster of 2023 (doi 10.1136/bmj-2022-071018), and described in our own words: the texts are those of
their authors.
"""

from __future__ import annotations

from typing import NamedTuple

from fedilc.report.score_tables import Study
from fedilc.report.study_tables import next_site_rows

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
    Item("3a-c", "background", (), "the reason for a model, its use and users, known inequalities"),
    Item("4", "objectives", (), "development, evaluation at held-out sites, or both"),
    Item(
        "5a-b", "sources of data and dates", (), "where the data come from, whom they represent, their dates"
    ),
    Item("6a-c", "participants", (), "setting, eligibility, and treatments of each site"),
    Item("7", "preparation of data", (_NOTES, _COMMAND), "cleaning before the tables were read"),
    Item("8a-c", "outcome", (_COMMAND,), "time horizon; how it was assessed, by whom, blinded or not"),
    Item("9a-c", "predictors", (_ROWS,), "why these; how and when they were measured, and by whom"),
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
    Item(
        "18a-f",
        "open science",
        (_VERDICT, _COMMAND),
        "funding, interests, protocol, registration, data, code",
    ),
    Item("19", "patients and the public", (), "how they took part, or that they did not"),
    Item("20a", "flow of participants", (_ROWS,), "exclusions before the tables were made, follow-up"),
    Item("20b", "characteristics", (_ROWS,), "dates and treatments"),
    Item("20c", "held-out sites against development", (_ROWS,), "nothing, or comments"),
    Item("21", "numbers per analysis", (_ROWS,), "nothing, or comments"),
    Item("22", "the full model", (), "give the trained model or its coefficients, and how to use it"),
    Item("23a", "performance", (_EACH, _CALIBRATION, _DECISIONS, _SUBGROUPS), "what it means for care"),
    Item("23b", "performance across sites", (_NEXT, _EACH), "why sites differ"),
    Item("24", "results of updating", (), "nothing, unless a model was updated"),
    Item("25", "interpretation", (_VERDICT,), "in the light of objectives, earlier studies and fairness"),
    Item("26", "limitations", (_VERDICT, _NOTES), "representativeness, sample size, bias"),
    Item("27a-c", "use in practice", (), "poor input, who uses it with which skills, next steps"),
)

TRIPOD_CLUSTER = (
    Item("1", "title", (), "say that a model is developed and validated, for whom, and for which outcome"),
    Item("2", "abstract", (), "setting, sources, sample size and methods; the verdict has the numbers"),
    Item("3a-b", "background and objectives", (), "the context, and what several sites add"),
    Item(
        "4a-b",
        "participants and data sets",
        (),
        "eligibility of participants and of sites, origin of the data",
    ),
    Item("5", "sample size", (_ROWS,), "why it is enough; events per input are in the report"),
    Item("6a-b", "outcome and predictors", (_COMMAND,), "definitions, and how and when each was measured"),
    Item("7a", "preparation of data", (_NOTES, _COMMAND), "cleaning, harmonisation and linkage before that"),
    Item("7b", "risk of bias per site", (), "how it was assessed, for example with PROBAST"),
    Item("7c", "definitions at held-out sites", (), "where they differ from those of the other sites"),
    Item("7d", "missing data", (_ROWS, _SENSITIVITY), "why values are missing"),
    Item("8a", "handling of predictors", (_COMMAND,), "transformations before the tables were read"),
    Item("8b", "type of model, choices and validation", (_CHOSEN, _COMMAND), "why these methods"),
    Item("8c", "parameters that differ by site", (_COMMAND,), "why all sites share one set of parameters"),
    Item(
        "8d",
        "how predictions are made",
        (_EACH,),
        "nothing; 'alone' models and refitted log losses use the site's own labels",
    ),
    Item("8e", "measures of performance", (_EACH, _CALIBRATION, _DECISIONS), "why these thresholds"),
    Item("8f", "heterogeneity of performance", (_NEXT,), "nothing, or comments"),
    Item("8g", "updating", (), "that no model was updated, unless one was"),
    Item("9", "planned subgroups and sensitivity", (_SUBGROUPS, _SENSITIVITY), "which were planned"),
    Item("10a", "flow of sites and participants", (_ROWS,), "exclusions before the tables were made"),
    Item("10b", "characteristics", (_ROWS,), "dates, treatments, follow-up"),
    Item("10c", "held-out sites against development", (_ROWS,), "nothing, or comments"),
    Item("11", "risk of bias per site", (), "the results of its assessment"),
    Item("12a", "heterogeneity during development", (), "sites or predictors left out because sites differ"),
    Item("12b", "the final model", (), "give the trained model or its coefficients, and how to use it"),
    Item(
        "13a", "performance overall and per site", (_EACH, _CALIBRATION, _DECISIONS), "nothing, or comments"
    ),
    Item("13b", "heterogeneity of performance found", (_NEXT,), "why sites differ"),
    Item("14", "results of updating", (), "nothing, unless a model was updated"),
    Item("15", "results of subgroups and sensitivity", (_SUBGROUPS, _SENSITIVITY), "what they mean"),
    Item("16a", "interpretation", (_VERDICT,), "in the light of objectives and earlier studies"),
    Item("16b", "performance beside that in development", (), "and beside earlier validations"),
    Item("16c", "strengths and limitations", (_NOTES,), "representativeness, missing data, harmonisation"),
    Item("17", "use and further research", (), "for which settings and groups, and what is still needed"),
    Item("18", "supplementary resources", (_COMMAND,), "where protocol, data, code and model are"),
    Item("19", "funding", (), "sources, and the role of funders"),
)


def checklist(study: Study) -> str:
    """Return which items a study's report covers and in which sections, and what its authors write."""
    parts = [
        f"# Reporting checklists for {study['name']}",
        "",
        "Sections are those of the HTML report. Items are described in other words than the checklists use: "
        "read them there. Numbers are those of [TRIPOD+AI](https://doi.org/10.1136/bmj-2023-078378) "
        "(BMJ 2024;385:e078378) and [TRIPOD-Cluster](https://doi.org/10.1136/bmj-2022-071018) "
        "(BMJ 2023;380:e071018).",
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
