"""The estimators keep scikit-learn's contract, and groups are silos in every tool of it."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import sklearn
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer
from sklearn.model_selection import GridSearchCV, LeaveOneGroupOut, cross_validate
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from fedilc import FedILCClassifier, FedILCRegressor, FedILCSearchCV
from fedilc.errors import ConfigError, FedILCWarning

QUICK: dict[str, Any] = {"rounds": 25, "hidden": (16,), "learning_rate": 0.05}
CHECKED: dict[str, Any] = {"rounds": 12, "hidden": (16,), "learning_rate": 0.1}
ONE_SILO = "ignore:fit without groups:fedilc.errors.FedILCWarning"


@pytest.mark.filterwarnings(ONE_SILO)
@parametrize_with_checks([FedILCClassifier(**CHECKED), FedILCRegressor(**CHECKED)])
def test_the_estimators_pass_scikit_learns_checks(estimator: Any, check: Any) -> None:
    check(estimator)


@pytest.fixture
def routing() -> Iterator[None]:
    with sklearn.config_context(enable_metadata_routing=True):
        yield


@pytest.fixture
def sites() -> tuple[NDArray[np.float64], NDArray[np.str_], NDArray[np.str_]]:
    """Three sites; the first column tells the label everywhere, the second one only where it trains."""
    random = np.random.default_rng(0)
    site = np.repeat(["a", "b", "c"], 40)
    ill = random.integers(0, 2, 120)
    x = np.column_stack([100 + 10 * ill + 3 * random.normal(size=120), random.normal(size=120)])
    return x, np.where(ill, "ill", "well"), site


def test_labels_may_be_words_and_probabilities_follow_classes(sites: Any) -> None:
    x, y, site = sites
    model = FedILCClassifier(**QUICK).fit(x, y, groups=site)
    assert model.classes_.tolist() == ["ill", "well"]
    assert model.silos_.tolist() == ["a", "b", "c"]
    assert model.n_features_in_ == 2
    chances = model.predict_proba(x)
    np.testing.assert_allclose(chances.sum(1), 1)
    assert (model.predict(x) == model.classes_[chances.argmax(1)]).all()
    assert model.score(x, y) > 0.85
    assert len(model.history_) == 25
    assert model.history_[0]["silos"].keys() == {"a", "b", "c"}


def test_groups_are_silos_whose_gradients_are_aggregated(sites: Any) -> None:
    x, y, site = sites
    one = FedILCClassifier("geometric", **QUICK).fit(x, y, groups=site).predict_proba(x)
    with pytest.warns(FedILCWarning, match="fit without groups treats all examples as one silo"):
        other = FedILCClassifier("geometric", **QUICK).fit(x, y).predict_proba(x)
    assert not np.allclose(one, other)


@pytest.mark.usefixtures("routing")
def test_leaving_one_group_out_trains_on_the_others(sites: Any) -> None:
    x, y, site = sites
    model = FedILCClassifier(**QUICK).set_fit_request(groups=True)
    found = cross_validate(
        model, x, y, params={"groups": site}, cv=LeaveOneGroupOut(), scoring="roc_auc", return_estimator=True
    )
    assert [fitted.silos_.tolist() for fitted in found["estimator"]] == [["b", "c"], ["a", "c"], ["a", "b"]]
    assert found["test_score"].min() > 0.9


@pytest.mark.usefixtures("routing")
def test_a_pipeline_and_a_grid_search_pass_groups_on(sites: Any) -> None:
    x, y, site = sites
    model = FedILCClassifier(**QUICK, scale=False).set_fit_request(groups=True)
    search = GridSearchCV(
        make_pipeline(StandardScaler(), model),
        {"fedilcclassifier__penalty_weight": [0.1, 1.0]},
        cv=LeaveOneGroupOut(),
    )
    search.fit(x, y, groups=site)
    assert search.best_score_ > 0.85
    assert search.best_estimator_[-1].silos_.tolist() == ["a", "b", "c"]


def test_frames_of_pandas_keep_their_columns_names_and_a_pickle_predicts_the_same(sites: Any) -> None:
    pandas = pytest.importorskip("pandas", reason="pandas is not installed: pip install pandas")
    x, y, site = sites
    frame = pandas.DataFrame(x, columns=["lactate", "age"])
    groups = pandas.Series(site, dtype="category")
    model = FedILCClassifier(**QUICK).fit(frame, pandas.Series(y), groups=groups)
    assert model.feature_names_in_.tolist() == ["lactate", "age"]
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(again.predict_proba(frame), model.predict_proba(frame))
    with pytest.raises(ValueError, match="feature names should match"):
        model.predict(frame[["age", "lactate"]])


def test_an_example_without_a_silo_is_refused(sites: Any) -> None:
    x, y, site = sites
    for gap in (None, float("nan")):
        with pytest.raises(ValueError, match="groups has missing values; name the silo of each example"):
            FedILCClassifier(**QUICK).fit(x, y, groups=np.array([gap, *site[1:]], dtype=object))


def test_inputs_are_standardised_unless_scale_is_false(sites: Any) -> None:
    x, y, site = sites
    scaled = FedILCClassifier(**QUICK).fit(x, y, groups=site)
    np.testing.assert_allclose(scaled.scaler_.mean_, x.mean(0))
    by_hand = FedILCClassifier(**QUICK, scale=False).fit(StandardScaler().fit_transform(x), y, groups=site)
    again = by_hand.predict_proba(StandardScaler().fit_transform(x))
    np.testing.assert_allclose(scaled.predict_proba(x), again, rtol=1e-4)


def test_a_regressor_predicts_in_the_labels_own_unit(sites: Any) -> None:
    x, _, site = sites
    y = 1000 + 50 * x[:, 0] - 200 * x[:, 1]
    model = FedILCRegressor("fedsgd", rounds=150, hidden=(16,), learning_rate=0.03).fit(x, y, groups=site)
    assert model.score(x, y) > 0.95
    assert abs(model.predict(x).mean() - y.mean()) < 0.1 * y.std()


def test_what_train_refuses_is_refused_and_its_other_settings_are_taken(sites: Any) -> None:
    x, y, site = sites
    with pytest.raises(ConfigError, match="algorithm 'fedilk' is unknown"):
        FedILCClassifier("fedilk", **QUICK).fit(x, y, groups=site)
    plain = FedILCClassifier("fedsgd", **QUICK)
    weighed = clone(plain).set_params(
        options={"balance": "weights", "silo_weights": {"a": 5.0, "b": 1.0, "c": 1.0}}
    )
    losses = [model.fit(x, y, groups=site).history_[-1]["train_loss"] for model in (plain, weighed)]
    assert losses[0] != losses[1]


def test_inputs_of_unlike_size_warn_that_a_group_stands_out_and_the_fit_ends() -> None:
    x, y = load_breast_cancer(return_X_y=True)
    model = FedILCClassifier(algorithm="fishr-inter-geo", hidden=[], scale=False)
    with pytest.warns(FedILCWarning, match="stands out, but still counts"):
        model.fit(x, y, groups=np.arange(len(y)) % 5)
    assert len(model.history_) == model.rounds
    assert all(len(record["silos"]) == 5 for record in model.history_)


def test_a_random_state_may_be_a_number_or_a_generator_as_scikit_learn_has_it(sites: Any) -> None:
    x, y, groups = sites

    def weights(random_state: Any, times: int = 1) -> list[Any]:
        model = FedILCClassifier(rounds=1, hidden=(4,), random_state=random_state)
        return [model.fit(x, y, groups=groups).model_[1].weight for _ in range(times)]

    same, again = weights(3, times=2)
    assert same.equal(again)
    assert same.equal(*weights(np.int64(3)))
    drawn, other = weights(np.random.RandomState(5), times=2)
    assert not drawn.equal(other)
    assert drawn.equal(*weights(np.random.RandomState(5)))
    assert not same.equal(*weights(4))
    with pytest.raises(ValueError, match="cannot be used to seed"):
        weights("three")


GRID = {"learning_rate": [1e-6, 0.05], "penalty_weight": [0.1, 1.0]}


def folds_of(results: dict[str, Any]) -> NDArray[np.float64]:
    return np.array([results[f"split{fold}_test_score"] for fold in range(3)])


@pytest.mark.usefixtures("routing")
@pytest.mark.parametrize("scoring", ["neg_log_loss", None])
def test_a_search_finds_what_scikit_learns_search_finds(sites: Any, scoring: str | None) -> None:
    x, y, site = sites
    model = FedILCClassifier(**{**QUICK, "rounds": 8}).set_fit_request(groups=True)
    ours = FedILCSearchCV(model, GRID, scoring=scoring).fit(x, y, groups=site)
    theirs = GridSearchCV(model, GRID, cv=LeaveOneGroupOut(), scoring=scoring).fit(x, y, groups=site)
    assert ours.n_splits_ == 3
    assert ours.cv_results_["params"] == theirs.cv_results_["params"]
    np.testing.assert_allclose(folds_of(ours.cv_results_), folds_of(theirs.cv_results_), rtol=1e-3)
    for key in ("mean_test_score", "std_test_score"):
        np.testing.assert_allclose(ours.cv_results_[key], theirs.cv_results_[key], rtol=2e-3, atol=1e-4)
    for name in GRID:
        assert (ours.cv_results_[f"param_{name}"] == theirs.cv_results_[f"param_{name}"]).all()
    if scoring is not None:
        assert ours.best_params_ == theirs.best_params_
        assert (ours.cv_results_["rank_test_score"] == theirs.cv_results_["rank_test_score"]).all()


def test_a_searchs_best_estimator_is_a_single_fit_and_predicts(sites: Any) -> None:
    x, y, site = sites
    words = np.where(y == "ill", "yes", "no")
    search = FedILCSearchCV(FedILCClassifier("fedavg", **QUICK), [{"rounds": [2, 12]}, {"hidden": [(4,)]}])
    search.fit(x, words, groups=site)
    alone = FedILCClassifier("fedavg", **QUICK).set_params(**search.best_params_).fit(x, words, groups=site)
    assert (search.predict_proba(x) == alone.predict_proba(x)).all()
    assert (search.predict(x) == alone.predict(x)).all()
    assert search.score(x, words) == alone.score(x, words)
    assert search.classes_.tolist() == ["no", "yes"]
    assert search.cv_results_["param_rounds"].mask.tolist() == [False, False, True]


def test_a_search_over_regressors_has_their_score_and_no_probabilities() -> None:
    x = np.linspace(0, 3, 60)[:, None]
    search = FedILCSearchCV(FedILCRegressor("fedsgd", **QUICK), {"learning_rate": [1e-6, 0.05]})
    search.fit(x, 5 * x[:, 0], groups=np.arange(60) % 3)
    assert search.best_params_ == {"learning_rate": 0.05}
    assert search.score(x, 5 * x[:, 0]) > 0.9
    assert not hasattr(search, "predict_proba")


@pytest.mark.usefixtures("routing")
def test_a_search_is_an_estimator_that_can_be_left_one_group_out_itself(sites: Any) -> None:
    x, y, site = sites
    search = FedILCSearchCV(FedILCClassifier("fedsgd", **QUICK), {"learning_rate": [1e-6, 0.05]})
    found = cross_validate(
        search.set_fit_request(groups=True), x, y, params={"groups": site}, cv=LeaveOneGroupOut()
    )
    assert found["test_score"].min() > 0.8


@pytest.mark.filterwarnings("ignore:.*has no score in a fold:fedilc.errors.FedILCWarning")
def test_a_candidate_that_diverges_is_last_and_a_search_without_a_score_says_so(sites: Any) -> None:
    x, y, site = sites
    model = FedILCClassifier("fedavg", **QUICK)
    grid = {"options": [None, {"local_learning_rate": 1e30}]}
    search = FedILCSearchCV(model, grid).fit(x, y, groups=site)
    assert search.best_index_ == 0
    assert search.cv_results_["rank_test_score"].tolist() == [1, 2]
    with pytest.raises(ValueError, match="no candidate could be trained and scored in every fold"):
        FedILCSearchCV(model, {"options": grid["options"][1:]}).fit(x, y, groups=site)


def test_a_search_over_another_estimator_is_refused(sites: Any) -> None:
    x, y, site = sites
    with pytest.raises(ValueError, match="takes FedILCClassifier or FedILCRegressor, not Pipeline"):
        FedILCSearchCV(make_pipeline(FedILCClassifier()), {}).fit(x, y, groups=site)
