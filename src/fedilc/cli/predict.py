"""`fedilc predict`, `evaluate` and `export`: use a trained model."""

from __future__ import annotations

import re
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated

import typer

from fedilc.algorithms.loss_registry import has_classes, task_of
from fedilc.cli.console import make_console, quick_imports, say
from fedilc.cli.options import (
    Authority,
    BackboneName,
    Criterion,
    ModelFunction,
    RunFolderOrUrl,
    RunFolderPath,
    SiloTokenFile,
    not_a_file,
)
from fedilc.errors import ConfigError, DataError, nearest, writing

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from polars import DataFrame
    from rich.console import Console

    from fedilc.training.loaded_model import LoadedModel


_PATIENCE_SECONDS = 30.0
_FORMULA = r"^\s*[=+\-@]"


def predict(
    run: RunFolderOrUrl,
    table: Annotated[
        Path, typer.Argument(help="New rows: .csv, .xlsx, .parquet, .npz, ..., or a folder of images.")
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="The file for the scores, .csv or .parquet.")],
    copy: Annotated[
        list[str] | None,
        typer.Option("--copy", metavar="COLUMN", help="A column to copy beside the scores; may repeat."),
    ] = None,
    criterion: Criterion = "validation",
    model: ModelFunction = None,
    backbone: BackboneName = None,
    token_file: SiloTokenFile = None,
    ca: Authority = None,
) -> None:
    """Write the trained model's scores for the rows of a table."""
    with quick_imports():
        import polars as pl

        from fedilc.data.tables.prediction_rows import rows_of

    if out.suffix not in (".csv", ".parquet"):
        raise ConfigError(f"scores are written as .csv or .parquet, but --out {out} has neither ending")
    loaded = load_run(run, criterion, model, token_file, ca, backbone)
    rows, where = rows_of(table)
    frame = rows if isinstance(rows, pl.DataFrame) else None
    columns = [] if frame is None else frame.columns
    for name in copy or []:
        if name not in columns:
            raise DataError(f"{where} has no column {name!r} to copy{nearest(name, columns)}")
    scores = _scores(loaded, table if isinstance(rows, list) else rows)
    copied: dict[str, object] = {name: frame[name] for name in copy or []} if frame is not None else {}
    if isinstance(rows, list):
        copied["file"] = [str(path.relative_to(table)) for path in rows]
    scored = pl.DataFrame({"row": range(1, len(rows) + 1), **copied, **scores})
    with writing(out):
        if out.suffix == ".parquet":
            scored.write_parquet(out)
        else:
            without_formulas(scored).write_csv(out)
    say(make_console(), f"{len(rows)} rows scored by round {loaded.round}: {out}")


def without_formulas(frame: DataFrame) -> DataFrame:
    """Return a table without texts that a spreadsheet takes for formulas: they get an apostrophe in front.

    A text is one if it begins like a formula and is not a number.
    """
    import polars as pl

    text = pl.col(pl.String, pl.Categorical, pl.Enum).cast(pl.String)
    number = text.str.strip_chars().cast(pl.Float64, strict=False).is_not_null()
    formula = text.str.contains(_FORMULA) & ~number
    safe = frame.with_columns(pl.when(formula).then(text.str.replace("^", "'")).otherwise(text))
    return safe.rename({name: f"'{name}" for name in frame.columns if re.match(_FORMULA, name)})


def load_run(
    run: str | Path,
    criterion: str,
    model: str | None,
    token_file: Path | None = None,
    authority: Path | None = None,
    backbone: str | None = None,
) -> LoadedModel:
    """Return the model of a run folder or URL; its network may be that of the user's own function."""
    with quick_imports():
        from fedilc.training.loaded_model import load

    network = None
    if model is not None:
        from fedilc.models.user_models import user_network

        network = user_network(model, 0)
    if not str(run).startswith(("http://", "https://")):
        return load(run, criterion, network, backbone)
    if criterion != "validation":
        raise ConfigError(
            f"a published model is from the round that validation chose; leave out --criterion {criterion}"
        )
    from fedilc.cli.join import read_token
    from fedilc.runtimes.rest.http_client import HttpClient, fetch_run

    client = HttpClient(str(run), read_token(token_file), authority, give_up_after=_PATIENCE_SECONDS)
    with TemporaryDirectory() as folder:
        try:
            fetch_run(client, Path(folder))
        finally:
            client.close()
        return load(folder, criterion, network, backbone)


