"""The files of a study: study.json with every number, the verdict, predictions and tables."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from fedilc.algorithms.loss_name import has_classes
from fedilc.errors import ConfigError
from fedilc.evaluation.scores import HIGHER_IS_BETTER
from fedilc.federation.run_identity import command_line
from fedilc.federation.tensor_files import write_atomically
from fedilc.report.study_tables import compared, references, study_tables, undefined
from fedilc.report.table_formats import TableData, write_tables
from fedilc.studies.study.run import StudyResult
from fedilc.studies.study.verdict import deciding_metric, verdict

FORMAT = 1


def study_facts(result: StudyResult) -> dict[str, Any]:
    """Return everything that a study found, as JSON: the content of study.json."""
    data, plan = result.plan.data, result.plan
    methods = [*plan.settings.algorithms, *references(result)]
    return {
        "format": FORMAT,
        "name": data.name,
        "loss": data.loss,
        "verdict": list(verdict(result)),
        "deciding_metric": deciding_metric(result),
        "metrics": list(result.metrics),
        "higher_is_better": [metric for metric in result.metrics if metric in HIGHER_IS_BETTER],
        "methods": methods,
        "reference": plan.reference,
        "references": references(result),
        "silos": {site: _silo_facts(result, site) for site in data.silos},
        "held_out": list(plan.held_out),
        "notes": [*plan.notes(), *undefined(result)],
        "command": command_line(),
        "settings": asdict(plan.settings),
        "choose_by": plan.choose_by,
        "groups": [list(group) for group in plan.groups],
        "choices": {
            site: {method: asdict(choice) for method, choice in chosen.items()}
            for site, chosen in result.choices.items()
        },
        "means": {m: {k: asdict(result.mean(m, k)) for k in result.metrics} for m in methods},
        "sites": {
            site: {
                method: {
                    metric: {
                        **asdict(result.interval(site, method, metric)),
                        "seeds": [_finite(value) for value in result.by_seed[site][method][metric]],
                    }
                    for metric in result.metrics
                }
                for method in found
            }
            for site, found in result.scores.items()
        },
        "agreement": {method: found for method, found in result.agreement.items() if found},
        "comparisons": {
            metric: {method: asdict(found) for method, found in result.comparisons(metric).items()}
            for metric in compared(result)
        },
    }


def predictions(result: StudyResult) -> pl.DataFrame:
    """Return what every method predicts for every held-out example: one row per example, method and seed.

    `output` is a logit (binary), a predicted value (regression), or one column per class number.
    """
    parts = []
    for site, methods in result.outputs.items():
        y = result.plan.data.labels(site)
        for method, per_seed in methods.items():
            for seed, outputs in enumerate(per_seed):
                names = (
                    ["output"] if outputs.shape[1] == 1 else [f"output {k}" for k in range(outputs.shape[1])]
                )
                columns = {name: outputs[:, place] for place, name in enumerate(names)}
                about = {"site": site, "method": method, "seed": seed}
                frame = pl.DataFrame({"row": np.arange(1, len(y) + 1), "label": y.astype(float), **columns})
                parts.append(frame.select(*(pl.lit(v).alias(k) for k, v in about.items()), pl.all()))
    return pl.concat(parts)


def write_study(folder: Path, result: StudyResult) -> list[TableData]:
    """Write study.json, verdict.txt, predictions.parquet and the tables; return the tables."""
    tables = study_tables(result)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        facts = json.dumps(study_facts(result), indent=1, allow_nan=False)
        write_atomically(folder / "study.json", f"{facts}\n".encode())
        write_atomically(folder / "verdict.txt", ("\n".join(verdict(result)) + "\n").encode())
        predictions(result).write_parquet(folder / "predictions.parquet")
    except OSError as error:
        raise ConfigError(f"{folder} cannot be written: {error.strerror or error}") from error
    write_tables(folder, tables)
    return tables


def _silo_facts(result: StudyResult, site: str) -> dict[str, Any]:
    y = result.plan.data.labels(site)
    if not has_classes(result.plan.data.loss):
        return {"examples": len(y), "mean": float(np.mean(y)), "deviation": float(np.std(y))}
    values, counts = np.unique(y, return_counts=True)
    return {
        "examples": len(y),
        "classes": {str(int(value)): int(count) for value, count in zip(values, counts, strict=True)},
    }


def _finite(value: float) -> float | None:
    return value if np.isfinite(value) else None
