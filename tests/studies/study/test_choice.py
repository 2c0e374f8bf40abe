"""Settings and method are chosen by losses on the training silos."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hospitals import ONE_CANDIDATE, hospitals, study_table

from fedilc.studies.study.choice import Choice, choose, chosen_method
from fedilc.studies.study.plan import StudyPlan
from fedilc.studies.study.settings import StudySettings

RATES = {"learning_rates": (0.01, 0.1), "local_learning_rates": (0.1, 0.5)}


def test_settings_are_chosen_by_the_silos_outside_the_group_alone(tmp_path: Path) -> None:
    data = study_table(tmp_path, hospitals(4))
    plan = StudyPlan(data, StudySettings(**RATES, **ONE_CANDIDATE))
    good, bad = {"H1": 0.5, "H2": 0.5, "H3": 0.5}, {"H1": 0.6, "H2": 0.6, "H3": 0.6}
    scored = [
        [{"failed": None, "curve": {"3": {**bad, "H0": 0.0}, "6": {**good, "H0": 9.0}}}],
        [{"failed": None, "curve": {"3": {**bad, "H0": 0.0}, "6": {**bad, "H0": 0.0}}}],
    ]
    chosen = choose(plan, "fedavg", 0, scored)
    assert chosen == Choice(plan.grid("fedavg")[0], 6, 0.5, {3: 0.6, 6: 0.5}, good)
    failed = [[{"failed": "diverged", "curve": {}}], scored[1]]
    assert choose(plan, "fedavg", 0, failed).options == plan.grid("fedavg")[1]
    assert choose(plan, "fedavg", 0, [failed[0], failed[0]]) is None


def test_a_loss_that_is_not_finite_is_never_chosen(tmp_path: Path) -> None:
    settings = StudySettings(learning_rates=(0.1,), **ONE_CANDIDATE)
    plan = StudyPlan(study_table(tmp_path, hospitals(4, rows=8)), settings)
    curve = {"1": {"H1": np.nan, "H2": np.inf}, "2": {"H1": 0.7, "H2": np.nan}}
    found = choose(plan, "fedsgd", 0, [[{"failed": None, "curve": curve}]])
    assert found is not None
    assert (found.round, found.loss) == (2, 0.7)
    assert choose(plan, "fedsgd", 0, [[{"failed": None, "curve": {"1": {"H1": np.nan}}}]]) is None


@pytest.mark.parametrize(
    ("gains", "taken"),
    [
        ((0.02, 0.03, 0.02), "fedavg"),
        ((0.2, -0.15, 0.01), "logistic"),  # sites disagree
        ((0.002, 0.002, 0.002), "logistic"),  # they agree on nothing that matters
    ],
)
def test_the_regression_is_taken_unless_a_method_is_clearly_better(
    gains: tuple[float, ...], taken: str
) -> None:
    plain = {f"H{place}": 0.6 for place in range(3)}
    other = {site: loss - gain for (site, loss), gain in zip(plain.items(), gains, strict=True)}
    choices = {
        name: Choice({}, 1, float(np.mean(list(losses.values()))), {}, losses)
        for name, losses in (("fedavg", other), ("logistic", plain))
    }
    assert choices["fedavg"].loss < choices["logistic"].loss
    assert chosen_method(choices, ("fedavg", "logistic"), "logistic") == taken
    assert chosen_method(choices, ("fedavg", "logistic")) == "fedavg"
