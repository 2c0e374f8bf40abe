"""The made-up patients: the paper's shape, the same every time, and a real shift between hospitals."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score

from fedilc.paper.eicu import SyntheticPatients, eicu_federation, synthetic_patients


@pytest.fixture(scope="module")
def patients() -> SyntheticPatients:
    return synthetic_patients()


def sizes(patients: SyntheticPatients) -> np.ndarray:
    return np.unique(patients.silo, return_counts=True)[1]


def test_the_table_has_the_shape_and_the_deaths_of_the_papers(patients: SyntheticPatients) -> None:
    assert patients.x.shape == (30_760, 1_399)
    assert len(np.unique(patients.silo)) == 58
    assert round(100 * patients.died.mean(), 1) == 30.5
    assert set(np.unique(patients.x)) == {0, 1}


def test_every_silo_is_called_synthetic_and_so_is_the_federation(patients: SyntheticPatients) -> None:
    assert all(name.startswith("synthetic-") for name in np.unique(patients.silo))
    assert eicu_federation(patients, name="eicu-synthetic").name == "eicu-synthetic"


def test_hospitals_and_medicines_are_heavy_tailed(patients: SyntheticPatients) -> None:
    number = np.sort(sizes(patients))[::-1]
    assert number[0] > 5 * np.median(number)
    assert number[-1] >= 60
    uses = np.sort(patients.x.sum(0))[::-1]
    assert uses[:140].sum() > 0.5 * uses.sum(), "a tenth of the medicines makes most of the orders"
    assert (uses < 0.01 * len(patients.x)).mean() > 0.5, "most medicines are rare"


def test_a_hospital_has_not_every_medicine_on_its_list(patients: SyntheticPatients) -> None:
    largest = patients.x[patients.silo == "synthetic-01"]
    assert 0.2 < (largest.sum(0) == 0).mean() < 0.6


def test_the_patients_are_the_same_every_time(patients: SyntheticPatients) -> None:
    again = synthetic_patients()
    digests = [hashlib.sha256(table.x.tobytes()).digest() for table in (patients, again)]
    assert digests[0] == digests[1]
    assert np.array_equal(patients.died, again.died)


def test_a_seed_draws_other_splits_of_the_same_patients(patients: SyntheticPatients) -> None:
    first = eicu_federation(synthetic_patients(), 1, "eicu-synthetic", oversample=False)
    other = eicu_federation(patients, 2, oversample=False, name="eicu-synthetic")
    assert (first.name, len(first.silos)) == ("eicu-synthetic", 20)
    assert first.x_test is not None
    assert other.x_test is not None
    assert torch.equal(first.x_test, other.x_test)
    assert not torch.equal(first.silos[0].x, other.silos[0].x)


def auroc(patients: SyntheticPatients, columns: np.ndarray, train: np.ndarray, test: np.ndarray) -> float:
    model = LogisticRegression(C=0.05, max_iter=300)
    model.fit(patients.x[train][:, columns], patients.died[train])
    return float(roc_auc_score(patients.died[test], model.decision_function(patients.x[test][:, columns])))


@pytest.fixture(scope="module")
def parts(patients: SyntheticPatients) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows for training and for validation in the 20 largest hospitals, and all of the others."""
    names = np.unique(patients.silo)
    inside = np.isin(patients.silo, names[np.argsort(-sizes(patients), kind="stable")[:20]])
    drawn = np.random.default_rng(0).random(len(inside)) < 0.3
    return np.flatnonzero(inside & ~drawn), np.flatnonzero(inside & drawn), np.flatnonzero(~inside)


def test_a_classifier_of_the_largest_hospitals_does_far_worse_in_the_others(
    patients: SyntheticPatients, parts: tuple[np.ndarray, np.ndarray, np.ndarray]
) -> None:
    telling = np.concatenate([patients.invariant, patients.misleading])
    train, home, elsewhere = parts
    assert auroc(patients, telling, train, home) > auroc(patients, telling, train, elsewhere) + 0.1


def test_the_invariant_medicines_say_as_much_everywhere_and_more_elsewhere_than_all_do(
    patients: SyntheticPatients, parts: tuple[np.ndarray, np.ndarray, np.ndarray]
) -> None:
    train, home, elsewhere = parts
    invariant = auroc(patients, patients.invariant, train, elsewhere)
    assert invariant == pytest.approx(auroc(patients, patients.invariant, train, home), abs=0.03)
    telling = np.concatenate([patients.invariant, patients.misleading])
    assert invariant > auroc(patients, telling, train, elsewhere) + 0.05


def test_the_misleading_medicines_promise_death_at_home_and_survival_elsewhere(
    patients: SyntheticPatients, parts: tuple[np.ndarray, np.ndarray, np.ndarray]
) -> None:
    train, home, elsewhere = parts
    assert auroc(patients, patients.misleading, train, home) > 0.6
    assert auroc(patients, patients.misleading, train, elsewhere) < 0.5
