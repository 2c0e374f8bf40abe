"""`fedilc run`: train one or several algorithms, print a table and draw a picture."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedilc.cli.console import drawn, make_console, quick_imports, say, stage_progress
from fedilc.cli.options import (
    BackboneName,
    Balance,
    Changes,
    DataDir,
    ExperimentName,
    ModelFunction,
    OnDivergence,
    Rounds,
    Seed,
    as_changes,
    not_a_file,
    use_data_folder,
)
from fedilc.errors import ConfigError, FedILCWarning, StoppedError

if TYPE_CHECKING:
    from rich.console import Console

    from fedilc.config import Experiment
    from fedilc.federation import Record


def run(
    experiment: ExperimentName = "color-digits-shift",
    algorithm: Annotated[
        list[str] | None,
        typer.Option("--algorithm", "-a", help="An algorithm, or 'all' for the paper's six; may repeat."),
    ] = None,
    rounds: Rounds = None,
    seed: Seed = None,
    balance: Balance = None,
    on_divergence: OnDivergence = None,
    changes: Changes = None,
    out: Annotated[
        Path | None, typer.Option(callback=not_a_file, help="The run folder. (default: a new one in runs/)")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue after the last complete round.")] = False,
    model: ModelFunction = None,
    backbone: BackboneName = None,
    data_dir: DataDir = None,
) -> None:
    """Train one or several algorithms, print a table and draw a picture."""
    with quick_imports():
        from fedilc.config import read_experiment
        from fedilc.runtimes.distributed import joined_group
        from fedilc.runtimes.torchrun import claim, release
        from fedilc.storage.run_folder import RunFolder

    use_data_folder(data_dir)
    names, title = _algorithms(algorithm or [])
    short = {
        "algorithm": names[0] if names else None,
        "rounds": rounds,
        "seed": seed,
        "balance": balance,
        "on_divergence": on_divergence,
        "data.backbone": backbone,
    }
    asked = [*(changes or []), *as_changes(short)]
    settings, folder = read_experiment(experiment, asked)
    beside = [name for name in settings.beside if not names and name != settings.algorithm]
    names = names or [*beside, settings.algorithm]
    several = len(names) > 1
    chosen = [read_experiment(experiment, [*asked, f"algorithm={name}"])[0] for name in names]
    with joined_group() as group:
        if not group.first:
            for one in chosen:
                _help_to_train(one, folder, model)
            return
        stem = Path("runs") / settings.name / f"{title or '+'.join(names)}-seed{settings.seed}"
        target, going_on = _target(out, stem, resume, group.restarted)
        places = {name: target / name if several else target for name in names}
        begun = [name for name, place in places.items() if RunFolder(place).settings_file.exists()]
        if not begun:
            claim(target)
        elif not going_on:
            release(target)
        console = make_console()
        histories = {}
        for one in chosen:
            name = one.algorithm
            again = going_on and (name in begun or (resume and not begun))
            histories[name] = _train(console, one, folder, places[name], again, model)
        _show(console, settings, histories, target, chosen if beside else [])


def _algorithms(given: list[str]) -> tuple[list[str], str]:
    """Return the algorithms asked for, each once, and what they are called together in a folder's name."""
    from fedilc import algorithms

    if "all" in given:
        return list(algorithms.PAPER), "all"
    for name in given:
        algorithms.get(name)
    names = list(dict.fromkeys(given))
    return names, "+".join(names)


def _target(out: Path | None, stem: Path, resume: bool, restarted: bool) -> tuple[Path, bool]:
    """Return the run folder, and whether to continue the run in it.

    That is the folder given, or the first free one after `stem`; to resume without one given, the newest.
    A run that an earlier attempt of the same launch began is continued without --resume.
    """
    from fedilc.runtimes.torchrun import is_claimed

    if out is not None:
        return out, resume or (restarted and is_claimed(out))
    number, folder = 1, stem
    taken: list[Path] = []
    while folder.exists():
        number, taken = number + 1, [folder, *taken]
        folder = stem.with_name(f"{stem.name}-{number}")
    own = [place for place in taken if restarted and is_claimed(place)]
    if own or (resume and taken):
        return (own or taken)[0], True
    if resume:
        raise ConfigError(f"there is no run to resume at {stem}; name its folder with --out")
    return folder, False


def _train(
    console: Console, settings: Experiment, folder: Path, out: Path, resume: bool, own: str | None
) -> list[Record]:
    from fedilc.report.progress import ProgressBar
    from fedilc.storage.run_folder import RunFolder
    from fedilc.studies.jobs import run_experiment

    bar = ProgressBar(console, settings.algorithm)
    try:
        with stage_progress(console):
            result = run_experiment(settings, folder, own, out=out, resume=resume, callbacks=[bar])
    except KeyboardInterrupt:
        done = len(RunFolder(out).history())
        sentence = f"stopped after round {done}; run the same command with --resume to continue"
        raise StoppedError(sentence) from None
    finally:
        bar.close()
    if result.stopped:
        console.print(f"stopped early: {result.stopped}")
    return result.history


def _help_to_train(settings: Experiment, folder: Path, own: str | None) -> None:
    """Train as one of several ranks that is not the first, which writes and reports for all."""
    from fedilc.studies.jobs import run_experiment

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FedILCWarning)
        run_experiment(settings, folder, own)


def _show(
    console: Console,
    settings: Experiment,
    histories: dict[str, list[Record]],
    target: Path,
    compared: list[Experiment],
) -> None:
    """Print the table and where the picture is; if the experiment compares algorithms, explain the result."""
    with quick_imports():
        from fedilc.report.plots import accuracy_picture, comparison_picture, loss_picture
        from fedilc.report.run_tables import comparison_table, finding, last_round_table, run_table

    title, picture = settings.name, target / "loss.png"
    if len(histories) == 1:
        (name, history), *_ = histories.items()
        line = drawn(loss_picture, picture, f"{title} · {name}", history)
        console.print(run_table(f"{title} · {name}", history))
    elif compared and (told := finding(histories, parts := {e.algorithm: e.parts for e in compared})):
        begin = settings.penalty_anneal_rounds
        matching = " and ".join(name for name, algorithm in parts.items() if algorithm.penalty is not None)
        note = f"after round {begin}, lambda is {settings.penalty_weight:g} in {matching}" if begin else ""
        line = drawn(accuracy_picture, target / "accuracy.png", title, note, histories)
        console.print(last_round_table(title, histories))
        console.print(f"{told}\n", markup=False, highlight=False)
    else:
        line = drawn(comparison_picture, picture, title, histories)
        console.print(comparison_table(title, histories))
    say(console, f"{line}run folder: {target}")
