"""Progress in a terminal is a bar, and elsewhere a few lines."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from counting import Counting
from histories import History, record
from rich.console import Console

from fedilc.progress import counted
from fedilc.report.progress import ProgressBar, work_bars
from fedilc.studies.worker_pool import JobError, working
from fedilc.training.callbacks import Run


def watch(console: Console, history: History, rounds: int) -> str:
    bar = ProgressBar(console, "fedsgd")
    run = Run(rounds)
    bar.on_start(run)
    for found in history:
        run.history.append(found)
        bar.on_round(run, found)
    bar.on_end(run)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_progress_is_five_lines_where_output_is_no_terminal() -> None:
    history = [record(number, 0.5, 0.25, 0.75) for number in range(1, 101)]
    shown = watch(Console(file=io.StringIO(), width=100), history, 100).split("\n")
    assert [line for line in shown if line.strip()] == [
        f"fedsgd: round {number}/100  train 0.500  val 0.250  OOD 0.750" for number in (20, 40, 60, 80, 100)
    ]


def test_progress_tells_the_round_of_a_loss_that_was_measured_earlier() -> None:
    history = [record(n, 0.5, *((0.25, 0.75) if n % 3 == 0 else ())) for n in range(1, 6)]
    shown = watch(Console(file=io.StringIO(), width=100), history, 5).splitlines()
    assert [line.strip() for line in shown if line.strip()] == [
        "fedsgd: round 1/5  train 0.500",
        "fedsgd: round 2/5  train 0.500",
        "fedsgd: round 3/5  train 0.500  val 0.250  OOD 0.750",
        "fedsgd: round 4/5  train 0.500  round 3: val 0.250  OOD 0.750",
        "fedsgd: round 5/5  train 0.500  round 3: val 0.250  OOD 0.750",
    ]


def test_the_bar_with_an_earlier_rounds_losses_fits_a_terminal_of_eighty_columns() -> None:
    console = Console(file=io.StringIO(), width=80, force_terminal=True, color_system=None)
    bar = ProgressBar(console, "fishr-intra-arith")
    run = Run(301)
    bar.on_start(run)
    bar.on_round(run, record(120, 0.5, 0.25, 0.75))
    bar.on_round(run, record(123, 0.5))
    bar.on_end(run)
    assert isinstance(console.file, io.StringIO)
    assert "train 0.500  round 120: val 0.250  OOD 0.750" in console.file.getvalue()


def test_progress_says_where_a_resumed_run_goes_on() -> None:
    console = Console(file=io.StringIO(), width=100)
    ProgressBar(console, "fedsgd").on_start(Run(10, history=[record(1, 0.5)]))
    assert isinstance(console.file, io.StringIO)
    assert console.file.getvalue() == "fedsgd: continuing after round 1\n"


def test_progress_is_a_bar_with_losses_in_a_terminal() -> None:
    console = Console(file=io.StringIO(), width=120, force_terminal=True, color_system=None)
    shown = watch(console, [record(1, 0.5, 0.25), record(2, 0.5, 0.125)], 2)
    assert "fedsgd" in shown
    assert "2/2" in shown
    assert "train 0.500  val 0.125" in shown


@pytest.mark.parametrize("terminal", [True, False])
def test_many_jobs_have_a_bar_each_while_they_run_or_a_line_per_tenth(tmp_path: Path, terminal: bool) -> None:
    console = Console(file=io.StringIO(), width=100, force_terminal=terminal, color_system=None)
    jobs = [Counting.of(tmp_path, f"job {number}", 2, pause=0.4) for number in range(2)]
    with work_bars(console) as show, working(1, "units", show) as work:
        work.do("counting", jobs)
    assert isinstance(console.file, io.StringIO)
    shown = console.file.getvalue()
    if terminal:
        assert "  job 0" in shown
        assert "4/4" in shown
    else:
        lines = shown.splitlines()
        assert lines == sorted(lines)
        assert {"counting: 2 of 4 units", "counting: 4 of 4 units"} <= {
            line.partition("  ")[0] for line in lines
        }
        assert lines[-1].endswith("about 0:00:00 left")


def test_a_job_that_fails_is_named_at_once(tmp_path: Path) -> None:
    console = Console(file=io.StringIO(), width=100)
    jobs = [Counting.of(tmp_path, "bad", fault="error"), Counting.of(tmp_path, "good")]
    with pytest.raises(JobError), work_bars(console) as show, working(1, "units", show) as work:
        work.do("counting", jobs)
    assert isinstance(console.file, io.StringIO)
    assert console.file.getvalue().splitlines() == [
        "bad failed: the silo is empty; fill it",
        "counting: 1 of 2 units  about 0:00:00 left",
    ]


def test_work_that_is_no_job_is_shown_after_the_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedilc.progress.LINE_SECONDS", 0.0)
    for terminal in (False, True):
        console = Console(file=io.StringIO(), width=100, force_terminal=terminal, color_system=None)
        with work_bars(console):
            assert list(counted("scores of models", "ab")) == ["a", "b"]
        assert isinstance(console.file, io.StringIO)
        assert ("scores of models: 1 of 2" if not terminal else "2/2") in console.file.getvalue()
