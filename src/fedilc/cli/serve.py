"""`fedilc serve`: a coordinator for silos that join over HTTP."""

from __future__ import annotations

import math
import signal
import sys
import time
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedilc.cli.console import LogFormat, drawn, log_to_stderr, make_console, quick_imports
from fedilc.cli.join import SiloProgress, connect
from fedilc.cli.options import (
    BackboneName,
    Balance,
    Changes,
    DataDir,
    ModelFunction,
    OnDivergence,
    Rounds,
    Seed,
    WireName,
    as_changes,
    given_among,
    only_one,
    refuse_given,
    use_data_folder,
    with_flags,
)
from fedilc.errors import ConfigError, StoppedError, printable, require_extra

if TYPE_CHECKING:
    from rich.console import Console

    from fedilc.config import Experiment
    from fedilc.privacy.identities import Roster
    from fedilc.runtimes.remote.manifest import Manifest, Wire
    from fedilc.runtimes.rest.address import Address
    from fedilc.runtimes.rest.auth import TokenFile, Tokens
    from fedilc.runtimes.rest.http_client import HttpClient
    from fedilc.runtimes.rest.task_queue import TaskQueue
    from fedilc.training.result import Result

_FOREVER = 1e9
_RUN = {
    *("the experiment", "--algorithm", "--rounds", "--seed", "--min-silos", "--balance", "--on-divergence"),
    *("--wire", "--set", "--model", "--backbone", "--stay", "--data-dir", "--secure", "--roster"),
}
_UPSTREAM = {"--silo", "--token-file", "--ca", "--client-cert", "--client-key"}
TokensPath = Annotated[
    Path | None, typer.Option("--tokens", help="The file with the hashes of silos' and viewers' tokens.")
]


