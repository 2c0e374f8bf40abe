"""The paper's benchmarks as campaigns: which runs, what is said of their size, what is written."""

from __future__ import annotations

import csv
import json
import math
import shutil
from pathlib import Path

import pytest
from command import Refusal, fedilc

from fedilc import algorithms
from fedilc.config import read_experiment, shipped_experiments
from fedilc.errors import ConfigError
from fedilc.evaluation import select
from fedilc.evaluation.campaign import Campaign
from fedilc.report.campaign.folder import write_campaign
from fedilc.studies.jobs import run_jobs
from fedilc.studies.reproduce import BENCHMARKS, Plan, score
from fedilc.studies.sweep import Sweep

pytestmark = pytest.mark.slow

RESULTS = Path(__file__).parents[2] / "results"
TINY = ("rounds=2", "model.hidden=[4]", "data.flips=[0.2, 0.4]", "environment_size=100")


@pytest.mark.parametrize("benchmark_", BENCHMARKS)
def test_a_benchmark_has_every_algorithm_over_five_seeds_with_the_sum_of_fishr(benchmark_: str) -> None:
    plan = Plan.of(benchmark_, [], 5, [], None)
    jobs = plan.jobs()
    assert [(job.settings.seed, job.settings.algorithm) for job in jobs] == [
        (seed, name) for seed in range(5) for name in algorithms.PAPER
    ]
    assert {job.settings.fishr_reduction for job in jobs} == {"sum"}
    assert len({job.folder for job in jobs}) == 5 * len(algorithms.PAPER)
    assert plan.out == Path("results") / benchmark_
    assert plan.note == f"5 seeds, {jobs[0].settings.rounds} rounds"


def test_the_papers_settings_are_those_of_the_design() -> None:
    settings = Plan.of("color-mnist", ["fedsgd"], 5, [], None).job("fedsgd", 0).settings
    assert (settings.learning_rate, settings.weight_decay, settings.penalty_weight) == (3e-4, 0.01, 15.0)
    assert (settings.rounds, settings.environment_size) == (301, 32)
    settings = Plan.of("rotated-cifar10", ["fedsgd"], 5, [], None).job("fedsgd", 0).settings
    assert (settings.learning_rate, settings.weight_decay, settings.penalty_weight) == (1e-4, 0.001, 1.0)
    assert (settings.rounds, settings.environment_size) == (301, 64)
    settings = Plan.of("eicu", ["fedsgd"], 5, [], None).job("fedsgd", 0).settings
    assert (settings.learning_rate, settings.weight_decay, settings.penalty_weight) == (2e-4, 0.001, 0.1)
    assert settings.environment_size == 64


@pytest.mark.parametrize("benchmark_", [*BENCHMARKS, "color-digits"])
def test_run_sweep_and_reproduce_weigh_the_penalty_alike_as_the_experiments_file_says(
    benchmark_: str,
) -> None:
    ours, _ = read_experiment(benchmark_)
    assert "fishr_reduction = " in shipped_experiments()[benchmark_].read_text()
    campaign = Plan.of(benchmark_, ["fedcurv"], 1, [], None).job("fedcurv", 0).settings
    sweep = Sweep.of(benchmark_, "fedcurv", [15.0], 1, [], None)
    assert campaign.fishr_reduction == sweep.settings.fishr_reduction == ours.fishr_reduction
    assert f'fishr_reduction="{ours.fishr_reduction}"' in sweep.note


def test_the_papers_rule_for_the_oracle_holds_in_a_campaign_alone() -> None:
    rounds = [{"round": n, "test_loss": loss} for n, loss in enumerate([0.1, 0.5, 0.5, 0.5, 0.5, 0.4], 1)]
    assert Campaign("demo", {"fedsgd": {0: rounds}}).values("fedsgd", "oracle", "round") == {0: 6}
    assert select(rounds, "oracle")["round"] == 1


@pytest.mark.parametrize("benchmark_", sorted({path.parent.name for path in RESULTS.glob("*/summary.json")}))
def test_the_committed_oracle_rounds_are_those_of_the_papers_rule(benchmark_: str) -> None:
    folder = RESULTS / benchmark_
    summary = json.loads((folder / "summary.json").read_text())
    histories: dict[str, dict[int, list[dict[str, float]]]] = {}
    for row in csv.DictReader((folder / "history.csv").open()):
        loss = {"test_loss": float(row["test_loss"])} if row["test_loss"] else {}
        rounds = histories.setdefault(row["algorithm"], {}).setdefault(int(row["seed"]), [])
        rounds.append({"round": int(row["round"]), **loss})
    campaign = Campaign(benchmark_, histories)
    for algorithm, criteria in summary.items():
        losses = list(campaign.values(algorithm, "oracle", "test_loss").values())
        assert losses == pytest.approx(criteria["oracle"]["test_loss"]["seeds"], rel=1e-4)


def test_a_smaller_campaign_says_in_what_it_is_smaller() -> None:
    changes = ["rounds=40", "data.subset=0.2", "evaluate_every=10", "environment_size=1"]
    plan = Plan.of("color-mnist", ["fedsgd"], 1, changes, Path("elsewhere"))
    assert plan.note == (
        "1 seed of the paper's 5, 40 rounds of 301, 20 % of the training and validation examples, "
        "evaluated every 10 rounds, environment_size=1"
    )


