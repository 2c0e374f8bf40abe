"""Worker processes give the bits of this one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hospitals import hospitals, study_table

from fedilc.studies.study.plan import StudyPlan, StudySettings
from fedilc.studies.study.run import Progress, run_study


@pytest.mark.slow
def test_two_workers_give_the_bits_of_one_process(tmp_path: Path) -> None:
    data = study_table(tmp_path, hospitals(4))
    settings = StudySettings(
        algorithms=("fedsgd",), hold_out=("H1",), seeds=1, rounds=3, learning_rates=(0.1,), references=False
    )
    results = [
        run_study(StudyPlan(data, settings), tmp_path / f"jobs-{jobs}", Progress(jobs)) for jobs in (1, 2)
    ]
    assert results[0].choices == results[1].choices
    assert np.array_equal(results[0].outputs["H1"]["fedsgd"], results[1].outputs["H1"]["fedsgd"])
