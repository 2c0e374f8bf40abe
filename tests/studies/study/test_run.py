"""Studies: nothing of the held-out site is used, what is done is kept, numbers are those of the models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from hospitals import ONE_CANDIDATE, hospitals, stored_run, study_table
from numpy.typing import NDArray

from fedilc.data import Federation, Silo
from fedilc.errors import FedILCWarning
from fedilc.storage.files import read_tensors
from fedilc.studies.study.comparators import ALONE, POOLED
from fedilc.studies.study.data import StudyArrays, StudyData
from fedilc.studies.study.plan import StudyPlan
from fedilc.studies.study.result import StudyResult
from fedilc.studies.study.run import run_study
from fedilc.studies.study.settings import StudySettings
from fedilc.studies.study.verdict import verdict
from fedilc.studies.worker_pool import Work

SMALL = {
    **ONE_CANDIDATE,
    "algorithms": ("fedavg", "fishr-inter-geo"),
    "seeds": 1,
    "rounds": 6,
    "learning_rates": (0.1,),
    "local_learning_rates": (0.5,),
    "penalty_weights": (1.0,),
    "hidden": (4,),
}


GRID = {"learning_rates": (0.01, 0.1), "local_learning_rates": (0.1, 0.5)}


def studied(data: StudyData, folder: Path, **changes: object) -> StudyResult:
    plan = StudyPlan(data, StudySettings(**(SMALL | changes)))
    return run_study(plan, folder)


def weights(result: StudyResult, folder: Path, site: str, method: str) -> dict[str, torch.Tensor]:
    task = result.plan.final(method, site, result.choices[site][method])[0]
    tensors, _ = read_tensors(stored_run(folder, task, result.plan.data))
    return {name: tensor for name, tensor in tensors.items() if name.startswith("weights.")}


@pytest.mark.parametrize("choose_by", ["silo", "validation"])
def test_poisoned_labels_of_the_held_out_site_change_no_choice_and_no_bit_of_the_weights(
    tmp_path: Path, choose_by: str
) -> None:
    frame = hospitals(5)
    turned = pl.col("died").replace({"yes": "no", "no": "yes"})
    poisoned = frame.with_columns(
        pl.when(pl.col("hospital") == "H2").then(turned).otherwise(pl.col("died")).alias("died")
    )
    results = {}
    for name, table in (("clean", frame), ("poisoned", poisoned)):
        data = study_table(tmp_path, table, name)
        results[name] = studied(data, tmp_path / name, hold_out=("H2",), choose_by=choose_by, **GRID)
    clean, dirty = results["clean"], results["poisoned"]
    assert clean.choices == dirty.choices
    assert clean.chosen == dirty.chosen
    for method in ("fedavg", "fishr-inter-geo", "logistic", POOLED, "pooled logistic", "pooled trees"):
        ours = weights(clean, tmp_path / "clean", "H2", method)
        theirs = weights(dirty, tmp_path / "poisoned", "H2", method)
        assert all(torch.equal(ours[name], theirs[name]) for name in ours)
        assert np.array_equal(clean.outputs["H2"][method], dirty.outputs["H2"][method])
        one, other = (found.interval("H2", method, "auroc").value for found in (clean, dirty))
        assert one == pytest.approx(1 - other)
    assert np.array_equal(clean.outputs["H2"]["null"], dirty.outputs["H2"]["null"])


def test_poisoned_features_of_the_held_out_site_change_no_bit_of_the_weights(tmp_path: Path) -> None:
    frame = hospitals(4)
    there = pl.col("hospital") == "H2"
    poisoned = frame.with_columns(
        pl.when(there).then(pl.lit("1e6")).otherwise(pl.col("age")).alias("age"),
        pl.when(there).then(pl.lit("unheard of")).otherwise(pl.col("sex")).alias("sex"),
        pl.when(there).then(pl.lit(-9.0)).otherwise(pl.col("lactate")).alias("lactate"),
        pl.when(there).then(pl.lit("2020-01-01")).alias("visit"),
    )
    results = {}
    for name, table in (("clean", frame), ("poisoned", poisoned)):
        data = study_table(tmp_path, table, name)
        results[name] = studied(data, tmp_path / name, hold_out=("H2",))
    clean, dirty = results["clean"], results["poisoned"]
    assert clean.choices == dirty.choices
    assert clean.chosen == dirty.chosen
    ours, theirs = (weights(found, tmp_path / name, "H2", "fedavg") for name, found in results.items())
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert not np.array_equal(clean.outputs["H2"]["fedavg"], dirty.outputs["H2"]["fedavg"])


def test_a_study_that_was_done_is_not_done_again_and_more_seeds_are_added(tmp_path: Path) -> None:
    data = study_table(tmp_path, hospitals(4))
    first = studied(data, tmp_path / "study", references=False)
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "study" / "runs").iterdir()}
    again = studied(data, tmp_path / "study", references=False, seeds=2)
    after = {path: path.stat().st_mtime_ns for path in (tmp_path / "study" / "runs").iterdir()}
    assert before.items() <= after.items()
    assert len(after) - len(before) == 4 * 2  # a seed more for each held-out site and method
    assert again.scores["H0"]["fedavg"]["auroc"].seeds[0] == first.scores["H0"]["fedavg"]["auroc"].seeds[0]
    damaged = min(before)
    damaged.write_bytes(damaged.read_bytes()[:-7])
    with pytest.warns(FedILCWarning, match=r"is damaged .*; the run is done again"):
        repaired = studied(data, tmp_path / "study", references=False)
    assert repaired.choices == first.choices


def test_results_that_were_swapped_are_computed_again_with_a_word(tmp_path: Path) -> None:
    data = study_table(tmp_path, hospitals(4))
    first = studied(data, tmp_path / "study", references=False)
    files = sorted((tmp_path / "study" / "runs").iterdir())
    contents = [path.read_bytes() for path in files]
    for path, other in zip(files, [*contents[1:], contents[0]], strict=True):
        path.write_bytes(other)
    with pytest.warns(FedILCWarning, match="holds the result of another run of a study") as caught:
        again = studied(data, tmp_path / "study", references=False)
    assert len([one for one in caught if "another run" in str(one.message)]) == len(files)
    assert again.sites == first.sites
    assert again.choices == first.choices


def area_of_pairs(y: NDArray[Any], scores: NDArray[Any], models: NDArray[Any] | None) -> float:
    """Return the share of pairs in order; of a site alone those whose two examples one model predicts."""
    won = [
        (scores[event] > scores[other]) + (scores[event] == scores[other]) / 2
        for event in np.flatnonzero(y == 1)
        for other in np.flatnonzero(y == 0)
        if models is None or models[event] == models[other]
    ]
    return float(np.mean(won))


def test_scores_are_those_of_the_predictions_and_beside_them_are_the_two_ends_of_the_scale(
    tmp_path: Path,
) -> None:
    data = study_table(tmp_path, hospitals(4, rows=60))
    result = studied(data, tmp_path / "study", seeds=2, algorithms=("fedsgd",), rounds=10)
    for site in data.silos:
        comparators = {"logistic", "null", ALONE, "alone logistic", POOLED, "pooled logistic", "pooled trees"}
        assert set(result.scores[site]) == {"chosen", "fedsgd", *comparators}
        for method, outputs in result.outputs[site].items():
            models = result.plan.models_at([site], method)
            areas = [area_of_pairs(data.labels[site], one[:, 0], models) for one in outputs]
            assert result.scores[site][method]["auroc"].seeds == pytest.approx(areas)
            assert result.interval(site, method, "auroc").value == pytest.approx(np.mean(areas))
    by_site = [result.interval(site, "fedsgd", "auroc").value for site in data.silos]
    assert result.mean("fedsgd", "auroc").value == pytest.approx(np.mean(by_site))
    assert result.mean("fedsgd", "auroc").value > 0.7  # age and lactate tell


def test_progress_counts_every_run_and_knows_the_time_left(tmp_path: Path) -> None:
    seen: list[tuple[int, int, float | None]] = []

    def show(work: Work) -> None:
        seen.append((work.done(), work.total(), work.seconds_left()))

    data = study_table(tmp_path, hospitals(4))
    plan = StudyPlan(data, StudySettings(**(SMALL | {"rounds": 2, "algorithms": ("fedsgd",)})))
    run_study(plan, tmp_path / "study", 1, show)
    assert [done for done, _, _ in seen] == sorted(done for done, _, _ in seen)
    assert seen[-1] == (seen[0][1], seen[0][1], 0.0)
    assert any(left is not None and left > 0 for _, _, left in seen)


def test_a_site_with_one_class_has_no_area_and_is_said_and_the_others_decide(tmp_path: Path) -> None:
    frame = hospitals(4).with_columns(
        pl.when(pl.col("hospital") == "H3").then(pl.lit("no")).otherwise(pl.col("died")).alias("died")
    )
    data = study_table(tmp_path, frame)
    result = studied(data, tmp_path / "study")
    assert result.interval("H3", "fedavg", "auroc").value is None
    assert result.interval("H3", "fedavg", "log_loss").value is not None
    assert ALONE not in result.scores["H3"]
    assert result.sites_with("auroc") == ["H0", "H1", "H2"]
    assert len([note for note in result.plan.notes() if "H3" in note and "one class only" in note]) == 1
    assert "over 3 of 4 held-out sites" in verdict(result)[1]


def test_a_site_too_small_for_a_model_of_its_own_leaves_the_mean_of_the_others(tmp_path: Path) -> None:
    frame = pl.concat([hospitals(4), hospitals(1, rows=5).with_columns(pl.lit("tiny").alias("hospital"))])
    result = studied(study_table(tmp_path, frame), tmp_path / "study", algorithms=("fedsgd", "geometric"))
    assert ALONE not in result.scores["tiny"]
    own = [result.interval(site, ALONE, "auroc").value for site in ("H0", "H1", "H2", "H3")]
    assert result.mean(ALONE, "auroc").value == pytest.approx(np.mean(own))
    which = verdict(result)[2]
    assert f"own data {np.mean(own):.3f};" in which
    assert "; it is not estimable at tiny (2 events, fewer than 10); " in which


def test_two_sites_are_studied_and_said_to_be_too_few(tmp_path: Path) -> None:
    data = study_table(tmp_path, hospitals(2))
    result = studied(data, tmp_path / "study")
    assert any("2 sites are few" in note for note in result.plan.notes())
    assert "no test over sites is possible" in verdict(result)[3]
    assert "cannot show" in verdict(result)[4]


def test_classes_of_a_federation_of_arrays_are_studied_by_accuracy(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    silos = []
    for name in ("a", "b", "c", "d"):
        y = random.integers(0, 3, 45)
        x = np.eye(3)[y] + random.normal(0, 0.5, (45, 3))
        silos.append(Silo(name, torch.tensor(x).float(), torch.tensor(y)))
    data = StudyArrays.of(Federation("three", silos, loss="multiclass"))
    result = studied(data, tmp_path / "study", algorithms=("fedavg",), references=False)
    assert result.metrics == ("accuracy", "log_loss", "auroc")
    assert result.mean("fedavg", "accuracy").value > 0.5  # chance is a third
    assert "accuracy" in verdict(result)[1]


def test_quantities_are_studied_in_their_own_units(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    silos = []
    for name in ("a", "b", "c", "d"):
        x = random.normal(0, 1, (40, 2))
        y = 5000 + 300 * x[:, 0] + random.normal(0, 30, 40)
        silos.append(Silo(name, torch.tensor(x).float(), torch.tensor(y).float()))
    data = StudyArrays.of(Federation("grams", silos, loss="regression"))
    result = studied(data, tmp_path / "study", algorithms=("fedavg",), hold_out=("b",))
    assert result.metrics == ("rmse", "mae", "r2")
    assert result.mean("fedavg", "rmse").value < 200
    assert result.mean(ALONE, "rmse").value < 400  # 5000 in other units
    assert "RMSE" in verdict(result)[1]


@pytest.mark.slow
def test_two_workers_give_the_bits_of_one_process(tmp_path: Path) -> None:
    data = study_table(tmp_path, hospitals(4))
    small = SMALL | {"algorithms": ("fedsgd",), "hold_out": ("H1",), "references": False}
    plan = StudyPlan(data, StudySettings(**small))
    one, two = (run_study(plan, tmp_path / f"jobs-{jobs}", jobs) for jobs in (1, 2))
    assert one.choices == two.choices
    assert np.array_equal(one.outputs["H1"]["fedsgd"], two.outputs["H1"]["fedsgd"])


@pytest.mark.parametrize("heavy", [True, False])
def test_heavy_tails_make_a_study_choose_robust_scaling_and_normal_columns_do_not(
    heavy: bool, tmp_path: Path
) -> None:
    random = np.random.default_rng(3)
    parts = []
    for site in range(4):
        x = random.normal(size=(150, 2))
        died = random.random(150) < 1 / (1 + np.exp(-1.5 * x[:, 0]))
        far = np.where(random.random(150) < 0.02, 1e4, 1.0) if heavy else 1.0
        parts.append(
            pl.DataFrame(
                {"lactate": x[:, 0] * far, "other": x[:, 1], "died": np.where(died, "yes", "no")}
            ).with_columns(pl.lit(f"H{site}").alias("hospital"))
        )
    data = study_table(tmp_path, pl.concat(parts))
    few = {"algorithms": ("logistic",), "references": False, "weight_decays": (0.001, 0.01)}
    result = studied(data, tmp_path / "study", **few, scalings=("moments", "robust"))
    moments = studied(data, tmp_path / "study", **few)
    scalings = [choices["logistic"].options["scaling"] for choices in result.choices.values()]
    areas = [found.mean("logistic", "auroc").value for found in (result, moments)]
    if heavy:
        assert scalings == ["robust"] * 4
        assert areas[0] > areas[1] + 0.05
    else:
        assert abs(areas[0] - areas[1]) < 0.005
        assert all(
            choices["logistic"].loss > other["logistic"].loss - 0.002
            for choices, other in zip(result.choices.values(), moments.choices.values(), strict=True)
        )