def test_unknown_names_are_refused_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match="benchmark 'color-mnits' is unknown; did you mean 'color-mnist'"):
        Plan.of("color-mnits", [], 5, [], None)
    with pytest.raises(ConfigError, match="'fedsdg' is unknown; did you mean 'fedsgd'"):
        Plan.of("color-mnist", ["fedsdg"], 5, [], None)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Plan:
    out = tmp_path_factory.mktemp("campaign")
    plan = Plan.of("color-digits", ["fedsgd", "fishr-intra-geo"], 2, TINY, out)
    run_jobs(plan.jobs(), 2)
    write_campaign(plan.out, plan.campaign(), score(plan))
    return plan


def test_a_campaign_leaves_tables_pictures_summary_and_history(finished: Plan) -> None:
    names = {path.stem for path in (finished.out / "tables").iterdir()}
    assert {"ood-loss", "ood-accuracy", "ood-aucroc", "ood-aucroc-thresholded", "inconsistency"} <= names
    markdown, latex = (finished.out / f"tables.{end}" for end in ("md", "tex"))
    assert "2 seeds, 2 rounds of 150" in markdown.read_text()
    assert r"\toprule" in latex.read_text()
    assert len((finished.out / "history.csv").read_text().splitlines()) == 1 + 2 * 2 * 2
    figures = {path.name for path in (finished.out / "figures").iterdir()}
    assert {"curves.png", "ood-loss.png", "inconsistency-fedsgd.png"} <= figures


def test_the_summary_has_the_mean_and_deviation_of_the_chosen_rounds(finished: Plan) -> None:
    summary = json.loads((finished.out / "summary.json").read_text())
    last = []
    for seed in range(2):
        lines = (finished.job("fedsgd", seed).folder / "history.jsonl").read_text().splitlines()
        last.append(json.loads(lines[-1])["test_loss"])
    found = summary["fedsgd"]["last"]["test_loss"]
    assert found["seeds"] == last
    assert found["mean"] == pytest.approx(sum(last) / 2)
    assert found["std"] == pytest.approx(abs(last[0] - last[1]) / math.sqrt(2))


def test_every_pair_of_silos_is_scored_at_the_last_weights(finished: Plan) -> None:
    for scores in score(finished).values():
        assert set(scores) == {"fedsgd", "fishr-intra-geo"}
        assert scores["fedsgd"].silos == ["flip-0.20", "flip-0.40"]
        matrix = scores["fedsgd"].matrix()
        assert matrix[0][0] == pytest.approx(1.0)
        assert matrix[0][1] == pytest.approx(matrix[1][0])
        assert matrix[0][1] > 1.0


def test_the_scores_of_every_seed_are_kept_and_summarised(finished: Plan) -> None:
    last = json.loads((finished.out / "summary.json").read_text())["fedsgd"]["last"]
    lines = list(csv.DictReader((finished.out / "inconsistency-scores.csv").open()))
    for curvature in ("variance", "hessian"):
        kept = {
            int(line["seed"]): float(line["score"])
            for line in lines
            if line["algorithm"] == "fedsgd"
            and line["curvature"] == curvature
            and line["silo"] != line["other"]
        }
        assert last[f"inconsistency_{curvature}"]["seeds"] == pytest.approx([kept[0], kept[1]])
    headings = (finished.out / "tables" / "inconsistency.csv").read_text().splitlines()[0]
    assert "C_e, typical, mean" in headings
    assert "Hessian, typical, mean" in headings


def test_a_run_that_is_not_finished_has_no_score(finished: Plan) -> None:
    longer = Plan.of("color-digits", finished.algorithms, 2, (*TINY, "rounds=3"), finished.out)
    assert score(longer) == {}


def test_tables_and_pictures_are_made_again_from_the_numbers_where_the_runs_are_gone(
    finished: Plan, tmp_path: Path
) -> None:
    copy = tmp_path / "campaign"
    shutil.copytree(finished.out, copy, ignore=shutil.ignore_patterns("runs", "tables*", "figures"))
    printed = fedilc("report", copy)
    assert "OOD test loss (lower is better)" in printed
    made = {path.relative_to(finished.out) for path in finished.out.rglob("*") if path.is_file()}
    made = {path for path in made if "runs" not in path.parts}
    assert {path.relative_to(copy) for path in copy.rglob("*") if path.is_file()} == made
    for path in made:
        if path.suffix != ".png":
            assert (copy / path).read_text() == (finished.out / path).read_text()


@pytest.mark.parametrize(
    ("file", "text", "sentence"),
    [
        ("summary.json", None, "is not the folder of a finished campaign"),
        ("summary.json", "[1", "damaged or do not belong together"),
        ("history.csv", "algorithm,seed,round\nfedsgd,0,1\n", "damaged or do not belong together"),
        ("inconsistency-scores.csv", "curvature\nflat\n", "the curvature 'flat' is unknown"),
    ],
)
def test_a_campaign_whose_files_are_damaged_is_one_sentence(
    finished: Plan, tmp_path: Path, refusal: Refusal, file: str, text: str | None, sentence: str
) -> None:
    copy = tmp_path / "campaign"
    shutil.copytree(finished.out, copy, ignore=shutil.ignore_patterns("runs"))
    (copy / file).unlink()
    if text is not None:
        (copy / file).write_text(text)
    assert sentence in refusal("report", copy)
