"""Patients with several rows: variances of whole patients, and splits that keep them together."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm, t

from fedilc.data.silo import folds_of, split_silo
from fedilc.evaluation.estimates import estimate
from fedilc.evaluation.intervals import score_interval, score_intervals, t_quantile
from fedilc.evaluation.metrics import SCORES
from fedilc.studies.study.tasks import validation_rows


def examples(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    y = random.permutation(np.arange(n) % 2).astype(float)
    return y, y + random.normal(0, 1.5, n)


def obuchowski(y: np.ndarray, outputs: np.ndarray, patients: np.ndarray) -> float:
    """Return Obuchowski's variance of the area (Biometrics 1997, p. 569), with the factor G / (G - 1)."""
    events, others = outputs[y == 1], outputs[y == 0]
    over = {i: np.mean([(x > o) + (x == o) / 2 for o in others]) for i, x in enumerate(outputs) if y[i]}
    under = {i: np.mean([(e > x) + (e == x) / 2 for e in events]) for i, x in enumerate(outputs) if not y[i]}
    area = np.mean(list(over.values()))
    total = 0.0
    for patient in set(patients):
        rows = [i for i in range(len(y)) if patients[i] == patient]
        first = sum(over[i] - area for i in rows if i in over) / len(events)
        second = sum(under[i] - area for i in rows if i in under) / len(others)
        total += (first + second) ** 2
    groups = len(set(patients))
    return float(total * groups / (groups - 1))


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32), st.integers(15, 40))
def test_the_variance_of_an_area_is_obuchowskis_but_for_delongs_factor(seed: int, groups: int) -> None:
    y, outputs = examples(60, seed)
    patients = np.random.default_rng(seed).integers(0, groups, 60)
    one = estimate("binary", "auroc", y, [outputs], patients, own_scale=True)
    if one is None:  # fewer than 10 patients have an event, or a non-event
        return
    delong = (30 / 29) * (59 / 60)  # with as many events as non-events
    assert one.variance == pytest.approx(delong * obuchowski(y, outputs, patients), rel=1e-9)


@pytest.mark.parametrize(("loss", "score"), [(loss, score) for loss in SCORES for score in SCORES[loss]])
def test_copied_rows_add_no_information_and_patients_of_one_row_change_nothing(loss: str, score: str) -> None:
    random = np.random.default_rng(3)
    y = {"binary": random.integers(0, 2, 200), "multiclass": random.integers(0, 3, 200)}.get(
        loss, random.normal(size=200)
    )
    outputs = random.normal(size=(200, 3) if loss == "multiclass" else 200)
    outputs += np.eye(3)[y] if loss == "multiclass" else y
    once = score_interval(loss, score, y, [outputs])
    single = score_interval(loss, score, y, [outputs], np.arange(200)[::-1])
    assert (single.low, single.high) == pytest.approx((once.low, once.high), rel=1e-12)
    copies, patients = [np.concatenate([outputs] * 3)], np.tile(np.arange(200), 3)
    thrice = score_interval(loss, score, np.tile(y, 3), copies, patients)
    assert thrice.value == pytest.approx(once.value)
    assert thrice.high - thrice.low == pytest.approx(once.high - once.low, rel=0.02)
    fooled = score_interval(loss, score, np.tile(y, 3), copies)
    assert fooled.high - fooled.low < 0.62 * (once.high - once.low)


def test_many_rows_of_few_patients_are_not_estimable_and_the_reason_counts_patients() -> None:
    y, outputs = np.repeat([1.0, 0.0], [40, 160]), np.random.default_rng(0).normal(size=200)
    patients = np.append(np.arange(40) % 8, 8 + np.arange(160) % 100)
    found = score_intervals("binary", y, outputs, patients)
    assert found["auroc"].reason == "8 patients with events, fewer than 10"
    assert found["accuracy"].low is not None
    few = score_interval("binary", "auroc", y, [outputs], np.append(np.arange(40), 8 + np.arange(160) % 100))
    assert few.caution == "40 patients with events, fewer than 100"


@given(st.integers(9, 500))
def test_quantiles_of_students_t_need_no_scipy(freedom: int) -> None:
    assert t_quantile(norm.ppf(0.975), freedom) == pytest.approx(t.ppf(0.975, freedom), abs=1e-3)


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 2**32), st.integers(4, 40), st.sampled_from(["binary", "regression"]))
def test_no_patient_is_in_two_parts_of_any_split(seed: int, groups: int, loss: str) -> None:
    random = np.random.default_rng(seed)
    patients = random.integers(0, groups, 80) * 7
    y = random.integers(0, 2, 80) if loss == "binary" else random.normal(size=80)
    folds = folds_of(y, 3, loss, patients)
    held = validation_rows(y, 0.25, loss, 0, patients)
    for part in (folds, held):
        assert all(len(set(part[patients == patient])) == 1 for patient in set(patients))
    assert len(set(folds)) == min(3, len(set(patients)))
    silo = split_silo("s", patients[:, None].astype(float), y, 0.3, seed, loss, patients)
    assert len(silo.x) + len(silo.x_val) == 80
    assert not set(silo.x.ravel().tolist()) & set(silo.x_val.ravel().tolist())
