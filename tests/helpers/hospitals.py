"""Made-up tables of several hospitals: mixed types, coded missing values, an identifier."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from fedilc.data.tables.silo_tables import read_tables
from fedilc.data.tables.table_settings import TableSettings
from fedilc.report.score_tables import Study
from fedilc.report.study_files import study_facts
from fedilc.storage.files import read_tensors
from fedilc.studies.study.choice import Choice
from fedilc.studies.study.data import StudyData, StudyTables
from fedilc.studies.study.description import descriptions
from fedilc.studies.study.plan import StudyPlan
from fedilc.studies.study.result import StudyResult
from fedilc.studies.study.scoring import asked_by, rows_of, score_site
from fedilc.studies.study.settings import StudySettings
from fedilc.studies.study.site_scores import Limits, Score, SiteScores
from fedilc.studies.study.tasks import Task

# Settings of a study that has one way to scale numbers and one network, so that few models are trained.
ONE_CANDIDATE: Mapping[str, Any] = {
    "scalings": ("moments",),
    "networks": (),
    "network_decays": (0.0,),
    "averages": ("none",),
}


def hospitals(sites: int, rows: int = 40, seed: int = 0) -> pl.DataFrame:
    """Return one table: who dies depends on age, lactate and sex, and how often on the hospital."""
    random = np.random.default_rng(seed)
    parts = []
    for site in range(sites):
        age = random.normal(60 + 2 * site % 5, 12, rows).round(1)
        lactate = np.exp(random.normal(0.3, 0.5, rows)).round(2)
        sex = random.choice(["m", "f"], rows)
        risk = 0.08 * (age - 60) + 1.5 * (lactate - 1.4) + 0.8 * (sex == "m") - 0.4 + 0.3 * random.normal()
        died = random.random(rows) < 1 / (1 + np.exp(-risk))
        died[:4] = True, False, True, False
        parts.append(
            pl.DataFrame(
                {
                    "hospital": [f"H{site}"] * rows,
                    "patient": [f"p{site}-{row}" for row in range(rows)],
                    "age": ["NA" if random.random() < 0.1 else str(value) for value in age],
                    "sex": sex,
                    "lactate": np.where(random.random(rows) < 0.1, -9, lactate),
                    "died": np.where(died, "yes", "no"),
                }
            )
        )
    return pl.concat(parts)


def study_table(folder: Path, frame: pl.DataFrame, name: str = "patients") -> StudyTables:
    """Return the data of a study from a table that was written as CSV."""
    path = folder / f"{name}.csv"
    frame.write_csv(path)
    tables = read_tables([path], TableSettings(label="died", missing=["lactate=-9"]), "hospital")
    return StudyTables.of(name, tables)


def made_result(plan: StudyPlan, levels: Mapping[str, float]) -> StudyResult:
    """Return a study without runs: every score of a method is its level, and a bit more at each next site."""
    values = {
        site: {method: level + 0.001 * place for method, level in levels.items()}
        for place, site in enumerate(plan.held_out)
    }
    sites = made_sites(plan, values)
    shapes = {site: (len(plan.data.labels[site]), plan.data.outputs) for site in plan.held_out}
    outputs = {
        site: {method: [np.full(shapes[site], level)] for method, level in levels.items()} for site in sites
    }
    choice = Choice({"learning_rate": 0.1}, 7, 0.5, {6: 0.6, 7: 0.5})
    choices = {site: dict.fromkeys(levels, choice) for site in sites}
    return StudyResult(plan, choices, sites, {}, outputs=outputs, silos=descriptions(plan.data))


def made_sites(
    plan: StudyPlan, values: Mapping[str, Mapping[str, float]], error: float = 0.02
) -> dict[str, SiteScores]:
    """Return documents in which every score of a method at a site is this value, with this standard error.

    Two methods differ alike for every example, so that the variance of their difference is 0.
    """
    asked, sites = asked_by(plan), {}
    for site, levels in values.items():
        shape = (len(plan.data.labels[site]), plan.data.outputs)
        outputs = {method: [np.full(shape, value)] for method, value in levels.items()}
        found = score_site(rows_of(plan, (site,), outputs, tuple(levels)), asked)
        methods = {
            method: of.model_copy(
                update={"scores": {n: made_score(levels[method], error) for n in of.scores}}
            )
            for method, of in found.methods.items()
        }
        apart = {score: tuple((0.0,) * before for before in range(len(levels))) for score in asked.scores}
        sites[site] = found.model_copy(update={"methods": methods, "apart": apart})
    return sites


def made_score(value: float, error: float) -> Score:
    """Return a score of one seed."""
    found, variance = Limits(value=value, low=value - 2 * error, high=value + 2 * error), error**2
    return Score(found=found, seeds=(value,), variance=variance, analysis=(value, variance), comparable=True)


NO_SCORE = Score(found=Limits(), seeds=(None,))


def with_score(result: StudyResult, site: str, method: str, metric: str, score: Score) -> StudyResult:
    """Return a result with another score of a method at a site."""
    document = result.sites[site]
    of = document.methods[method]
    changed = of.model_copy(update={"scores": of.scores | {metric: score}})
    at_site = document.model_copy(update={"methods": document.methods | {method: changed}})
    return replace(result, sites=result.sites | {site: at_site})


def compared_study(folder: Path, sites: int) -> Study:
    """Return a study in which geometric is 0.1 above fedavg in every score, and H0 has no area."""
    data = study_table(folder, hospitals(sites, rows=8))
    plan = StudyPlan(data, StudySettings(algorithms=("fedavg", "geometric"), references=False))
    result = made_result(plan, {"fedavg": 0.7, "geometric": 0.8})
    for method in ("fedavg", "geometric"):
        result = with_score(result, "H0", method, "auroc", NO_SCORE)
    return study_facts(result)


def patients(rows: int = 40, silos: int = 3, seed: int = 0) -> pl.DataFrame:
    """Return patients of some hospitals: numbers, names, missing values and an outcome."""
    random = np.random.default_rng(seed)
    count = rows * silos
    age = random.normal(60, 10, count).round(1)
    return pl.DataFrame(
        {
            "hospital": [f"h{i // rows}" for i in range(count)],
            "age": age,
            "sex": random.choice(["male", "female"], count),
            "lactate": random.normal(2, 1, count).round(2),
            "died": random.choice(["no", "yes"], count),
        }
    )


def stored_run(folder: Path, task: Task, data: StudyData) -> Path:
    """Return the file of a task's result, in whichever stack it was done."""
    own = json.loads(json.dumps(task.identity(data)))
    for path in (folder / "runs").glob("*.safetensors"):
        found = read_tensors(path)[1]["task"]
        if {key: value for key, value in found.items() if key != "stack"} == own:
            return path
    raise AssertionError(f"{folder} has no result of {task}")