def serve(
    context: typer.Context,
    experiment: Annotated[
        str | None, typer.Argument(help="A TOML file or a shipped experiment.", show_default=False)
    ] = None,
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port; 0 chooses a free one.")] = 8443,
    tokens: TokensPath = None,
    cert: Annotated[Path | None, typer.Option(help="The coordinator's TLS certificate (PEM).")] = None,
    key: Annotated[Path | None, typer.Option(help="The key of --cert (PEM).")] = None,
    client_ca: Annotated[
        Path | None,
        typer.Option(help="Accept silos' certificates from this authority instead of tokens (PEM)."),
    ] = None,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Use no TLS; only on a loopback address.")
    ] = False,
    allow_insecure: Annotated[
        bool, typer.Option("--allow-insecure", help="Use no TLS on any address, because a proxy adds it.")
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(help="The run folder; a run in it is continued. (default: runs/NAME/served)"),
    ] = None,
    algorithm: Annotated[list[str] | None, typer.Option("--algorithm", "-a", help="An algorithm.")] = None,
    rounds: Rounds = None,
    seed: Seed = None,
    min_silos: Annotated[
        int | None, typer.Option(help="How many silos a round needs. (default: all that it asks)")
    ] = None,
    round_timeout: Annotated[
        float,
        typer.Option(
            min=0.1, help="Continue a round without silos that do not reply within this many seconds."
        ),
    ] = 600.0,
    balance: Balance = None,
    on_divergence: OnDivergence = None,
    wire: WireName = "exact",
    secure: Annotated[
        bool,
        typer.Option("--secure", help="Make secure sums, which hide each silo's answers; needs --roster."),
    ] = False,
    roster: Annotated[
        Path | None, typer.Option(help="With --secure: the roster of all silos' public keys.")
    ] = None,
    changes: Changes = None,
    view: Annotated[
        Path | None, typer.Option(help="Do not train: show the page of this run folder.", show_default=False)
    ] = None,
    stay: Annotated[bool, typer.Option("--stay", help="Keep serving the page after the last round.")] = False,
    upstream: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Be a sub-coordinator: send the sums of its silos to this coordinator.",
        ),
    ] = None,
    silo: Annotated[
        str | None, typer.Option(help="With --upstream: the name of this sub-coordinator.")
    ] = None,
    token_file: Annotated[
        Path | None, typer.Option(help="With --upstream: a file with this sub-coordinator's token.")
    ] = None,
    ca: Annotated[
        Path | None, typer.Option(help="With --upstream: the certificate of the authority to trust.")
    ] = None,
    client_cert: Annotated[
        Path | None, typer.Option(help="With --upstream: its client certificate, instead of a token (PEM).")
    ] = None,
    client_key: Annotated[Path | None, typer.Option(help="The key of --client-cert (PEM).")] = None,
    model: ModelFunction = None,
    backbone: BackboneName = None,
    data_dir: DataDir = None,
    log_format: LogFormat = None,
) -> None:
    """Coordinate a run, or a study, over silos that join by HTTP, and show it on a page.

    A file with the section [study] and the source "remote-tables" is a study: each silo is left out in turn.

    With --model, every silo needs the same network and names it with `fedilc join --model`.

    With --upstream, this is a sub-coordinator, which replies for its silos to the coordinator above.
    """
    from fedilc.runtimes.rest import require_server

    require_server()
    with quick_imports():
        from fedilc.cli.serve_study import NOT_IN_STUDY, read_remote_study, serve_study
        from fedilc.config import read_experiment
        from fedilc.config.experiment import refuse_secure_study
        from fedilc.runtimes.remote.manifest import find_wire
        from fedilc.runtimes.rest.address import Address

    log_to_stderr(log_format)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    address = Address(host, port, cert, key, insecure, allow_insecure, client_ca)
    console = make_console()
    known = _tokens(tokens, client_ca, console)
    address.require_safe(known)
    patience = round_timeout if math.isfinite(round_timeout) else _FOREVER
    if view is not None:
        others = _RUN | _UPSTREAM | {"--upstream", "--out"}
        refuse_given("--view only shows a run folder", given_among(others, context))
        _view(console, view, address, known)
        return
    if upstream is not None:
        refuse_given("with --upstream the run is that of the coordinator above", given_among(_RUN, context))
        if silo is None:
            raise ConfigError("--upstream needs --silo NAME, the name that the coordinator above knows")
        progress = SiloProgress(silo, console if log_format is None else None)
        above = connect(upstream, token_file, ca, client_cert, client_key, allow_insecure, log=progress)
        _serve_upstream(console, above, progress, out, address, known, patience)
        return
    refuse_given("without --upstream URL there is no coordinator above", given_among(_UPSTREAM, context))
    if experiment is None:
        raise ConfigError("name an experiment to serve, or a run folder to show with --view")
    use_data_folder(data_dir)
    if (study := read_remote_study(experiment, changes or [])) is not None:
        refuse_secure_study(secure)
        not_theirs = _RUN - {"the experiment", "--set", "--stay", "--data-dir", "--rounds"}
        refuse_given(NOT_IN_STUDY, given_among(not_theirs, context))
        serve_study(console, study, rounds, out, address, known, patience, partial(_say, console), stay)
        return
    short = {"rounds": rounds, "seed": seed, "min_silos": min_silos, "balance": balance}
    short |= {"algorithm": only_one(algorithm, "serve"), "on_divergence": on_divergence}
    short |= {"data.backbone": backbone, "secure": secure or None}
    settings, folder = read_experiment(experiment, [*(changes or []), *as_changes(short)])
    target = out or Path("runs") / settings.name / "served"
    _Serving(
        console, settings, folder, target, address, known, patience, find_wire(wire), model, stay, roster
    ).run()


def _say(console: Console, sentence: str) -> None:
    console.print(printable(with_flags(sentence)), markup=False, soft_wrap=True)
    sys.stdout.flush()


def _tokens(path: Path | None, client_ca: Path | None, console: Console) -> Tokens | TokenFile | None:
    """Return the tokens of a file; no tokens if silos have certificates; None if everybody may join."""
    from fedilc.runtimes.rest.address import warn_if_public
    from fedilc.runtimes.rest.auth import TokenFile, Tokens

    if path is None:
        return Tokens() if client_ca is not None else None
    warn_if_public(path, "the hashes of the tokens")
    return TokenFile(path, partial(_say, console))


