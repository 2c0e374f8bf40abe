"""One model of a study: its losses by round, its units, its folds."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hospitals import hospitals, study_table

from fedilc.data import Silo
from fedilc.gradients import Loss
from fedilc.studies.study.data import StudyData
from fedilc.studies.study.fits import Fit, choosing_losses, fit_all
from fedilc.studies.study.tasks import Units, folds_of, validation_rows


def test_folds_and_validation_rows_keep_classes_in_proportion() -> None:
    y = np.array([0] * 40 + [1] * 10)
    folds = folds_of(y, 5, "binary")
    assert [(int(y[folds == f].sum()), int((folds == f).sum())) for f in range(5)] == [(2, 10)] * 5
    held = validation_rows(y, 0.2, "binary", seed=3)
    assert (held.sum(), y[held].sum()) == (10, 2)
    assert validation_rows(y, 0.2, "regression", seed=3).sum() == 10


@pytest.fixture
def data(tmp_path: Path) -> StudyData:
    return study_table(tmp_path, hospitals(2, rows=12))


def silos(data: StudyData) -> list[Silo]:
    return [Silo(name, data.inputs(data.silos, name), data.labels[name]) for name in data.silos]


def test_losses_are_recorded_every_so_many_rounds_and_at_the_last(data: StudyData) -> None:
    scored = {"H0": (data.inputs(data.silos, "H0"), torch.as_tensor(data.labels["H0"]))}
    options = {"rounds": 5, "learning_rate": 0.1, "score_every": 2}
    (found,) = fit_all(data, [Fit(silos(data), (4,), "geometric", options, 0, scored)])
    assert list(found.curve) == ["2", "4", "5"]
    assert found.failed is None
    x, y = scored["H0"]
    (loss,) = choosing_losses(Loss("binary"), found.predict(x).unsqueeze(0), [y])
    assert found.curve["5"]["H0"] == pytest.approx(loss)
    assert list(found.agreement) == ["1", "2", "3", "4", "5"]


def test_training_that_diverges_is_a_reason_and_no_error(data: StudyData) -> None:
    options = {"rounds": 9, "learning_rate": 1.0, "local_learning_rate": 1e30}
    (found,) = fit_all(data, [Fit(silos(data), (4,), "fedavg", options, 0)])
    assert found.failed
    assert found.weights == {}
    assert found.curve == {}


def test_another_share_of_positives_does_not_change_the_loss_that_settings_are_chosen_by() -> None:
    y = torch.tensor([0.0, 1.0, 1.0, 0.0, 1.0, 0.0])
    logits = torch.tensor([[-1.0], [2.0], [-0.5], [0.3], [0.1], [0.2]])
    one, other = choosing_losses(Loss("binary"), torch.stack([logits, logits + 3.0]), [y, y])
    assert one == pytest.approx(other)
    assert np.isnan(choosing_losses(Loss("binary"), logits.unsqueeze(0), [torch.ones(6)])).all()


def test_quantities_are_learned_with_deviation_1_and_come_back_in_their_units() -> None:
    labels = [np.array([1000.0, 3000.0]), np.array([5000.0])]
    units = Units.of("regression", labels)
    assert (units.mean, units.scale) == pytest.approx((3000.0, np.std(np.concatenate(labels))))
    assert units.to_data_units(torch.tensor([[0.0], [1.0]])).tolist() == [[3000.0], [3000.0 + units.scale]]
    assert Units.of("binary", labels) == Units()
    assert Units.of("regression", [np.array([7.0, 7.0])]).scale == 1.0
