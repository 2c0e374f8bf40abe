"""Comparators: a constant, regressions and trees, and the procedure that chooses among federated methods."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch
from hospitals import ONE_CANDIDATE, hospitals, stored_run, study_table
from hypothesis import given
from hypothesis import strategies as st
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.metrics import log_loss
from torch import nn

from fedilc.data import Federation, Silo
from fedilc.errors import ConfigError
from fedilc.storage.files import read_tensors
from fedilc.studies.study import plan as planning
from fedilc.studies.study.choice import Choice, chosen_method
from fedilc.studies.study.comparators import Estimator, null_outputs
from fedilc.studies.study.data import StudyArrays, StudyData
from fedilc.studies.study.fits import build_network
from fedilc.studies.study.plan import StudyPlan
from fedilc.studies.study.result import StudyResult
from fedilc.studies.study.run import run_study
from fedilc.studies.study.settings import StudySettings
from fedilc.studies.study.tasks import AloneRegressionTask, RunTask

SMALL = {
    **ONE_CANDIDATE,
    "algorithms": ("fedsgd", "geometric"),
    "seeds": 2,
    "rounds": 4,
    "learning_rates": (0.1,),
    "hidden": (4,),
    "weight_decays": (0.01, 0.1),
}


def studied(data: StudyData, folder: Path, **changes: object) -> StudyResult:
    return run_study(StudyPlan(data, StudySettings(**(SMALL | changes))), folder)


def quantities(sites: int = 4) -> StudyArrays:
    random = np.random.default_rng(0)
    silos = []
    for number in range(sites):
        x = random.normal(0, 1, (40, 2))
        y = 5000 + 300 * x[:, 0] + random.normal(0, 30, 40)
        silos.append(Silo(f"s{number}", torch.tensor(x).float(), torch.tensor(y).float()))
    return StudyArrays.of(Federation("grams", silos, loss="regression"))


def classes(sites: int = 4) -> StudyArrays:
    random = np.random.default_rng(0)
    silos = []
    for number in range(sites):
        y = random.integers(0, 3, 60)
        x = np.eye(3)[y] + random.normal(0, 0.5, (60, 3))
        silos.append(Silo(f"s{number}", torch.tensor(x).float(), torch.tensor(y)))
    return StudyArrays.of(Federation("three", silos, loss="multiclass"))


@given(st.lists(st.integers(0, 1), min_size=1, max_size=30), st.lists(st.integers(0, 1), min_size=1))
def test_the_null_predicts_the_share_of_events_at_the_training_sites(one: list[int], two: list[int]) -> None:
    events, n = sum(one + two), len(one + two)
    (logit,) = null_outputs("binary", 1, [np.array(one), np.array(two)], 1)[0]
    if 0 < events < n:
        assert 1 / (1 + np.exp(-logit)) == pytest.approx(events / n)
    else:
        assert np.isfinite(logit)
        assert (logit > 0) == (events > 0)


def test_the_scores_of_the_null_are_those_of_the_closed_form(tmp_path: Path) -> None:
    data = study_table(tmp_path, hospitals(4, rows=60))
    result = studied(data, tmp_path / "study", hold_out=("H1",))
    training = np.concatenate([y for site, y in data.labels.items() if site != "H1"])
    p, q = training.mean(), data.labels["H1"].mean()
    scores = {name: one.value for name, one in result.scores["H1"]["null"].items()}
    assert scores["log_loss"] == pytest.approx(-q * np.log(p) - (1 - q) * np.log(1 - p))
    assert scores["brier"] == pytest.approx(q * (1 - p) ** 2 + (1 - q) * p**2)
    assert scores["auroc"] == 0.5
    assert scores["auprc"] == pytest.approx(q)
    assert scores["calibration_intercept"] == pytest.approx(np.log(q / (1 - q)) - np.log(p / (1 - p)))
    assert np.isnan(scores["calibration_slope"])
    area = result.interval("H1", "null", "auroc")
    assert (area.value, area.low, area.high) == (0.5, None, None)


def test_the_null_of_quantities_is_their_mean_and_of_classes_their_frequencies() -> None:
    assert null_outputs("regression", 1, [np.array([1.0, 3.0]), np.array([8.0])], 2).tolist() == [
        [4.0],
        [4.0],
    ]
    (row,) = null_outputs("multiclass", 4, [np.array([0, 0, 1, 2])], 1)
    assert np.exp(row) == pytest.approx([0.5, 0.25, 0.25, 0.125])


def stored(result: StudyResult, folder: Path, site: str, method: str) -> dict[str, np.ndarray]:
    task = result.plan.final(method, site, result.choices[site][method])[0]
    tensors, _ = read_tensors(stored_run(folder, task, result.plan.data))
    return {name.removeprefix("weights."): tensor.double().numpy() for name, tensor in tensors.items()}


def pooled(data: StudyData, site: str) -> tuple[np.ndarray, np.ndarray]:
    training = [name for name in data.silos if name != site]
    x = torch.cat([data.inputs(training, name) for name in training]).double().numpy()
    return x, np.concatenate([data.labels[name] for name in training])


def test_federated_and_pooled_logistic_regression_are_the_same_and_those_of_scikit_learn(
    tmp_path: Path,
) -> None:
    data = study_table(tmp_path, hospitals(4, rows=60))
    result = studied(data, tmp_path / "study", hold_out=("H1",))
    x, y = pooled(data, "H1")
    ridge = result.choices["H1"]["logistic"].options["weight_decay"]
    assert result.choices["H1"]["pooled logistic"].options["weight_decay"] == ridge
    expected = LogisticRegression(C=1 / (len(x) * ridge), tol=1e-12, max_iter=10_000).fit(x, y)
    ours = stored(result, tmp_path / "study", "H1", "logistic")
    theirs = stored(result, tmp_path / "study", "H1", "pooled logistic")
    weights = {tuple(values.shape): values for name, values in ours.items() if name != "outputs"}
    assert weights[1, x.shape[1]] == pytest.approx(theirs["coefficients"], abs=1e-8)
    assert weights[1,] == pytest.approx(theirs["intercept"], abs=1e-8)
    assert theirs["coefficients"] == pytest.approx(expected.coef_, abs=1e-5)  # which stops by its gradient
    assert result.outputs["H1"]["logistic"][0] == pytest.approx(
        result.outputs["H1"]["pooled logistic"][0], abs=1e-7
    )
    assert (
        result.scores["H1"]["logistic"]["auroc"].seeds[0] == result.scores["H1"]["logistic"]["auroc"].seeds[1]
    )


def test_ridge_regression_of_quantities_is_that_of_scikit_learn_in_their_units(tmp_path: Path) -> None:
    data = quantities()
    result = studied(data, tmp_path / "study", hold_out=("s2",))
    x, y = pooled(data, "s2")
    scale, mean = y.std(), y.mean()
    ridge = result.choices["s2"]["ridge"].options["weight_decay"]
    model = Ridge(alpha=len(x) * ridge).fit(x, (y - mean) / scale)
    expected = model.predict(data.x["s2"].double().numpy()) * scale + mean
    for method in ("ridge", "pooled ridge"):
        assert result.outputs["s2"][method][0][:, 0] == pytest.approx(expected, rel=1e-7)
    assert result.mean("ridge", "rmse").value < 60
    assert result.mean("alone ridge", "rmse").value < 60
    assert result.mean("pooled trees", "rmse").value < result.mean("null", "rmse").value
    assert result.mean("null", "rmse").value == pytest.approx(
        np.sqrt(np.mean((data.labels["s2"] - mean) ** 2)), rel=1e-6
    )


def test_several_classes_have_pooled_regression_and_trees_but_no_federated_regression(tmp_path: Path) -> None:
    data = classes()
    result = studied(data, tmp_path / "study", hold_out=("s1",))
    assert "logistic" not in result.scores["s1"]
    for method in ("pooled logistic", "pooled trees", "alone logistic"):
        assert result.mean(method, "accuracy").value > 0.7  # chance is a third
    y, outputs = data.labels["s1"], result.outputs["s1"]["pooled logistic"][0]
    shares = np.exp(outputs) / np.exp(outputs).sum(1, keepdims=True)
    assert result.scores["s1"]["pooled logistic"]["log_loss"].value == pytest.approx(log_loss(y, shares))


def test_classes_that_the_training_examples_lack_have_logits_below_all_others() -> None:
    random = np.random.default_rng(0)
    x = random.normal(size=(60, 2))
    for y in (np.where(x[:, 0] > 0, 3.0, 1.0), np.full(60, 2.0)):
        for method, options in (
            ("pooled logistic", {"weight_decay": 0.1}),
            ("pooled trees", {"max_depth": 1, "learning_rate": 0.1, "rounds": 20}),
        ):
            found = Estimator.of(method, "multiclass", 4, options, x, y)
            outputs = found.outputs(x)
            assert outputs.shape == (60, 4)
            unseen = [c for c in range(4) if c not in y]
            assert outputs[:, unseen].max() < outputs[:, np.unique(y).astype(int)].min()
            assert np.mean(outputs.argmax(1) == y) > 0.9
            *_, (_, last) = found.staged(x)
            np.testing.assert_allclose(last, outputs)


def test_trees_are_scored_by_their_number_and_the_chosen_number_is_trained(tmp_path: Path) -> None:
    data = study_table(tmp_path, hospitals(4, rows=60))
    options = {"max_depth": 1, "learning_rate": 0.1}
    scoring = RunTask("pooled trees", {**options, "rounds": 40}, ("H0", "H1"), None, 0, scored=("H2",))
    curve = scoring.perform(data)[1]["curve"]
    assert list(curve) == ["10", "20", "30", "40"]
    shorter = RunTask("pooled trees", {**options, "rounds": 20}, ("H0", "H1"), None, 0, scored=("H2",))
    assert shorter.perform(data)[1]["curve"]["20"] == curve["20"]


def test_a_site_alone_chooses_its_ridge_by_cross_validation_of_its_other_examples(tmp_path: Path) -> None:
    data = study_table(tmp_path, hospitals(2, rows=200))
    task = AloneRegressionTask("H0", 0, 5, (0.01, 100.0), 1, 1, None, (0,), algorithm="alone logistic")
    tensors, about = task.perform(data)
    assert about["learning_rate"] == 0.01  # 100 leaves nothing of the coefficients
    rest = np.setdiff1d(np.arange(200), tensors["rows"].numpy())
    x = data.inputs_by_rows("H0", rest).double().numpy()
    model = LogisticRegression(C=1 / (len(rest) * 0.01), tol=1e-12, max_iter=10_000)
    expected = model.fit(x[rest], data.labels["H0"][rest]).decision_function(x[tensors["rows"].numpy()])
    assert tensors["outputs.0"][:, 0].numpy() == pytest.approx(expected, abs=1e-4)


def test_without_scikit_learn_a_sentence_says_what_to_install_and_nothing_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planning, "has_sklearn", lambda: False)
    result = studied(study_table(tmp_path, hospitals(4)), tmp_path / "study", hold_out=("H1",), seeds=1)
    assert set(result.scores["H1"]) == {
        *("chosen", "fedsgd", "geometric", "logistic", "null", "pooled", "site alone")
    }
    (note,) = [note for note in result.plan.notes() if "scikit-learn" in note]
    assert note.startswith("pooled logistic, pooled trees, alone logistic need scikit-learn")
    assert "pip install 'fedilc[sklearn]'" in note


def test_the_procedure_is_the_method_of_lowest_loss_at_the_training_sites(tmp_path: Path) -> None:
    choices = {name: Choice({}, 1, loss, {}) for name, loss in (("a", 0.5), ("b", 0.4), ("c", 0.4))}
    assert chosen_method(choices, ("a", "b", "c")) == "b"
    assert chosen_method(choices, ("a", "c")) == "c"
    result = studied(study_table(tmp_path, hospitals(4, rows=60)), tmp_path / "study")
    assert result.algorithms == ("fedsgd", "geometric", "logistic")
    for site, method in result.chosen.items():
        losses = {name: result.choices[site][name].loss for name in result.algorithms}
        assert losses[method] == min(losses.values()) or method == "logistic"
        assert method == chosen_method(result.choices[site], result.algorithms, "logistic")
        assert result.outputs[site]["chosen"] is result.outputs[site][method]
        assert result.scores[site]["chosen"] == result.scores[site][method]
    assert result.headline == "chosen"


def test_one_method_alone_is_the_procedure(tmp_path: Path) -> None:
    data = study_table(tmp_path, hospitals(4))
    result = studied(data, tmp_path / "study", algorithms=("geometric",), references=False, seeds=1)
    assert result.chosen == {}
    assert result.headline == "geometric"
    assert "chosen" not in result.scores["H0"]


def test_rows_of_the_held_out_site_never_change_which_method_is_chosen(tmp_path: Path) -> None:
    frame = hospitals(4, rows=60)
    there = pl.col("hospital") == "H1"
    random = np.random.default_rng(1)
    noise = pl.Series("noise", random.choice(["yes", "no"], len(frame)))
    others = {
        "turned": frame.with_columns(pl.when(there).then(noise).otherwise(pl.col("died")).alias("died")),
        "moved": frame.with_columns(
            pl.when(there).then(pl.lit("1e3")).otherwise(pl.col("age")).alias("age"),
            pl.when(there).then(pl.col("lactate") * 50).otherwise(pl.col("lactate")).alias("lactate"),
        ),
    }
    clean = studied(study_table(tmp_path, frame, "clean"), tmp_path / "a", hold_out=("H1",), seeds=1)
    for name, table in others.items():
        data = study_table(tmp_path, table, name)
        dirty = studied(data, tmp_path / name, hold_out=("H1",), seeds=1)
        assert dirty.chosen == clean.chosen
        assert dirty.choices == clean.choices


def test_the_primary_score_is_the_first_and_one_that_the_data_lack_is_refused(tmp_path: Path) -> None:
    data = study_table(tmp_path, hospitals(4, rows=8))
    assert StudyPlan(data, StudySettings()).metrics[0] == "auroc"
    metrics = StudyPlan(data, StudySettings(primary="log_loss")).metrics
    assert metrics[:2] == ("log_loss", "auroc")
    with pytest.raises(ConfigError, match="`primary` is 'auroc', and predictions of a quantity"):
        StudyPlan(quantities(), StudySettings(primary="auroc"))


def test_a_regression_for_another_loss_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="ridge is for the loss regression, and patients has"):
        StudyPlan(study_table(tmp_path, hospitals(4, rows=8)), StudySettings(algorithms=("ridge",)))


def own_network(inputs: tuple[int, ...], outputs: int) -> nn.Module:
    return nn.Sequential(nn.Linear(inputs[0], 3), nn.Tanh(), nn.Linear(3, outputs))


def test_the_network_may_be_linear_without_hidden_layers_or_the_users_own(tmp_path: Path) -> None:
    data = study_table(tmp_path, hospitals(4))
    width = data.inputs(data.silos, "H0").shape[1]

    def network(**settings: object) -> nn.Module:
        return build_network(StudyPlan(data, StudySettings(**settings)).network, (width,), 1, 0)

    assert [tuple(p.shape) for p in network(model="linear").parameters()] == [(1, width), (1,)]
    assert [tuple(p.shape) for p in network(hidden=()).parameters()] == [(1, width), (1,)]
    assert next(tuple(p.shape) for p in network(model="mlp", hidden=(5,)).parameters()) == (5, width)
    one, two = (network(model=f"{__name__}:own_network") for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), two.parameters(), strict=True))
    result = studied(data, tmp_path / "study", model=f"{__name__}:own_network", references=False, seeds=1)
    assert result.mean("geometric", "auroc").value is not None
    with pytest.raises(ConfigError, match="unknown"):
        StudyPlan(data, StudySettings(model="liner"))
    with pytest.raises(ConfigError, match="has no function 'missing'"):
        StudyPlan(data, StudySettings(model=f"{__name__}:missing"))
