"""`fedilc serve` with a study: the question of `fedilc study`, asked to silos that join over HTTP."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from fedilc.cli.study import show_study
from fedilc.config import has_study, read_study_file
from fedilc.data.sources import RemoteTables
from fedilc.errors import ConfigError, StoppedError

if TYPE_CHECKING:
    from rich.console import Console

    from fedilc.runtimes.rest.address import Address
    from fedilc.runtimes.rest.auth import TokenFile, Tokens

NOT_IN_STUDY = "a study chooses this itself, or its section [study] has it"


@dataclass(frozen=True)
class RemoteStudy:
    """A study over silos, as its file has it."""

    name: str
    source: RemoteTables
    settings: dict[str, Any]


def read_remote_study(name: str, changes: Sequence[str] = ()) -> RemoteStudy | None:
    """Return the study of a file, or None if the file is that of a run."""
    path = Path(name)
    if path.suffix != ".toml" or not path.exists() or not has_study(name):
        return None
    own, source, _, settings = read_study_file(name, changes)
    if not isinstance(source, RemoteTables):
        raise ConfigError(
            f"{name} has a section [study] and source={source.source!r}; `fedilc serve` does a study over "
            'tables of silos, source="remote-tables"; do this one with `fedilc study`, or leave out [study]'
        )
    return RemoteStudy(own, source, settings)


def serve_study(
    console: Console,
    study: RemoteStudy,
    rounds: int | None,
    out: Path | None,
    address: Address,
    tokens: Tokens | TokenFile | None,
    patience: float,
    say: Callable[[str], None],
    stay: bool,
) -> None:
    """Serve a study until it is done; Ctrl-C and SIGTERM end with a sentence on how to continue."""
    from fedilc.report import require_report

    require_report("a study")
    from fedilc.report.html.report import write_html_report
    from fedilc.report.progress import work_bars
    from fedilc.report.study_files import write_study
    from fedilc.studies.federated.serve import OnLost, StudyService

    settings = study.settings | ({} if rounds is None else {"rounds": rounds})
    on_lost = settings.pop("on_lost", "wait")
    if on_lost not in get_args(OnLost):
        raise ConfigError(f"study.on_lost={on_lost!r} is neither 'wait' nor 'continue'")
    folder = out or Path("runs") / study.name / "served"
    service = StudyService(
        study.name, study.source, settings, folder, address, tokens, say, patience, on_lost, stay
    )
    bars = ExitStack()
    try:
        with bars, service.running(bars.enter_context(work_bars(console))) as result:
            found = write_study(folder, result)
            write_html_report(folder / "report.html", [folder])
            bars.close()
            show_study(console, found)
            say(f"results: {folder} (report.html, study.json, verdict.txt, tables.md, tables/*.csv)")
    except KeyboardInterrupt:
        raise StoppedError("stopped; run the same command to continue; silos wait for it") from None
