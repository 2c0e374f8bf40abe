"""What a site says of its scores: that of its rows, in a document that has none of them."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from site_documents import ASKED, made_document, made_rows
from sklearn.metrics import average_precision_score, brier_score_loss, log_loss, roc_auc_score
from slow_clinical import counted_net_benefit

from fedilc.evaluation.estimates import Floors, difference, own_estimate
from fedilc.studies.study.scoring import Asked, SiteRows, class_counts, score_site

FLOORS = Floors(10, 10)


def test_scores_are_those_of_the_rows() -> None:
    rows = made_rows(300)
    document = score_site(rows, ASKED)
    slow = {
        "auroc": lambda y, z: roc_auc_score(y, z),
        "auprc": lambda y, z: average_precision_score(y, z),
        "log_loss": lambda y, z: log_loss(y, 1 / (1 + np.exp(-z))),
        "brier": lambda y, z: brier_score_loss(y, 1 / (1 + np.exp(-z))),
    }
    for method in ("fedavg", "geometric", "null"):
        for metric, score in slow.items():
            expected = [score(rows.y, one[:, 0]) for one in rows.outputs[method]]
            found = document.methods[method].scores[metric]
            assert found.seeds == pytest.approx(expected)
            assert found.value == pytest.approx(np.mean(expected))
        risks = [1 / (1 + np.exp(-one[:, 0])) for one in rows.outputs[method]]
        for place, threshold in enumerate(ASKED.thresholds):
            one = [counted_net_benefit(list(rows.y), list(of), threshold) for of in risks]
            assert document.methods[method].net_benefit[place].value == pytest.approx(np.mean(one))
    assert document.classes == {"0": int((rows.y == 0).sum()), "1": int(rows.y.sum())}


@pytest.mark.parametrize("each", [1, 3])
def test_differences_are_those_of_the_influences_of_all_examples(each: int) -> None:
    rows = made_rows(200, each)
    document = score_site(rows, ASKED)
    for metric in ASKED.metrics:
        one, other = (
            own_estimate("binary", metric, rows.y, rows.outputs[name], rows.patients, rows.models.get(name))
            for name in ("geometric", "site alone")
        )
        found = document.difference("geometric", "site alone", metric)
        expected = difference(one, other)
        assert (found.value, found.variance) == pytest.approx((expected.value, expected.variance), rel=1e-12)
        back = document.difference("site alone", "geometric", metric)
        assert (back.value, back.variance) == (-found.value, found.variance)


def longest(content: Any) -> int:
    """Return the number of entries of the longest list or dictionary in a document."""
    if isinstance(content, dict | list):
        parts = list(content.values() if isinstance(content, dict) else content)
        return max([len(parts), *map(longest, parts)])
    return 0


@settings(max_examples=8, deadline=None)
@given(st.integers(200, 3000), st.sampled_from([1, 2]), st.sampled_from([1, 10]))
def test_no_part_of_a_document_grows_with_the_rows(rows: int, each: int, least: int) -> None:
    small = json.loads(made_document(150, each, floors=Floors(10, least)).to_bytes())
    large = json.loads(made_document(rows, each, floors=Floors(10, least)).to_bytes())
    assert max(longest(small), longest(large)) <= 119  # the risks of the grid, and of the plan
    assert len(json.dumps(large)) < 70_000


def counts(document: Any) -> list[int]:
    """Return all counts of events and of others in a document."""
    found = [count for count in (document.classes or {}).values() if count is not None]
    for method in document.methods.values():
        if method.risks is not None:
            found += [*method.risks.events, *method.risks.others]
    for one in document.subgroups:
        found += [one.events, one.examples - one.events] if one.examples is not None else []
    return found


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 1000), st.integers(12, 200), st.sampled_from([1, 3]))
def test_no_count_is_below_the_floor(seed: int, rows: int, each: int) -> None:
    document = made_document(rows, each, seed, FLOORS)
    found = counts(document)
    assert all(count >= 10 for count in found)
    if None in document.classes.values():
        assert not found
        assert {one.found.reason for of in document.methods.values() for one in of.scores.values()} == {
            "fewer than 10 examples of a class"
        }
        assert all(one.value is None for of in document.methods.values() for one in of.net_benefit)
    assert not re.search(r"[^\d,]\d (patients|events|non-events|examples)", document.to_bytes().decode())


def test_a_level_with_few_events_hides_the_next_smallest_too() -> None:
    rows = made_rows(400)
    level = np.repeat(["a", "b", "c"], [6, 94, 300])
    ward = replace(rows, subgroups={"ward": level})
    asked = replace(ASKED, subgroups=("ward",))
    assert [one.level for one in score_site(ward, asked).subgroups] == ["a", "b", "c"]
    told = score_site(ward, asked, FLOORS).subgroups
    assert [(one.level, one.examples) for one in told] == [("c", 300), ("other", None)]
    assert told[1].methods == {}


def test_a_level_that_exceeds_another_by_few_examples_is_hidden() -> None:
    rows = made_rows(400)
    age = np.arange(400)
    cuts = {f"age>={cut}": np.where(age >= cut, "old", "young") for cut in (200, 203)}
    asked = replace(ASKED, subgroups=tuple(cuts))
    found = score_site(replace(rows, subgroups=cuts), asked, FLOORS).subgroups
    assert {one.subgroup for one in found if one.examples is not None} == {"age>=200"}


@given(st.lists(st.integers(0, 3), min_size=1, max_size=80), st.integers(1, 12))
def test_classes_that_are_not_told_are_enough_together_or_all(labels: list[int], least: int) -> None:
    found = class_counts(np.array(labels), Floors(10, least))
    hidden = [labels.count(int(name)) for name, count in found.items() if count is None]
    assert all(count is None or count >= least for count in found.values())
    assert len(hidden) != 1 or len(found) == 1
    assert not hidden or sum(hidden) >= least or len(hidden) == len(found)


@pytest.mark.parametrize(("loss", "outputs"), [("multiclass", 3), ("regression", 1)])
def test_classes_and_quantities_have_documents_too(loss: str, outputs: int) -> None:
    random = np.random.default_rng(0)
    y = random.integers(0, 3, 200) if outputs == 3 else random.normal(size=200)
    metrics = ("accuracy", "log_loss", "auroc") if outputs == 3 else ("rmse", "mae", "r2")
    z = random.normal(size=(200, outputs))
    z[np.arange(200), y.astype(int) if outputs == 3 else 0] += 1.0
    rows = SiteRows("H0", y, {"fedavg": [z]}, drawn=("fedavg",))
    for floors in (Floors(), FLOORS):
        document = score_site(rows, Asked(loss, outputs, metrics, 1, (0.2,)), floors)
        assert document.treat_all == ()
        method = document.methods["fedavg"]
        if outputs == 3:
            right = int((z.argmax(1) == y).sum())
            assert (sum(method.risks.events), sum(method.risks.others)) == (right, 200 - right)
        else:
            assert np.mean([one.observed for one in method.groups]) == pytest.approx(y.mean())
