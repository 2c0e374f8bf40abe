"""`fedilc join`: one silo that takes part in a run over HTTP."""

from __future__ import annotations

import logging
import sys
import time
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedilc.cli.console import LogFormat, log_to_stderr, make_console, quick_imports
from fedilc.cli.options import BackboneName, DataDir, refuse_given, use_data_folder, with_flags
from fedilc.errors import ConfigError, StoppedError, printable, require_extra

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from rich.console import Console

    from fedilc.data import Silo
    from fedilc.data.tables.silo_summary import SiloSummary
    from fedilc.runtimes.remote.manifest import Manifest
    from fedilc.runtimes.remote.survey import Survey, SurveyLimits
    from fedilc.runtimes.rest.http_client import HttpClient, Kind, SiloLog
    from fedilc.runtimes.rest.participant import Participant
    from fedilc.runtimes.rest.secure_silo import SecureMember
    from fedilc.studies.study.site_scores import SiteScores, Told

LINE_SECONDS = 60.0
_ANOTHER = (
    "another summary was sent to this address before, and the difference of the two reveals single patients"
)


def join(
    url: Annotated[str, typer.Argument(help="The coordinator's address, https://HOST:8443.")],
    silo: Annotated[str, typer.Option(help="This silo's name in the run.")],
    token_file: Annotated[Path | None, typer.Option(help="A file with this silo's token.")] = None,
    data: Annotated[
        Path | None,
        typer.Option(help="The silo's examples: .csv, .xlsx, .parquet, .npz, ..., or a folder of images."),
    ] = None,
    label: Annotated[str | None, typer.Option(help="The label's column in --data. (default: label)")] = None,
    validation_share: Annotated[
        float | None,
        typer.Option(min=0, max=0.9, help="The share of --data to hold out for validation. (default: 0.3)"),
    ] = None,
    provider: Annotated[
        str | None,
        typer.Option(
            metavar="MODULE:FUNCTION", help="Your own function that returns the fedilc.Silo of a name."
        ),
    ] = None,
    experiment: Annotated[
        str | None, typer.Option(help="Take the silo from an experiment on this machine, for a trial.")
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(metavar="MODULE:FUNCTION", help="Your own network, if the run's is not built in."),
    ] = None,
    backbone: BackboneName = None,
    ca: Annotated[Path | None, typer.Option(help="The certificate of the authority to trust.")] = None,
    client_cert: Annotated[
        Path | None, typer.Option(help="This silo's certificate, instead of a token (PEM).")
    ] = None,
    client_key: Annotated[Path | None, typer.Option(help="The key of --client-cert (PEM).")] = None,
    allow_insecure: Annotated[
        bool, typer.Option("--allow-insecure", help="Connect to another machine without TLS.")
    ] = False,
    give_up_after: Annotated[
        float | None,
        typer.Option(min=0, help="Give up after this many seconds without a response. (default: never)"),
    ] = None,
    manifest_digest: Annotated[
        str | None,
        typer.Option(help="Join only the run with this manifest digest, which `fedilc serve` shows."),
    ] = None,
    state: Annotated[
        Path | None,
        typer.Option(
            help="A folder that records the run joined; other runs at this address are then refused."
        ),
    ] = None,
    min_examples: Annotated[
        int, typer.Option(min=1, help="Do not take part with fewer training examples.")
    ] = 1,
    columns: Annotated[
        list[str] | None,
        typer.Option(
            help="The columns of --data that the run may use, including the label, separated by commas; may "
            "repeat. (default: all)"
        ),
    ] = None,
    min_category: Annotated[
        int, typer.Option(min=10, help="Leave categories and sums of fewer rows out of the summary.")
    ] = 10,
    min_rows: Annotated[
        int | None,
        typer.Option(min=1, help="Send no summary of a table with fewer rows. (default: 50, or the run's)"),
    ] = None,
    round_survey: Annotated[
        int | None,
        typer.Option(min=2, help="Round counts and sums in the summary to this unit. (default: the run's)"),
    ] = None,
    min_events: Annotated[
        int | None,
        typer.Option(min=1, help="In a study, give no score of fewer events, or non-events. (default: 10)"),
    ] = None,
    min_cell: Annotated[
        int | None,
        typer.Option(min=1, help="In a study, give no count of fewer examples of a class. (default: 10)"),
    ] = None,
    page: Annotated[
        Path | None,
        typer.Option(help="In a study, the file of this silo's own page. (default: results/SILO-study.html)"),
    ] = None,
    yes: Annotated[
        bool, typer.Option("--yes", help="Send the summary of a table without asking, for use in a service.")
    ] = False,
    key: Annotated[
        Path | None, typer.Option(help="This silo's private key for secure sums, of `fedilc key new`.")
    ] = None,
    roster: Annotated[
        Path | None, typer.Option(help="This silo's copy of the roster of all silos' public keys.")
    ] = None,
    require_secure: Annotated[
        bool,
        typer.Option("--require-secure", help="Take part only with secure sums; --key implies it."),
    ] = False,
    max_parameters: Annotated[int, typer.Option(min=1, help="Refuse networks with more parameters.")] = 2**28,
    device: Annotated[str, typer.Option(help="The device: auto, cpu, cuda, cuda:1, ...")] = "auto",
    data_dir: DataDir = None,
    log_format: LogFormat = None,
) -> None:
    """Take part in a run or a study as one silo; its examples stay here."""
    with quick_imports():
        from fedilc.models.user_models import network_from
        from fedilc.progress import showing
        from fedilc.runtimes.remote.survey import SurveyLimits, summarise_table, table_digest
        from fedilc.runtimes.rest.participant import Participant, SiloLimits, TableAccess

    log_to_stderr(log_format)
    use_data_folder(data_dir)
    progress = SiloProgress(silo, make_console() if log_format is None else None)
    listed = tuple(name.strip() for text in columns or () for name in text.split(",")) or None
    allowed = SurveyLimits(listed, min_category, min_rows, round_survey)
    make_silo = _silo(silo, data, label, validation_share, provider, experiment, progress, allowed, backbone)
    build = network_from(model) if model is not None else None
    limits = SiloLimits(max_parameters, min_examples, manifest_digest, state)
    table = None
    if data is not None and not data.is_dir():
        read, digest = partial(summarise_table, silo, data, limits=allowed), partial(table_digest, data)
        table = TableAccess(read, digest, SummaryConsent(progress, allowed, yes))
    secure = _secure_member(key, roster, require_secure)
    http = connect(url, token_file, ca, client_cert, client_key, allow_insecure, progress, give_up_after)
    try:
        with progress.status or nullcontext(), showing(progress.stage):
            member = Participant(http, silo, make_silo, build, device, progress, limits, table, secure)
            if table is not None and data is not None:
                floors = {"min_events": min_events, "min_cell": min_cell}
                member.study = partial(_study, data, allowed, floors, page)
            outcome = member.take_part()
    except KeyboardInterrupt:
        raise StoppedError(f"silo {silo!r} left the run; run the same command to join again") from None
    finally:
        http.close()
    sys.stdout.write(f"{silo}: the run is over: {printable(outcome)}\n")


