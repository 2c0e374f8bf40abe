"""A campaign read back from the files it left, whose runs may be gone.

campaign.json               the benchmark, the campaign's size in words, and how Fishr was reduced
history.csv                 every round of every run, in five digits: for the curves
summary.json                every metric at the chosen rounds, per seed, in full: for the tables
inconsistency-scores.csv    the inconsistency score of every pair of silos, per seed
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping
from dataclasses import replace
from itertools import combinations_with_replacement
from pathlib import Path
from typing import Any, cast

from fedilc.errors import ConfigError
from fedilc.evaluation.inconsistency import CURVATURES, Curvature, Scores
from fedilc.evaluation.summary import HISTORY, BySeed, Campaign

FACTS, HISTORIES, SUMMARY, SCORES = "campaign.json", "history.csv", "summary.json", "inconsistency-scores.csv"
_KEPT = ("name", "note", "synthetic", "fishr_reduction")

ScoresByCurvature = Mapping[Curvature, Mapping[str, Scores]]


def campaign_json(campaign: Campaign) -> str:
    """Return what tables say of a campaign beside its numbers, as JSON."""
    return json.dumps({key: getattr(campaign, key) for key in _KEPT}, indent=1) + "\n"


def scores_csv(scores: ScoresByCurvature) -> str:
    """Return the score of each pair of silos, per curvature, algorithm and seed, as CSV."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(("curvature", "algorithm", "seed", "silo", "other", "score"))
    for curvature, by_algorithm in scores.items():
        for algorithm, found in by_algorithm.items():
            for seed, pairs in found.by_seed.items():
                for one, other in combinations_with_replacement(found.silos, 2):
                    writer.writerow((curvature, algorithm, seed, one, other, pairs[one, other]))
    return text.getvalue()


def with_scores(campaign: Campaign, scores: ScoresByCurvature) -> Campaign:
    """Return the campaign with each seed's inconsistency scores among the numbers of its last round."""
    at_last: dict[str, dict[int, dict[str, float]]] = {}
    for curvature, by_algorithm in scores.items():
        for algorithm, found in by_algorithm.items():
            for seed, metrics in found.metrics(curvature).items():
                at_last.setdefault(algorithm, {}).setdefault(seed, {}).update(metrics)
    return replace(campaign, at_last=at_last)


def read_campaign(folder: Path) -> tuple[Campaign, ScoresByCurvature]:
    """Return the campaign that `folder` holds the files of, and its scores where they were kept."""
    try:
        facts = json.loads((folder / FACTS).read_text())
        summary = json.loads((folder / SUMMARY).read_text())
        histories = _histories((folder / HISTORIES).read_text())
        scores = _scores((folder / SCORES).read_text()) if (folder / SCORES).exists() else {}
        chosen = {name: _by_seed(criteria, sorted(histories[name])) for name, criteria in summary.items()}
        campaign = Campaign(**{key: facts[key] for key in _KEPT}, histories=histories, chosen=chosen)
    except OSError as error:
        raise ConfigError(
            f"{folder} is not the folder of a finished campaign: {error.filename} cannot be read "
            f"({error.strerror}); `fedilc reproduce` makes one"
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
        numbers = {key: float(row[key]) for key in HISTORY if row[key]}
        seeds = found.setdefault(row["algorithm"], {})
        seeds.setdefault(int(row["seed"]), []).append({"round": int(row["round"]), **numbers})
    return found


def _by_seed(criteria: Mapping[str, Mapping[str, Any]], seeds: list[int]) -> dict[str, BySeed]:
    """Turn the values of each metric, in the order of the seeds, into numbers by seed."""
    found: dict[str, BySeed] = {}
    for criterion, metrics in criteria.items():
        by_seed: dict[int, dict[str, float]] = {}
        for metric, summary in metrics.items():
            for seed, value in zip(seeds, summary["seeds"], strict=True):
                if value is not None:
                    by_seed.setdefault(seed, {})[metric] = value
        found[criterion] = by_seed
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
