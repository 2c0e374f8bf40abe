"""Many runs with progress: a line per run without a terminal, a bar with one, nothing if all is done."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from fedilc.cli.jobs import job_changes, run_all
from fedilc.errors import StoppedError
from fedilc.studies.jobs import Job
from fedilc.studies.reproduce import Plan


def jobs_in(folder: Path, seeds: int = 2) -> list[Job]:
    return Plan.of("color-digits", ["fedsgd"], seeds, ["rounds=1", "model.hidden=[8]"], folder).jobs()


def test_only_options_that_were_given_change_settings() -> None:
    assert job_changes(3, None, None) == ["rounds=3"]
    assert job_changes(None, 0.5, 10) == ["data.subset=0.5", "evaluate_every=10"]


def test_runs_are_reported_as_they_end_and_finished_ones_are_not_run_again(tmp_path: Path) -> None:
    console = Console(file=io.StringIO(), width=140)
    run_all(console, jobs_in(tmp_path), 2)
    lines = console.file.getvalue().splitlines()
    assert sorted(line.split(":")[0] for line in lines) == ["fedsgd seed 0", "fedsgd seed 1"]
    assert lines[-1].split(": ")[1].startswith("done (2 of 2 rounds")
    again = Console(file=io.StringIO())
    run_all(again, jobs_in(tmp_path), 2)
    assert again.file.getvalue() == ""


def test_a_terminal_has_a_bar_for_all_rounds(tmp_path: Path) -> None:
    console = Console(file=io.StringIO(), width=140, force_terminal=True, color_system=None)
    run_all(console, jobs_in(tmp_path, seeds=1), None)
    assert "all rounds" in console.file.getvalue()
    assert "1/1" in console.file.getvalue()


def test_an_interrupt_says_how_far_it_came_and_how_to_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("fedilc.studies.jobs.run_jobs", interrupted)
    with pytest.raises(StoppedError, match=r"0 of 2 runs finished and 0 of 2 rounds done; run the same"):
        run_all(Console(file=io.StringIO()), jobs_in(tmp_path), 1)