def _study(
    data: Path,
    allowed: SurveyLimits,
    floors: Mapping[str, int | None],
    page: Path | None,
    member: Participant,
) -> str:
    """Take part in a study with a table; return how it ended."""
    require_extra("report", "a silo in a study", "scipy", "jinja2")
    from fedilc.evaluation.estimates import Floors
    from fedilc.studies.federated.silo import StudyMember, read_silo

    own = Floors(*(10 if value is None else value for value in floors.values()))
    study = StudyMember(
        member.http,
        member.name,
        lambda manifest: read_silo(member.name, data, manifest, allowed),
        member.log,
        member.limits,
        allowed,
        own,
        partial(_write_page, member, page or Path("results") / f"{member.name}-study.html"),
    )
    return study.take_part()


def _write_page(
    member: Participant, path: Path, document: SiteScores, told: Told, sent: list[tuple[str, int, int]]
) -> None:
    """Write the silo's own page of a study."""
    from fedilc.report.html.silo import write_silo_page

    write_silo_page(path, document, told, sent)
    member.log(f"this silo's own page: {path}")


def _silo(
    name: str,
    data: Path | None,
    label: str | None,
    validation_share: float | None,
    provider: str | None,
    experiment: str | None,
    tell: Callable[[str], None],
    allowed: SurveyLimits,
    backbone: str | None,
) -> Callable[[Manifest], Silo]:
    from fedilc.config import read_experiment
    from fedilc.runtimes.remote.silo_client import silo_from_experiment, silo_from_file, silo_from_provider

    if sum(given is not None for given in (data, provider, experiment)) != 1:
        raise ConfigError("name the silo's examples with exactly one of --data, --provider and --experiment")
    if data is not None:
        share = 0.3 if validation_share is None else validation_share
        return silo_from_file(name, data, label or "label", share, tell, allowed, backbone)
    given = {
        "--backbone": backbone,
        "--label": label,
        "--validation-share": validation_share,
        "--columns": allowed.columns,
    }
    refuse_given("only --data takes this option", given)
    if provider is not None:
        return silo_from_provider(name, provider)
    return silo_from_experiment(name, *read_experiment(experiment or ""))


def _secure_member(key: Path | None, roster: Path | None, required: bool) -> SecureMember | None:
    """Return what a silo needs for secure sums; None if it takes part without."""
    if key is None and roster is None and not required:
        return None
    if key is None or roster is None:
        raise ConfigError("secure sums need --key FILE, of `fedilc key new`, and --roster FILE")
    require_extra("secure", "a silo with secure sums", "cryptography")
    from fedilc.privacy.identities import read_identity, read_roster
    from fedilc.runtimes.rest.secure_silo import SecureMember

    return SecureMember(read_identity(key), read_roster(roster))


