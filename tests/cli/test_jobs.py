"""Many runs with progress: a few lines without a terminal, a bar with one, nothing if all is done."""

from __future__ import annotations

import io
from pathlib import Path

from rich.console import Console

from fedilc.cli.jobs import job_changes, run_all
from fedilc.paper.reproduce import Plan
from fedilc.studies.jobs import RunJob


def jobs_in(folder: Path, seeds: int = 2) -> list[RunJob]:
    return Plan.of("color-digits", ["fedsgd"], seeds, ["rounds=2", "model.hidden=[8]"], folder).jobs()


def test_only_options_that_were_given_change_settings() -> None:
    assert job_changes(3, None, None) == ["rounds=3"]
    assert job_changes(None, 0.5, 10) == ["data.subset=0.5", "evaluate_every=10"]


def test_progress_is_a_line_per_tenth_and_finished_runs_are_not_run_again(tmp_path: Path) -> None:
    console = Console(file=io.StringIO(), width=140)
    run_all(console, jobs_in(tmp_path), 1)
    lines = console.file.getvalue().splitlines()
    assert lines[-1] == "all runs: 4 of 4 rounds  about 0:00:00 left"
    assert all(job.finished() and (job.folder / "loss.png").exists() for job in jobs_in(tmp_path))
    again = Console(file=io.StringIO())
    run_all(again, jobs_in(tmp_path), 2)
    assert again.file.getvalue() == ""


def test_a_terminal_has_a_bar_for_all_rounds(tmp_path: Path) -> None:
    console = Console(file=io.StringIO(), width=140, force_terminal=True, color_system=None)
    run_all(console, jobs_in(tmp_path, seeds=1), None)
    assert "all runs" in console.file.getvalue()
    assert "2/2" in console.file.getvalue()
