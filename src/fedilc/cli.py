"""The command `fedilc`. Thin: it parses, calls, and says in one sentence what went wrong."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TextIO

import typer

from fedilc import __version__
from fedilc.commands import make_console
from fedilc.commands.check import check
from fedilc.commands.data import use_data_folder
from fedilc.commands.eicu import data_app
from fedilc.commands.flower import flower_app
from fedilc.commands.join import join
from fedilc.commands.nvflare import nvflare_app
from fedilc.commands.options import Changes, DataDir, ExperimentName, Rounds, Seed, as_changes
from fedilc.commands.reproduce import reproduce, sweep_app
from fedilc.commands.serve import serve, token
from fedilc.errors import ConfigError, FedILCError, FedILCWarning, StoppedError

if TYPE_CHECKING:
    from rich.console import Console

    from fedilc.config import Experiment
    from fedilc.federation import Record

app = typer.Typer(
    help="Train one model over silos that cannot share data, for a site nobody trained on.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def main() -> None:
    """Run the command; a user's mistake is one sentence and exit code 2, Ctrl-C is 130."""
    warnings.showwarning = _say_warning
    try:
        code = app(standalone_mode=False)
    except FedILCError as error:
        _say(str(error))
        sys.exit(2)
    except StoppedError as error:
        _say(str(error))
        sys.exit(130)
    except (KeyboardInterrupt, typer.Abort):
        code = 130
    except Exception as error:
        # typer's usage errors; where their base class lives depends on typer's version.
        if not hasattr(error, "format_message"):
            raise
        if error.format_message():
            _say(f"{error.format_message()} ({_command()} --help tells more)")
        sys.exit(2)
    if code == 130:
        _say("interrupted")
    sys.exit(code)


def _command() -> str:
    """The command as far as it was given rightly, with its subcommands."""
    words, here = ["fedilc"], typer.main.get_command(app)
    for word in sys.argv[1:]:
        known = getattr(here, "commands", {})
        if word not in known:
            break
        words.append(word)
        here = known[word]
    return " ".join(words)


def _say(sentence: str) -> None:
    sys.stderr.write(f"fedilc: {' '.join(sentence.split())}\n")


_show_other_warning = warnings.showwarning


def _say_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    if issubclass(category, FedILCWarning):
        _say(f"note: {message}")
    else:
        _show_other_warning(message, category, filename, lineno, file, line)


def _version(wanted: bool) -> None:
    if wanted:
        sys.stdout.write(f"fedilc {__version__}\n")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    pass