def read_token(path: Path | None) -> str | None:
    """Return the token in a file; None without a file."""
    if path is None:
        return None
    try:
        return path.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the token file {path} cannot be read: {error}") from error


def connect(
    url: str,
    token_file: Path | None,
    ca: Path | None,
    client_cert: Path | None,
    client_key: Path | None,
    allow_insecure: bool,
    log: SiloLog,
    give_up_after: float | None = None,
) -> HttpClient:
    """Return the client of a coordinator; warn if its secrets can be read by every user of this machine."""
    from fedilc.runtimes.rest.address import warn_if_public
    from fedilc.runtimes.rest.http_client import HttpClient

    token = read_token(token_file)
    http = HttpClient(url, token, ca, give_up_after, allow_insecure, client_cert, client_key, log=log)
    for secret, what in ((token_file, "the token"), (client_key, "the key of --client-cert")):
        warn_if_public(secret, what)
    return http


class SiloProgress:
    """Show the progress of a silo: a line that changes in a terminal, otherwise one line per minute.

    Without a console, every sentence is a line of the log, and waiting is a warning.
    """

    def __init__(self, silo: str, console: Console | None) -> None:
        self.silo, self.console = silo, console
        self.status = console.status("") if console is not None and console.is_terminal else None
        self.last, self.printed_at = "", time.monotonic()

    def pause(self) -> None:
        """Stop the line that changes, so that other text can be written."""
        if self.status is not None:
            self.status.stop()

    def resume(self) -> None:
        """Show the line again."""
        if self.status is not None:
            self.status.start()

    def stage(self, what: str, done: int, total: int) -> None:
        """Show how far the work is that this process does before a run, such as features of pictures."""
        self(f"{what}: {done} of {total}", "round")

    def __call__(self, sentence: str, kind: Kind = "event", /) -> None:
        """Show a sentence; one about a round only if the last line is not too recent."""
        text = with_flags(sentence)
        line, now = f"{self.silo}: {printable(text)}", time.monotonic()
        is_early = kind == "round" and now < self.printed_at + LINE_SECONDS
        if self.console is None:
            level = logging.WARNING if kind == "waiting" else logging.INFO
            logging.getLogger("fedilc.silo").log(level, "%s", text, extra={"facts": {"silo": self.silo}})
        elif self.status is not None:
            from rich.text import Text

            self.status.update(Text(line))
        elif line != self.last and not is_early:
            self.console.print(line, markup=False, soft_wrap=True)
            self.last, self.printed_at = line, now


@dataclass(frozen=True)
class SummaryConsent:
    """Show the owner of a table its summary, and ask whether to send it, unless --yes is given.

    --yes is not enough for a second, different summary: a coordinator could ask for the table with and
    without any patient by changing its settings.
    """

    progress: SiloProgress
    limits: SurveyLimits
    yes: bool

    def __call__(self, summary: SiloSummary, survey: Survey, digest: str, again: bool = False) -> None:
        """Show a summary; raise if the owner does not agree to send it.

        `again` says that another one was sent to this address before.
        """
        from fedilc.data.tables.summary_checks import summary_lines

        settings = self.limits.tightened(survey.table)
        warning = self.limits.warning(summary.rows)
        lines = [
            f"the run {survey.run!r} asks for a summary of the table; this is all that it contains:",
            *(f"  {line}" for line in summary_lines(summary, settings.label, settings.min_category)),
            *([] if warning is None else [f"warning: {warning}"]),
            *([f"warning: {_ANOTHER}"] if again else []),
            f"digest of the summary: {digest[:16]}",
        ]
        self.progress.pause()
        sys.stdout.write("".join(f"{summary.name}: {line}\n" for line in map(_one_line, lines)))
        sys.stdout.flush()
        if again or not self.yes:
            self._ask(summary.name, again)
        self.progress.resume()

    def _ask(self, silo: str, again: bool) -> None:
        if not sys.stdin.isatty():
            if again:
                raise ConfigError(
                    f"nothing more was sent for silo {silo!r}: {_ANOTHER}; --yes is not enough for this, so "
                    "run the command once in a terminal if you agree"
                )
            raise ConfigError(
                f"nobody is here to agree to the summary of silo {silo!r}, so nothing was sent; run the "
                "command once in a terminal, or add --yes"
            )
        if not typer.confirm("send this summary to the coordinator?"):
            raise ConfigError(f"silo {silo!r} does not take part; nothing was sent")


def _one_line(text: str) -> str:
    return text[: len(text) - len(text.lstrip())] + printable(with_flags(text))
