"""The folder of a campaign: its tables, its pictures, and the numbers from which they can be made again.

campaign.json               the benchmark, the campaign's size in words, and the reduction of Fishr
history.csv                 every round of every run, with five digits: for the curves
summary.json                every metric at the chosen rounds, per seed, with all digits: for the tables
inconsistency-scores.csv    the inconsistency score of every pair of silos, per seed
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping
from itertools import combinations_with_replacement
from pathlib import Path
from typing import Any, cast

from fedilc.errors import ConfigError
from fedilc.evaluation.campaign import BySeed, Campaign, summarise, with_scores
from fedilc.evaluation.inconsistency import CURVATURES, Curvature, Scores, ScoresByCurvature
from fedilc.federation.json_files import parse_json
from fedilc.federation.tensor_files import write_atomically
from fedilc.report.campaign.plots import campaign_pictures, inconsistency_picture
from fedilc.report.campaign.tables import campaign_tables
from fedilc.report.table_formats import TableData, csv_lines, write_tables

FACTS, HISTORIES, SUMMARY, SCORES = "campaign.json", "history.csv", "summary.json", "inconsistency-scores.csv"
_KEPT = ("name", "note", "synthetic", "fishr_reduction")
_HISTORY = (
    *("train_loss", "validation_loss", "validation_accuracy"),
    *("test_loss", "test_accuracy", "test_auroc", "test_auprc"),
)


def write_campaign(folder: Path, campaign: Campaign, scores: ScoresByCurvature) -> list[TableData]:
    """Write tables, pictures, and the numbers that they are made from into a folder; return the tables."""
    scored = with_scores(campaign, scores)
    tables = _draw(folder, scored, scores)
    write_atomically(folder / FACTS, _json({key: getattr(campaign, key) for key in _KEPT}))
    write_atomically(folder / SUMMARY, _json(summarise(scored)))
    write_atomically(folder / HISTORIES, history_csv(campaign).encode())
    if scores:
        write_atomically(folder / SCORES, scores_csv(scores).encode())
    return tables


def remake_campaign(folder: Path) -> list[TableData]:
    """Make tables and pictures again from a campaign's numbers, without its runs; return the tables.

    The numbers stay the same, except that `summary.json` gets the inconsistency scores of
    `inconsistency-scores.csv`.
    """
    campaign, scores = read_campaign(folder)
    tables = _draw(folder, campaign, scores)
    write_atomically(folder / SUMMARY, _json(summarise(campaign)))
    return tables


def _json(value: Mapping[str, Any]) -> bytes:
    return (json.dumps(value, indent=1) + "\n").encode()


def _draw(folder: Path, campaign: Campaign, scores: ScoresByCurvature) -> list[TableData]:
    tables = campaign_tables(campaign)
    for algorithm, found in scores.get("variance", {}).items():
        path = folder / "figures" / f"inconsistency-{algorithm}.png"
        title = f"{campaign.heading} · {algorithm}"
        fewer = len(found.by_seed) < len(campaign.histories[algorithm])
        note = campaign.subtitle + (f"; scores of {len(found.by_seed)} seeds only" if fewer else "")
        inconsistency_picture(path, title, found.silos, found.matrix(), note=note)
    write_tables(folder, tables)
    campaign_pictures(folder / "figures", campaign)
    return tables


def scores_csv(scores: ScoresByCurvature) -> str:
    """Return the score of each pair of silos, per curvature, algorithm and seed, as CSV."""
    rows = (
        (curvature, algorithm, seed, one, other, pairs[one, other])
        for curvature, by_algorithm in scores.items()
        for algorithm, found in by_algorithm.items()
        for seed, pairs in found.by_seed.items()
        for one, other in combinations_with_replacement(found.silos, 2)
    )
    return csv_lines(("curvature", "algorithm", "seed", "silo", "other", "score"), rows)


def history_csv(campaign: Campaign) -> str:
    """Return every round of every run as CSV, with five significant digits and blanks for missing numbers.

    >>> print(history_csv(Campaign("demo", {"fedsgd": {0: [{"round": 1, "train_loss": 1 / 3}]}})))
    algorithm,seed,round,train_loss,validation_loss,validation_accuracy,test_loss,...
    fedsgd,0,1,0.33333,,,,,,
    """
    rows = (
        (algorithm, seed, record["round"], *(_five_digits(record.get(key)) for key in _HISTORY))
        for algorithm, seeds in campaign.histories.items()
        for seed, history in sorted(seeds.items())
        for record in history
    )
    return csv_lines(("algorithm", "seed", "round", *_HISTORY), rows)


def _five_digits(value: float | None) -> str:
    return "" if value is None else f"{value:.5g}"


def read_campaign(folder: Path) -> tuple[Campaign, ScoresByCurvature]:
    """Return the campaign whose files are in `folder`, and its inconsistency scores if it has any."""
    try:
        facts = parse_json((folder / FACTS).read_text())
        summary = parse_json((folder / SUMMARY).read_text())
        histories = _histories((folder / HISTORIES).read_text())
        scores = _scores((folder / SCORES).read_text()) if (folder / SCORES).exists() else {}
        chosen = {name: _by_seed(criteria, sorted(histories[name])) for name, criteria in summary.items()}
        campaign = Campaign(**{key: facts[key] for key in _KEPT}, histories=histories, chosen=chosen)
    except OSError as error:
        raise ConfigError(
            f"{folder} is not the folder of a finished campaign: {error.filename} cannot be read "
            f"({error.strerror}); `fedilc reproduce` writes one"
        ) from error
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        raise ConfigError(
            f"the files of the campaign in {folder} are damaged or do not belong together ({error}); restore "
            "them from a copy, or run the campaign again"
        ) from error
    return with_scores(campaign, scores), scores


def _histories(text: str) -> dict[str, dict[int, list[dict[str, Any]]]]:
    found: dict[str, dict[int, list[dict[str, Any]]]] = {}
    for row in csv.DictReader(io.StringIO(text)):
        numbers = {key: float(row[key]) for key in _HISTORY if row[key]}
        seeds = found.setdefault(row["algorithm"], {})
        seeds.setdefault(int(row["seed"]), []).append({"round": int(row["round"]), **numbers})
    return found


def _by_seed(criteria: Mapping[str, Mapping[str, Any]], seeds: list[int]) -> Mapping[str, BySeed]:
    """Return the numbers by seed; a summary has the values of each metric in the order of the seeds."""
    found: dict[str, dict[int, dict[str, float]]] = {criterion: {} for criterion in criteria}
    for criterion, metrics in criteria.items():
        for metric, summary in metrics.items():
            for seed, value in zip(seeds, summary["seeds"], strict=True):
                if value is not None:
                    found[criterion].setdefault(seed, {})[metric] = value
    return found


def _scores(text: str) -> ScoresByCurvature:
    found: dict[Curvature, dict[str, dict[int, dict[tuple[str, str], float]]]] = {}
    for row in csv.DictReader(io.StringIO(text)):
        if row["curvature"] not in CURVATURES:
            raise ValueError(f"the curvature {row['curvature']!r} is unknown")
        seeds = found.setdefault(cast(Curvature, row["curvature"]), {}).setdefault(row["algorithm"], {})
        pairs = seeds.setdefault(int(row["seed"]), {})
        pairs[row["silo"], row["other"]] = pairs[row["other"], row["silo"]] = float(row["score"])
    return {
        curvature: {name: Scores(by_seed) for name, by_seed in algorithms.items()}
        for curvature, algorithms in found.items()
    }
