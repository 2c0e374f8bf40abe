"""Inconsistency scores for a campaign whose own runs are gone, from the runs of a re-run.

`python -m benchmarks.rescore RERUN results/color-mnist ALGORITHM ...` scores the finished runs in RERUN/runs,
writes those of the seeds that all the algorithms have into the campaign's folder, and makes its tables again.
"""

from __future__ import annotations

import sys
from pathlib import Path

from fedilc.evaluation.inconsistency import Scores, ScoresByCurvature
from fedilc.paper.campaign_folder import SCORES, read_campaign, remake_campaign, scores_csv
from fedilc.paper.reproduce import Plan, score
from fedilc.storage.run_folder import RunFolder


def whole_seeds(scores: ScoresByCurvature) -> ScoresByCurvature:
    """Return the scores of those seeds that every algorithm has, so that means are of the same seeds."""
    every = [set(found.by_seed) for by_algorithm in scores.values() for found in by_algorithm.values()]
    seeds = sorted(set.intersection(*every))
    return {
        curvature: {
            name: Scores({seed: found.by_seed[seed] for seed in seeds})
            for name, found in by_algorithm.items()
        }
        for curvature, by_algorithm in scores.items()
    }


def main(rerun: Path, folder: Path, *algorithms: str) -> None:
    """Score, write and make again."""
    campaign, _ = read_campaign(folder)
    first = next(rerun.glob(f"runs/{algorithms[0]}/seed-*"))
    settings = RunFolder(first).settings()
    changes = [f"rounds={settings['rounds']}", f"evaluate_every={settings['evaluate_every']}"]
    seeds = len(campaign.histories[algorithms[0]])
    scores = score(Plan.of(campaign.name, algorithms, seeds, changes, rerun))
    (folder / SCORES).write_text(scores_csv(whole_seeds(scores)))
    remake_campaign(folder)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), *sys.argv[3:])
