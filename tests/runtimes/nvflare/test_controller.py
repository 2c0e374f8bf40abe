"""The results of a job are a copy of its run folder, without what only the server needs."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedilc.storage.run_folder import RunFolder

pytest.importorskip("nvflare", reason="NVIDIA FLARE is not installed: pip install 'fedilc[nvflare]'")

from fedilc.runtimes.nvflare.controller import copy_results


def test_results_are_copied_without_the_lock(tmp_path: Path) -> None:
    run, job = RunFolder(tmp_path / "run"), tmp_path / "job" / "fedilc"
    run.create({"rounds": 1})
    run.save({"round": 1, "train_loss": 0.5}, 0.1, {}, {}, None)
    copy_results(run.path, job)
    assert {"history.jsonl", "run.json", "checkpoint.safetensors"} <= {path.name for path in job.iterdir()}
    assert not (job / ".lock").exists()
    assert RunFolder(job).load().history == [{"round": 1, "train_loss": 0.5}]
    run.release()


def test_a_run_that_never_began_has_no_results(tmp_path: Path) -> None:
    copy_results(tmp_path / "run", tmp_path / "job")
    assert not (tmp_path / "job").exists()
