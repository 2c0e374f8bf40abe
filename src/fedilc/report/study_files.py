"""The files of a study: study.json with every number, the verdict, predictions and tables."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from fedilc.algorithms.loss_registry import has_classes, task_of
from fedilc.errors import ConfigError, writing
from fedilc.evaluation.metrics import HIGHER_IS_BETTER
from fedilc.progress import counted
from fedilc.report.checklist import FILE as CHECKLIST
from fedilc.report.checklist import checklist
from fedilc.report.clinical_tables import clinical_tables
from fedilc.report.score_tables import Study, few_notes
from fedilc.report.study_tables import study_tables
from fedilc.report.tables import write_tables
from fedilc.storage.files import parse_json, write_atomically
from fedilc.storage.run_identity import command_line
from fedilc.studies.study.assessment import assessment, edge_notes
from fedilc.studies.study.comparators import CHOSEN, NULL, kind_of, pooled_regression
from fedilc.studies.study.data import StudyData
from fedilc.studies.study.declaration import declaration
from fedilc.studies.study.description import description
from fedilc.studies.study.result import Outputs, StudyResult
from fedilc.studies.study.scoring import class_counts
from fedilc.studies.study.sensitivity import sensitivity_facts
from fedilc.studies.study.verdict import CALIBRATION, alarm, deciding_metric, verdict

FILE, PREDICTIONS = "study.json", "predictions.parquet"
FORMAT = 1


def study_facts(
    result: StudyResult, protocol: str | None = None, without: StudyResult | None = None
) -> dict[str, Any]:
    """Return everything that a study found: the content of study.json.

    `protocol` is the digest of the plan that was declared, if there was one; `without` is the result without
    indicators of missing values, if it was asked for and there are some.
    """
    data, plan, metrics = result.plan.data, result.plan, result.metrics
    trained = dict.fromkeys(method for methods in result.scores.values() for method in methods)
    kinds: dict[str, list[str]] = {"federated": [], NULL: [], "alone": [], "pooled": []}
    for method in sorted(trained, key=lambda name: name != result.headline):
        kinds[kind_of(method)].append(method)
    methods = [method for found in kinds.values() for method in found]
    deciding = deciding_metric(result)
    comparisons = {
        metric: result.comparisons(metric, tested=metric == deciding)
        for metric in metrics
        if metric not in CALIBRATION
    }
    facts: dict[str, Any] = {
        "format": FORMAT,
        "name": data.name,
        "loss": data.loss,
        "alarm": alarm(result),
        "verdict": list(verdict(result)),
        "protocol": protocol,
        "deciding_metric": deciding,
        "metrics": list(metrics),
        "higher_is_better": [metric for metric in metrics if metric in HIGHER_IS_BETTER],
        "methods": methods,
        "reference": plan.reference,
        "headline": result.headline,
        "chosen": result.chosen if result.headline == CHOSEN else {},
        "federated": list(result.algorithms),
        "regressions": [name for name in result.algorithms if name == plan.regression],
        "kinds": {method: kind_of(method) for method in methods},
        "references": [method for method in methods if kind_of(method) != "federated"],
        "silos": {site: _silo_facts(result, site) for site in data.silos},
        "held_out": list(plan.held_out),
        "floors": {site: asdict(one.floors) for site, one in result.sites.items()},
        "notes": plan.notes(),
        "command": command_line(),
        "settings": asdict(plan.settings),
        "choose_by": plan.choose_by,
        "choosing_rows": plan.choosing_rows,
        "groups": [list(group) for group in plan.groups],
        "choices": {
            site: {method: asdict(choice) for method, choice in chosen.items()}
            for site, chosen in result.choices.items()
        },
        "means": {
            method: {
                metric: {**asdict(result.mean(method, metric)), "sites": len(result.sites_of(method, metric))}
                for metric in metrics
            }
            for method in methods
        },
        "sites": {
            site: {
                method: {
                    metric: {
                        **asdict(result.interval(site, method, metric)),
                        "seeds": list(scores[metric].seeds),
                    }
                    for metric in metrics
                }
                for method, scores in found.items()
            }
            for site, found in result.scores.items()
        },
        "next_site": {
            method: {metric: asdict(result.next_site(method, metric)) for metric in _at_next_site(result)}
            for method in counted("methods at the next site", methods)
        },
        "next_site_differences": {
            metric: {
                method: asdict(result.next_difference(method, metric))
                for method in result.algorithms
                if method != plan.reference
            }
            for metric in comparisons
        },
        "against": {
            metric: {name: _against(result, name, metric) for name in methods if name != result.headline}
            for metric in comparisons
        },
        "estimates": {
            method: {metric: _estimates(result, method, metric) for metric in _at_next_site(result)}
            for method in methods
        },
        "agreement": {method: found for method, found in result.agreement.items() if found},
        "comparisons": {
            metric: {method: asdict(one) for method, one in found.items()}
            for metric, found in comparisons.items()
            if found
        },
    }
    facts |= description(plan, result.described) | assessment(result)
    if plan.settings.sensitivity:
        facts["sensitivity"] = sensitivity_facts(result, without)
    facts["notes"] += [*few_notes(facts, metrics), *edge_notes(facts["edges"])]
    return facts


def predictions(data: StudyData, outputs_at: Outputs) -> pl.LazyFrame:
    """Return what every method predicts for every held-out example: one row per example, method and seed.

    `output` is a logit (binary), a predicted value (regression), or one column per class number; `patient` is
    a number, if patients have several rows. The frame is lazy, so that it can be written a part at a time: it
    has millions of rows if there are 100,000 examples.
    """
    parts = []
    everyone = data.patients_of(list(outputs_at))
    first = 0
    for site, methods in outputs_at.items():
        y = data.labels[site]
        rows: dict[str, Any] = {"label": y.astype(float)}
        if everyone is not None:
            rows["patient"] = everyone[first : first + len(y)]
        first += len(y)
        for method, per_seed in methods.items():
            for seed, outputs in enumerate(per_seed):
                count = outputs.shape[1]
                names = ["output"] if count == 1 else [f"output {number}" for number in range(count)]
                about = {"site": pl.lit(site), "method": pl.lit(method), "seed": pl.lit(seed)}
                about["row"] = pl.int_range(1, pl.len() + 1, dtype=pl.Int64)
                frame = pl.LazyFrame({**rows, **dict(zip(names, outputs.T, strict=True))})
                parts.append(frame.select(*(value.alias(key) for key, value in about.items()), pl.all()))
    return pl.concat(parts)


def write_study(
    folder: Path, result: StudyResult, protocol: str | None = None, without: StudyResult | None = None
) -> Study:
    """Write study.json, verdict.txt and the tables, and predictions.parquet if rows are here.

    Return the content of study.json.
    """
    study = study_facts(result, protocol, without)
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(folder / FILE, f"{json.dumps(study, indent=1, allow_nan=False)}\n".encode())
        said = [*([f"Alarm: {study['alarm']}"] if study["alarm"] else []), *study["verdict"]]
        said.append(declaration(protocol))
        write_atomically(folder / "verdict.txt", ("\n".join(said) + "\n").encode())
        if result.outputs is not None:
            predictions(result.plan.data, result.outputs).sink_parquet(folder / PREDICTIONS)
        write_atomically(folder / CHECKLIST, checklist(study).encode())
    write_tables(folder, [*study_tables(study), *clinical_tables(study)])
    return study


def read_study(folder: Path) -> Study:
    """Return the content of a folder's study.json."""
    try:
        study = parse_json((folder / FILE).read_text(encoding="utf-8"))
        if study["format"] == FORMAT:
            return dict(study)
        reason = f"its format is {study['format']}"
    except (OSError, ValueError, KeyError, TypeError) as error:
        reason = str(error)
    raise ConfigError(
        f"{folder / FILE} is damaged or of another version ({reason}); run the study again, which keeps the "
        "runs that are done"
    )