def _scores(loaded: LoadedModel, rows: object) -> dict[str, object]:
    """Return the columns of scores: a probability per class and the class, or a number."""
    logits = loaded.logits(rows)
    if not has_classes(loaded.loss):
        return {"prediction": logits[:, 0]}
    shares = loaded.probabilities(logits)
    predicted = [loaded.classes[place] for place in shares.argmax(1)]
    if task_of(loaded.loss) == "binary":
        return {"probability": shares[:, 1], "prediction": predicted}
    named = {f"probability {name}": shares[:, place] for place, name in enumerate(loaded.classes)}
    return {**named, "prediction": predicted}


def evaluate(
    run: RunFolderOrUrl,
    table: Annotated[
        Path,
        typer.Argument(help="Rows with labels: .csv, .xlsx, .parquet, .npz, ..., or a folder of images."),
    ],
    criterion: Criterion = "validation",
    patient_column: Annotated[
        str | None,
        typer.Option(
            help="The column that names patients, if a patient may have several rows. (default: as in "
            "training)"
        ),
    ] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the numbers to this file.")] = None,
    recalibrate: Annotated[
        str | None,
        typer.Option(
            metavar="intercept|slope",
            help="Fit the model's intercept, or slope and intercept, to these rows, write the updated model, "
            "and show how many local patients it takes.",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            help="The run folder for the recalibrated model. (default: beside RUN, with its name and "
            "-recalibrated)",
        ),
    ] = None,
    model: ModelFunction = None,
    backbone: BackboneName = None,
    token_file: SiloTokenFile = None,
    ca: Authority = None,
) -> None:
    """Measure the trained model on a site's table, with 95 % intervals; nothing leaves the machine.

    With --recalibrate, also update the model for this site; RUN stays as it is.
    """
    with quick_imports():
        import json
        from dataclasses import asdict

        from rich.table import Table

        from fedilc.evaluation.estimates import size
        from fedilc.evaluation.intervals import score_intervals
        from fedilc.storage.run_folder import UPDATES

    target = None if recalibrate is None else _target(run, out)
    if out is not None and recalibrate is None:
        raise ConfigError(f"--out {out} is for a recalibrated model; give --recalibrate intercept or slope")
    loaded = load_run(run, criterion, model, token_file, ca, backbone)
    y, logits, patients = loaded.labelled_patients(table, patient_column)
    found = score_intervals(loaded.loss, y, logits, patients)
    title = f"{table} · round {loaded.round} · {size(loaded.loss, y, patients)}"
    shown = Table(title=title, box=None, title_justify="left")
    shown.add_column("score")
    shown.add_column("value [95% interval]")
    for name, interval in found.items():
        shown.add_row(name.replace("_", " "), str(interval))
    console = make_console()
    console.print(shown)
    update = None
    if recalibrate is not None and target is not None:
        updated = loaded.recalibrated(table, recalibrate, patient_column, target)
        update = updated.facts[UPDATES][-1]
        _show_update(console, update, target)
    if json_file is not None:
        numbers = {name: asdict(interval) for name, interval in found.items()}
        content: dict[str, object] = {"run": str(run), "round": loaded.round, "rows": len(y)}
        content |= {} if patients is None else {"patients": len(set(patients.tolist()))}
        content["scores"] = numbers
        content |= {} if update is None else {"recalibration": update}
        with writing(json_file):
            json_file.write_text(json.dumps(content, indent=2) + "\n")


def _target(run: str, out: Path | None) -> Path:
    """Return the folder for a recalibrated model; raise before anything is computed if it holds a run."""
    if out is None and run.startswith(("http://", "https://")):
        raise ConfigError("name a folder for the recalibrated model with --out: a URL has none beside it")
    place = Path(run).resolve()
    found = not_a_file(out) or place.with_name(f"{place.name}-recalibrated")
    if (found / "run.json").exists():
        raise ConfigError(f"{found} already holds a run; name another folder with --out, or remove it")
    return found


def _show_update(console: Console, update: Mapping[str, Any], target: Path) -> None:
    """Print the fitted coefficients, scores before and after, and the learning curve."""
    from fedilc.report.recalibration_tables import recalibration_tables
    from fedilc.report.tables import rich_table

    for table in recalibration_tables(update):
        console.print(rich_table(table))
    say(console, update["answer"])
    say(console, f"recalibrated model: {target} (its model-card.md has these tables)")


def export(
    run: RunFolderPath,
    out: Annotated[Path, typer.Argument(help="The file for the model, such as model.pt2.")],
    criterion: Criterion = "validation",
    model: ModelFunction = None,
    backbone: BackboneName = None,
) -> None:
    """Write the trained model as a torch.export file, and its preprocessing as JSON."""
    with quick_imports():
        from fedilc.training.loaded_model import export_model

    written = export_model(load_run(run, criterion, model, backbone=backbone), out)
    say(make_console(), f"written: {', '.join(map(str, written))}")
