"""`fedilc study`: from tables of several sites to a verdict."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedilc.cli.console import make_console, say, say_notes, stage_progress
from fedilc.cli.options import (
    BackboneName,
    DataDir,
    Names,
    TableOptions,
    comma_numbers,
    not_a_file,
    use_data_folder,
    with_flags,
    with_table_options,
)
from fedilc.errors import ConfigError
from fedilc.report import require_report

if TYPE_CHECKING:
    from rich.console import Console

    from fedilc.report.score_tables import Study


class ChooseBy(StrEnum):
    """How settings are chosen on the training sites."""

    SILO = "silo"
    VALIDATION = "validation"


class Primary(StrEnum):
    """The score that decides."""

    AUROC = "auroc"
    LOG_LOSS = "log_loss"


def _widths(text: str | None, option: str = "--hidden", between: str = ",") -> tuple[int, ...] | None:
    """Return the widths of layers, in their order; None if they were not given."""
    if text is None:
        return None
    try:
        return tuple(int(part) for part in text.split(between))
    except ValueError as error:
        raise ConfigError(
            f"{option} {text!r} is not a list of widths like 64{between}32; a network without hidden layers "
            f"is {'--networks' if option == '--networks' else '--model'} linear"
        ) from error


def _networks(text: str | None) -> tuple[tuple[int, ...], ...] | None:
    """Return the widths of several networks; None if they were not given.

    >>> _networks("linear,64-32")
    ((), (64, 32))
    """
    if text is None:
        return None
    found = (() if one == "linear" else _widths(one, "--networks", "-") for one in text.split(","))
    return tuple(widths for widths in found if widths is not None)


def _words(text: str | None) -> tuple[str, ...]:
    """Return the words of a list; none if it was not given."""
    return () if text is None else tuple(dict.fromkeys(text.split(",")))


@with_table_options
def study(
    *,
    data: Annotated[
        Names,
        typer.Argument(
            metavar="[DATA]...",
            help="A table with --silo-column, one table per site, a folder of images by site and class, a "
            "TOML file, or a data set. (default: heart-disease, four hospitals inside the package)",
        ),
    ] = None,
    tables: TableOptions,
    image_size: Annotated[
        int | None,
        typer.Option(
            min=16,
            help="Pixels per side, for a folder of images by domain and class. (default: 32, or those of "
            "--backbone)",
        ),
    ] = None,
    backbone: BackboneName = None,
    hold_out: Annotated[
        Names, typer.Option(help="Leave out this site only; may repeat. (default: each in turn)")
    ] = None,
    algorithm: Annotated[
        Names,
        typer.Option(
            "--algorithm",
            "-a",
            help="A federated method; may repeat. (default: fedavg, fedsgd, fishr-inter-geo, "
            "fishr-intra-geo, agreed-geometric)",
        ),
    ] = None,
    seeds: Annotated[
        int | None, typer.Option(min=1, help="How many seeds, starting from 0. (default: 3)")
    ] = None,
    rounds: Annotated[
        int | None,
        typer.Option(
            min=1, help="The most rounds; fewer if they score better. (default: 100, or 30 for images)"
        ),
    ] = None,
    learning_rates: Annotated[
        str | None,
        typer.Option(
            help="Rates to choose from, separated by commas. (default: 0.003,0.01,0.03, or 0.001 for images)"
        ),
    ] = None,
    local_learning_rates: Annotated[
        str | None,
        typer.Option(
            help="The same for the silos' own steps, as in fedavg. (default: 0.01,0.03,0.1, or 0.03 for "
            "images)"
        ),
    ] = None,
    penalty_weights: Annotated[
        str | None,
        typer.Option(help="Lambdas to choose from, separated by commas. (default: 1,100, or 1 for images)"),
    ] = None,
    weight_decays: Annotated[
        str | None,
        typer.Option(
            help="Ridges of regressions to choose from, separated by commas. (default: "
            "0.0001,0.001,0.01,0.1,1)"
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            help="linear, mlp, cnn, or module:function, which takes the shape of an input and the number of "
            "outputs. (default: mlp, cnn for images, or linear with --backbone)"
        ),
    ] = None,
    hidden: Annotated[
        str | None,
        typer.Option(help="Widths of the hidden layers of mlp, separated by commas. (default: 32)"),
    ] = None,
    networks: Annotated[
        str | None,
        typer.Option(
            help="Other widths to choose from: linear, or widths such as 64 or 64-32, separated by commas. "
            "(default: none)"
        ),
    ] = None,
    network_decays: Annotated[
        str | None,
        typer.Option(help="Weight decays of networks to choose from, separated by commas. (default: 0,0.01)"),
    ] = None,
    averages: Annotated[
        str | None,
        typer.Option(help="Averages of weights to choose from: none, ema. (default: none)"),
    ] = None,
    scalings: Annotated[
        str | None,
        typer.Option(
            help="How numbers may be scaled: moments (mean and deviation), robust (median and quartiles, "
            "tails clipped). (default: moments,robust)"
        ),
    ] = None,
    primary: Annotated[
        Primary | None,
        typer.Option(help="The score that decides. (default: auroc; accuracy for several classes)"),
    ] = None,
    references: Annotated[
        bool | None,
        typer.Option(
            "--references/--no-references",
            help="Compare with a constant, with logistic regression (federated, pooled, of the site alone), "
            "with pooled boosted trees, and with the network on pooled data or on the site's own. "
            "(default: --references)",
        ),
    ] = None,
    choose_by: Annotated[
        ChooseBy | None,
        typer.Option(
            help="silo: settings that are best at training sites left out in turn; validation: on validation "
            "examples of the training sites. (default: silo, or validation with fewer than four sites)"
        ),
    ] = None,
    choosing_rows: Annotated[
        int | None,
        typer.Option(
            help="Rows of each site, drawn at random, on which settings are chosen at most; final models are "
            "trained on all. (default: all, or 5000 of tables with over 20,000 rows)"
        ),
    ] = None,
    thresholds: Annotated[
        str | None,
        typer.Option(
            help="Risks at which somebody would act, for the table of net benefit, separated by commas. "
            "(default: 0.1,0.2,0.3,0.5)"
        ),
    ] = None,
    subgroup: Annotated[
        Names,
        typer.Option(
            metavar="COLUMN",
            help="Give the scores by this column too (sex), or by a comparison ('age>=65'); may repeat. The "
            "column may be one that is dropped.",
        ),
    ] = None,
    sensitivity: Annotated[
        bool,
        typer.Option(
            "--sensitivity",
            help="Study once more without indicators of missing values; this takes about twice the time.",
        ),
    ] = False,
    min_events: Annotated[
        int,
        typer.Option(min=1, help="How many examples of the rarest class a score at a held-out site needs."),
    ] = 10,
    min_cell: Annotated[
        int,
        typer.Option(
            min=1,
            help="How many examples of each class every count in the results needs: of a class, a subgroup, "
            "a range of risks; 1 tells all. Over silos, each silo's owner sets both (fedilc join).",
        ),
    ] = 1,
    jobs: Annotated[
        int | None,
        typer.Option(min=1, help="Worker processes. (default: as many as cores, or as fit into memory)"),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(callback=not_a_file, help="Where results go. (default: results/NAME-study)")
    ] = None,
    data_dir: DataDir = None,
    protocol: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Declare the analysis: write the whole plan here, train nothing."),
    ] = None,
    follow: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Do the declared analysis; refuse another one, or changed data."),
    ] = None,
) -> None:
    """Leave each site out in turn, train on the others, and say which method works best at a new site.

    Every choice (method, round, learning rate, penalties, preprocessing) is made on the training sites alone.
    Runs that are done are kept: interrupt the command and call it again to continue.
    """
    require_report("fedilc study")
    from fedilc.evaluation.estimates import Floors
    from fedilc.report.progress import work_bars
    from fedilc.report.study_files import write_study
    from fedilc.studies.inspection import inspect_tables, write_inspection
    from fedilc.studies.study.data import StudyTables, study_data
    from fedilc.studies.study.declaration import Protocol
    from fedilc.studies.study.plan import StudyPlan
    from fedilc.studies.study.run import run_study
    from fedilc.studies.study.safety import without_unsafe
    from fedilc.studies.study.sensitivity import run_without_indicators
    from fedilc.studies.study.settings import usual_settings
    from fedilc.studies.worker_pool import workers_that_fit

    use_data_folder(data_dir)
    if protocol is not None and follow is not None:
        raise ConfigError("--protocol declares an analysis and --follow does it; give one of them")
    declared = Protocol.read(follow) if follow is not None else None
    given = tables.given() | {
        key: value for key, value in (("image_size", image_size), ("backbone", backbone)) if value is not None
    }
    if declared is None and not data and given:
        raise ConfigError("DATA is missing; name the table to study before the options that describe it")
    chosen = {
        "algorithms": tuple(dict.fromkeys(algorithm or ())),
        "hold_out": tuple(dict.fromkeys(hold_out or ())),
        "seeds": seeds,
        "rounds": rounds,
        "learning_rates": comma_numbers(learning_rates, "--learning-rates"),
        "local_learning_rates": comma_numbers(local_learning_rates, "--local-learning-rates"),
        "penalty_weights": comma_numbers(penalty_weights, "--penalty-weights"),
        "weight_decays": comma_numbers(weight_decays, "--weight-decays"),
        "model": model,
        "hidden": _widths(hidden),
        "networks": _networks(networks),
        "network_decays": comma_numbers(network_decays, "--network-decays", zero=True),
        "averages": _words(averages),
        "scalings": _words(scalings),
        "primary": primary.value if primary else None,
        "references": references,
        "sensitivity": sensitivity or None,
        "subgroups": tuple(dict.fromkeys(subgroup or ())),
        "thresholds": comma_numbers(thresholds, "--thresholds"),
        "choose_by": choose_by.value if choose_by else None,
        "choosing_rows": choosing_rows,
    }
    inputs: dict[str, Any] = {
        "data": data or ["heart-disease"],
        "options": given,
        "settings": {name: value for name, value in chosen.items() if value not in (None, ())},
    }
    if declared is not None:
        before = declared.content["inputs"]
        inputs["data"] = data or before["data"]
        inputs |= {key: before[key] | inputs[key] for key in ("options", "settings")}
    console = make_console()
    with stage_progress(console):
        read = study_data(inputs["data"], **inputs["options"])
    usual = usual_settings(read, dict(read.settings) | inputs["settings"])
    settings = usual.with_given(read.settings, "study").with_given(inputs["settings"])
    plan = StudyPlan(read, settings)
    if min_cell > 1 and read.is_table:
        plan = without_unsafe(plan)
    folder = out or Path("results") / f"{read.name}-study"
    if protocol is not None:
        plan_of = Protocol.of(plan, inputs)
        plan_of.write(protocol)
        say(console, f"declared: {protocol} (sha256 {plan_of.digest}); nothing was trained")
        say(console, f"to do this analysis: fedilc study --follow {protocol}")
        return
    if declared is not None and follow is not None:
        declared.require(Protocol.of(plan, inputs), follow)
        declared.claim(folder)
    if read.settings:
        taken = ", ".join(f"{name} = {value}" for name, value in read.settings.items())
        say(console, f"settings in {inputs['data'][0]}: {taken}")
    say_notes(console, folder, plan.notes(), [*read.details, *plan.own_notes()], read.proposals)
    at_a_time = jobs or workers_that_fit(read.nbytes)
    with work_bars(console) as show:
        result = run_study(plan, folder, at_a_time, show, Floors(min_events, min_cell))
    without = None
    if settings.sensitivity:
        say(console, "once more without indicators of missing values")
        with work_bars(console) as show:
            without = run_without_indicators(result, folder, at_a_time, show)
    with stage_progress(console):
        found = write_study(folder, result, declared.digest if declared is not None else None, without)
        if isinstance(read, StudyTables):
            write_inspection(folder, inspect_tables(read.name, read.tables))
    show_study(console, found)
    files = "study.json, verdict.txt, tables.md, tables/*.csv, predictions.parquet, checklist.md"
    say(console, f"\nresults: {folder} ({files})")
    say(console, f"for a page of it: fedilc report {folder} -o report.html")


def show_study(console: Console, study: Study) -> None:
    """Print the tables that answer the question, and the verdict."""
    from fedilc.report.study_tables import summary_tables
    from fedilc.studies.study.declaration import declaration

    for table in summary_tables(study):
        console.print()
        console.print(table)
    if study.get("alarm"):
        console.print("\n[bold red]Alarm[/]")
        console.print(with_flags(study["alarm"]), markup=False)
    console.print("\n[bold]Verdict[/]")
    for sentence in study["verdict"]:
        console.print(with_flags(sentence), markup=False)
    console.print(declaration(study.get("protocol")), markup=False)