def _silo_facts(result: StudyResult, site: str) -> dict[str, Any]:
    """Return the size of a silo as it tells it itself; of one that is not held out, as the study knows it."""
    document = result.sites.get(site)
    if document is not None:
        sizes = document.model_dump(include={"examples", "patients", "classes", "mean", "deviation"})
        return {name: value for name, value in sizes.items() if value is not None}
    y, patients = result.plan.data.labels[site], result.plan.data.patients.get(site)
    about = {} if patients is None else {"patients": len(np.unique(patients))}
    if not has_classes(result.plan.data.loss):
        return {"examples": len(y), **about, "mean": float(np.mean(y)), "deviation": float(np.std(y))}
    return {"examples": len(y), **about, "classes": class_counts(y)}


def _at_next_site(result: StudyResult) -> tuple[str, ...]:
    """Return the scores to expect at the next site: all, and the ratio of observed to expected events."""
    return (*result.metrics, *(["oe_ratio"] if task_of(result.plan.data.loss) == "binary" else []))


def _estimates(result: StudyResult, method: str, metric: str) -> dict[str, dict[str, float]]:
    """Return what random effects are computed from: estimates and variances on the scale of the analysis."""
    found = result.estimates(method, metric)
    return {site: {"estimate": one.value, "variance": one.variance} for site, one in found.items()}


def _against(result: StudyResult, other: str, metric: str) -> dict[str, Any]:
    """Return the difference of the headline from another method, over sites and at the next one."""
    found = result.against(other, metric)
    over = {} if found is None else {**asdict(found.over_sites), "sites": len(found.by_site)}
    if _taken(result, other):
        return {**over, "next_low": None, "next_high": None}
    following = result.next_difference(result.headline, metric, other)
    return {**over, "next_low": following.low, "next_high": following.high}


def _taken(result: StudyResult, other: str) -> bool:
    """Return whether the procedure took this method, or the regression that equals it, at some site.

    The difference is then 0 at these sites, with hardly any variance, and not at others: not a sample of
    normal effects, and random effects would take the zeros for exact knowledge.
    """
    same = result.plan.regression if other == pooled_regression(result.plan.data.loss) else other
    return same in result.chosen.values()