@app.command()
def run(
    experiment: ExperimentName = "color-digits",
    algorithm: Annotated[
        str | None, typer.Option("--algorithm", "-a", help="An algorithm, or 'all' to compare all.")
    ] = None,
    rounds: Rounds = None,
    seed: Seed = None,
    changes: Changes = None,
    out: Annotated[Path | None, typer.Option(help="The run folder. (default: a new one in runs/)")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the last completed round.")] = False,
    data_dir: DataDir = None,
) -> None:
    """Train, and end with a table and a picture."""
    from fedilc.algorithms import algorithms
    from fedilc.config import read_experiment
    from fedilc.federation import RunFolder
    from fedilc.runtimes.distributed import joined_group
    from fedilc.runtimes.launch import mark, unmark

    if data_dir is not None:
        use_data_folder(data_dir)
    every = algorithm == "all"
    short = {"algorithm": None if every else algorithm, "rounds": rounds, "seed": seed}
    settings, folder = read_experiment(experiment, [*(changes or []), *as_changes(short)])
    names = list(algorithms) if every else [settings.algorithm]
    chosen = [settings.with_algorithm(name) for name in names]
    with joined_group() as group:
        if not group.first:
            for one in chosen:
                _help_to_train(one, folder)
            return
        stem = Path("runs") / settings.name / f"{'all' if every else settings.algorithm}-seed{settings.seed}"
        target, going_on = _target(out, stem, resume, group.restarted)
        places = {name: target / name if every else target for name in names}
        begun = [name for name, place in places.items() if RunFolder(place).settings_file.exists()]
        if not begun:
            mark(target)
        elif not going_on:
            unmark(target)
        console = make_console()
        histories = {}
        for one in chosen:
            name = one.algorithm
            again = going_on and (name in begun or (resume and not every))
            histories[name] = _train(console, one, folder, places[name], again)
        _show(console, settings.name, histories, target)


app.command()(reproduce)


def _target(out: Path | None, stem: Path, resume: bool, restarted: bool) -> tuple[Path, bool]:
    """The run folder, and whether to go on with what is in it.

    That is the folder given, or the first free one after `stem`; to resume without one given, the newest.
    What an earlier attempt of the same launch began is gone on with, unasked.
    """
    from fedilc.runtimes.launch import is_marked

    if out is not None:
        return out, resume or (restarted and is_marked(out))
    number, folder = 1, stem
    taken: list[Path] = []
    while folder.exists():
        number, taken = number + 1, [folder, *taken]
        folder = stem.with_name(f"{stem.name}-{number}")
    own = [place for place in taken if restarted and is_marked(place)]
    if own or (resume and taken):
        return (own or taken)[0], True
    if resume:
        raise ConfigError(f"there is no run to resume at {stem}; name its folder with --out")
    return folder, False


def _train(console: Console, settings: Experiment, folder: Path, out: Path, resume: bool) -> list[Record]:
    from fedilc.callbacks import KeepBest
    from fedilc.checking import prepare
    from fedilc.federation import RunFolder
    from fedilc.report.progress import ProgressBar
    from fedilc.training import train

    shelf, model = prepare(settings, folder)
    bar = ProgressBar(console, settings.algorithm)
    try:
        result = train(
            shelf,
            model,
            settings.algorithm,
            **settings.options(),
            callbacks=[bar, KeepBest("validation"), KeepBest("oracle")],
            out=out,
            resume=resume,
            settings={"experiment": settings.name, **settings.model_dump(include={"data", "model"})},
        )
    except KeyboardInterrupt:
        bar.close()
        done = len(RunFolder(out).history())
        sentence = f"stopped after round {done}; the same command with --resume goes on"
        raise StoppedError(sentence) from None
    finally:
        bar.close()
    if result.stopped:
        console.print(f"stopped early: {result.stopped}")
    return result.history


def _help_to_train(settings: Experiment, folder: Path) -> None:
    """Train as one of several ranks that is not the first, which writes and reports for all."""
    from fedilc.checking import prepare
    from fedilc.training import train

    shelf, model = prepare(settings, folder)
    train(shelf, model, settings.algorithm, **settings.options())


def _show(console: Console, title: str, histories: dict[str, list[Record]], target: Path) -> None:
    from fedilc.report.plots import comparison_picture, loss_picture
    from fedilc.report.tables import comparison_table, run_table

    picture = target / "loss.png"
    if len(histories) == 1:
        (name, history), *_ = histories.items()
        loss_picture(picture, f"{title} · {name}", history)
        console.print(run_table(f"{title} · {name}", history))
    else:
        comparison_picture(picture, title, histories)
        console.print(comparison_table(title, histories))
    console.print(f"picture: {picture}\nrun folder: {target}", soft_wrap=True, markup=False)


@app.command()
def report(
    runs: Annotated[
        list[Path], typer.Argument(help="Run folders, folders of run folders, or the folder of a campaign.")
    ],
    out: Annotated[Path, typer.Option(help="Where to write the picture.")] = Path("report.png"),
) -> None:
    """Compare finished or unfinished runs in tables and one picture.

    For the folder of a campaign whose runs are gone: make its tables and pictures again from its numbers.
    """
    from fedilc.federation import RunFolder
    from fedilc.report.plots import comparison_picture
    from fedilc.report.tables import comparison_table

    places = [file.parent for path in runs for file in sorted(path.rglob("run.json"))]
    if not places and all((path / "campaign.json").exists() for path in runs):
        for path in runs:
            _remake(path)
        return
    if not places:
        raise ConfigError(f"no run folder in {', '.join(map(str, runs))}; a run folder holds run.json")
    histories = {}
    for place in places:
        history = RunFolder(place).history()
        if history:
            histories[_label(place, places)] = history
    if not histories:
        raise ConfigError("none of these runs has completed a round yet")
    console = make_console()
    out = out if out.suffix else out.with_suffix(".png")
    comparison_picture(out, "runs", histories)
    console.print(comparison_table("runs", histories, first="run"))
    console.print(f"picture: {out}", soft_wrap=True, markup=False)


def _remake(campaign: Path) -> None:
    from fedilc.report.campaign_files import remake_campaign
    from fedilc.report.formats import rich_table

    console = make_console()
    for table in remake_campaign(campaign):
        console.print(rich_table(table, all_notes=False))
    files = "tables.md, tables.tex, tables/*.csv, figures/*.png"
    console.print(f"made again: {campaign} ({files})", soft_wrap=True, markup=False)


def _label(place: Path, places: list[Path]) -> str:
    name = place.resolve().name
    same = [other for other in places if other.resolve().name == name]
    return name if len(same) == 1 else str(place)


@app.command("list")
def list_() -> None:
    """Show algorithms, experiments and models, one line each."""
    from rich.table import Table

    from fedilc.algorithms import algorithms
    from fedilc.config import read_experiment, shipped_experiments
    from fedilc.models import MODELS

    groups = {
        "algorithms": {name: entry.summary for name, entry in algorithms.items()},
        "experiments": {name: read_experiment(name)[0].summary for name in shipped_experiments()},
        "models": {name: entry.summary for name, entry in MODELS.items()},
    }
    console = make_console()
    for title, lines in groups.items():
        table = Table(title=title, title_justify="left", title_style="bold", show_header=False, box=None)
        for name, summary in lines.items():
            table.add_row(f"  {name}", summary)
        console.print(table)
        console.print()


for _command_of_its_own in (check, serve, join, token):
    app.command()(_command_of_its_own)
app.add_typer(sweep_app, name="sweep")
app.add_typer(nvflare_app, name="nvflare")
app.add_typer(flower_app, name="flower")
app.add_typer(data_app, name="data")
