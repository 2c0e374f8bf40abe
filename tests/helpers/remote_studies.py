"""A study over silos as processes, and the same study of the same tables at one place."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from fleets import Fleet, Member

from fedilc.evaluation.estimates import Floors
from fedilc.report.study_files import study_facts
from fedilc.studies.study.data import StudyTables, study_data
from fedilc.studies.study.plan import StudyPlan
from fedilc.studies.study.run import run_study
from fedilc.studies.study.safety import without_unsafe
from fedilc.studies.study.settings import StudySettings

FLOORS = Floors(10, 10)
HEART = {
    "label": "num>0",
    "categorical": ["cp", "restecg", "slope", "thal"],
    "missing": ["chol=0", "trestbps=0"],
}
# What tables at one place have besides: notes of their rows, scores of all rows together, quartiles
APART = ("notes", "command", "together")


TWELVE = {"label": "died", "positive": "yes", "categorical": ["ward"], "missing": ["lab=-9"]}


def write_hospitals(folder: Path, parts: int = 4) -> list[str]:
    """A table per hospital of the heart disease inside the package; a fifth one is a part of the first."""
    found = study_data(["heart-disease"])
    assert isinstance(found, StudyTables)
    frames = {
        name: table.frame.with_columns(table.labels.alias("num"))
        for name, table in found.tables.silos.items()
    }
    if parts == 5:
        frames["cleveland"], frames["zurich"] = frames["cleveland"][::2], frames["cleveland"][1::2]
    for name, frame in frames.items():
        frame.write_csv(folder / f"{name}.csv")
    return list(frames)


def write_twelve(folder: Path) -> list[str]:
    """Twelve tables with categories, gaps and codes; some have as many rows as others."""
    names = [f"s{number}" for number in range(1, 13)]
    for number, name in enumerate(names):
        random = np.random.default_rng(number)
        rows = 200 + 40 * (number % 3)
        age, lab = random.normal(60, 10, rows).round(1), random.lognormal(1, 0.8, rows).round(3)
        risk = (age - 60) / 8 + 0.5 * np.log(lab) + random.normal(0, 1.5, rows)
        pl.DataFrame(
            {
                "age": np.where(random.random(rows) < 0.35, "?", age.astype(str)),
                "ward": random.integers(1, 3, rows),
                "lab": np.where(random.random(rows) < 0.35, -9, lab),
                "died": np.where(risk > 0.3, *(("yes", "no"), ("YES ", "No"))[number % 2]),
            }
        ).write_csv(folder / f"{name}.csv")
    return names


def write_study_file(
    folder: Path, silos: Sequence[str], table: Mapping[str, Any], settings: Mapping[str, Any]
) -> Path:
    """The file that the coordinator has."""
    lines = ["[study]", *(f"{key} = {_toml(value)}" for key, value in settings.items())]
    lines += ["[data]", 'source = "remote-tables"', f"silos = {_toml(list(silos))}"]
    lines += [f"{key} = {_toml(value)}" for key, value in table.items()]
    path = folder / "study.toml"
    path.write_text("\n".join(lines) + "\n")
    return path


def _toml(value: Any) -> str:
    return json.dumps(list(value) if isinstance(value, tuple) else value)


class LocalTables(StudyTables):
    """Tables at one place, without what only such tables have."""

    pools = False


def studied_locally(
    folder: Path, silos: Sequence[str], table: Mapping[str, Any], settings: Mapping[str, Any]
) -> dict[str, Any]:
    """What the same study says of the tables at one place, with the floors of silos."""
    found = study_data([str(folder / f"{name}.csv") for name in silos], **table)
    assert isinstance(found, StudyTables)
    own = LocalTables(**{one.name: getattr(found, one.name) for one in fields(found)})
    plan = StudyPlan(replace(own, name="study"), StudySettings().with_given(settings))
    result = run_study(without_unsafe(plan), folder / "local", floors=FLOORS)
    return json.loads(json.dumps(study_facts(result)))


def joined(processes: Fleet, url: str, name: str, *more: object) -> Member:
    """A silo that joins with its table; what it remembers is in the test's folder."""
    state = str(processes.folder / "home")
    argv = ("join", url, "--silo", name, "--data", processes.folder / f"{name}.csv", "--yes", *more)
    return processes.start(*argv, XDG_STATE_HOME=state)


def assert_same_study(local: Mapping[str, Any], remote: Mapping[str, Any]) -> None:
    """Bit for bit, but for what only tables at one place have."""
    unlike = [key for key in {*local, *remote} if key not in APART and local.get(key) != remote.get(key)]
    assert not unlike, {key: (local.get(key), remote.get(key)) for key in unlike}