@dataclass(frozen=True)
class _Serving:
    """The run that a coordinator serves, and how."""

    console: Console
    settings: Experiment
    folder: Path
    target: Path
    address: Address
    tokens: Tokens | TokenFile | None
    round_timeout: float
    wire: Wire
    model: str | None
    stay: bool
    roster: Path | None = None

    def _read_roster(self) -> Roster | None:
        """Return the roster of a run with secure sums; raise if there is none, or it does not fit."""
        if not self.settings.secure:
            if self.roster is not None:
                raise ConfigError("--roster is for secure sums; add --secure")
            return None
        if self.roster is None:
            raise ConfigError("secure sums need --roster FILE, which `fedilc key roster` writes")
        require_extra("secure", "a run with secure sums", "cryptography")
        from fedilc.privacy.identities import USUAL_SILOS, read_roster

        if self.wire != "exact":
            raise ConfigError("masked words are sent as they are; leave out --wire")
        found = read_roster(self.roster)
        if len(found.keys) < USUAL_SILOS and self.settings.min_silos is None:
            raise ConfigError(
                f"a sum over {len(found.keys)} silos hides little; if all owners agree to it, say so with "
                f"--min-silos {len(found.keys)}"
            )
        return found

    def run(self) -> None:
        """Wait for silos and train; Ctrl-C and SIGTERM end with a sentence on how to continue."""
        from fedilc.data.sources import RemoteTables
        from fedilc.report.progress import ProgressBar
        from fedilc.runtimes.remote.run import RemoteRun
        from fedilc.runtimes.rest.coordinator import serve

        bar = ProgressBar(self.console, self.settings.algorithm)
        roster = self._read_roster()
        digest = None if roster is None else roster.digest
        made, address, data = None, self.address, self.settings.data
        try:
            if isinstance(data, RemoteTables):
                from fedilc.runtimes.rest.survey import survey_tables

                listens = self.target, self.address, self.tokens, self.round_timeout
                say = partial(_say, self.console)
                made, address = survey_tables(self.settings, data, *listens, say, roster)
            serve(
                RemoteRun.of(self.settings, self.folder, self.model, self.wire, made, digest),
                self.target,
                address,
                self.tokens,
                round_timeout=self.round_timeout,
                roster=roster,
                callbacks=[bar],
                ready=self._ready,
                afterwards=self._afterwards,
            )
        except KeyboardInterrupt:
            done = self._done()
            if done >= self.settings.rounds:
                raise StoppedError("the run is complete; the page is no longer served") from None
            sentence = f"stopped after round {done}; run the same command to continue; silos wait for it"
            raise StoppedError(sentence) from None
        finally:
            bar.close()

    def _done(self) -> int:
        from fedilc.storage.run_folder import RunFolder

        return len(RunFolder(self.target).history())

    def _ready(self, url: str, manifest: Manifest) -> None:
        _say(self.console, f"silos join at {url}, and the page is there")
        if self._done() >= self.settings.rounds:
            _say(self.console, f"the run in {self.target} is complete; silos that still ask are told so")
        else:
            _say(self.console, f"waiting for {', '.join(manifest.silos)}; manifest {manifest.hash[:16]}")

    def _afterwards(self, result: Result) -> None:
        """Print the table and draw the picture that end a run; with --stay, keep serving the page."""
        from fedilc.report.plots import loss_picture
        from fedilc.report.run_tables import run_table

        title, picture = f"{self.settings.name} · {self.settings.algorithm}", self.target / "loss.png"
        line = drawn(loss_picture, picture, title, result.history)
        self.console.print(run_table(title, result.history))
        for sentence in (*line.splitlines(), f"run folder: {self.target}"):
            _say(self.console, sentence)
        if self.stay:
            _say(self.console, "the page is still served; Ctrl-C ends")
            while True:
                time.sleep(3600)


def _view(console: Console, folder: Path, address: Address, known: Tokens | TokenFile | None) -> None:
    from fedilc.runtimes.rest.viewer import show

    def ready(url: str) -> None:
        _say(console, f"the run in {folder} is shown at {url}; Ctrl-C ends")

    try:
        show(folder, address, known, ready)
    except KeyboardInterrupt:
        raise StoppedError("the page is no longer served; the run folder is unchanged") from None


def _serve_upstream(
    console: Console,
    above: HttpClient,
    progress: SiloProgress,
    out: Path | None,
    address: Address,
    tokens: Tokens | TokenFile | None,
    round_timeout: float,
) -> None:
    """Be a sub-coordinator: serve silos for the coordinator above until its run is over."""
    from fedilc.runtimes.rest.sub_coordinator import SubCoordinator, serve_subtree

    def ready(url: str, queue: TaskQueue) -> None:
        _say(console, f"silos join at {url}, and the page is there; their sums are sent to {above.url}")
        _say(console, f"waiting for {', '.join(queue.silos)}; manifest {queue.manifest.hash[:16]}")

    name = progress.silo
    try:
        with progress.status or nullcontext():
            sub = SubCoordinator(above, name, round_timeout, progress)
            outcome = serve_subtree(sub, out or Path("runs") / name, address, tokens, ready)
    except KeyboardInterrupt:
        raise StoppedError("stopped; run the same command to continue; silos wait for it") from None
    finally:
        above.close()
    _say(console, f"{name}: the run is over: {outcome}")
