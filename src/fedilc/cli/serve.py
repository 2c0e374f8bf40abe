"""`fedilc serve`: a coordinator for silos that join over HTTP."""

from __future__ import annotations

import json
import math
import signal
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedilc.cli.console import drawn, make_console
from fedilc.cli.data import use_data_folder
from fedilc.cli.logs import LogFormat, log_to_stderr
from fedilc.cli.options import (
    Balance,
    Changes,
    DataDir,
    ModelFunction,
    OnDivergence,
    Rounds,
    Seed,
    WireName,
    as_changes,
    only_one,
)
from fedilc.cli.serve_below import Upstream
from fedilc.errors import ConfigError, StoppedError
from fedilc.lazy import quick_imports

if TYPE_CHECKING:
    from rich.console import Console

    from fedilc.config import Experiment
    from fedilc.data.tables.preprocessing import Preprocessing
    from fedilc.runtimes.remote.manifest import Manifest, Wire
    from fedilc.runtimes.rest.listener import Address
    from fedilc.runtimes.rest.tokens import TokenFile, Tokens
    from fedilc.training.result import Result

_FOREVER = 1e9
TokensPath = Annotated[Path | None, typer.Option("--tokens", help="The file with everybody's hashed tokens.")]


def serve(
    experiment: Annotated[
        str | None, typer.Argument(help="A TOML file or a shipped experiment.", show_default=False)
    ] = None,
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes a free one.")] = 8443,
    tokens: TokensPath = None,
    cert: Annotated[Path | None, typer.Option(help="The TLS certificate, PEM.")] = None,
    key: Annotated[Path | None, typer.Option(help="Its key, PEM.")] = None,
    client_ca: Annotated[
        Path | None, typer.Option(help="The authority of silos' certificates, which speak for them; PEM.")
    ] = None,
    insecure: Annotated[bool, typer.Option("--insecure", help="No TLS; on loopback addresses only.")] = False,
    allow_insecure: Annotated[
        bool, typer.Option("--allow-insecure", help="No TLS on any address, behind a proxy that has it.")
    ] = False,
    out: Annotated[
        Path | None, typer.Option(help="The run folder; a run in it continues (default: runs/NAME/served)")
    ] = None,
    algorithm: Annotated[list[str] | None, typer.Option("--algorithm", "-a", help="An algorithm.")] = None,
    rounds: Rounds = None,
    seed: Seed = None,
    min_silos: Annotated[int | None, typer.Option(help="Silos that a round needs (default: all)")] = None,
    round_timeout: Annotated[
        float, typer.Option(min=0.1, help="Seconds until a round continues without a silent silo.")
    ] = 600.0,
    balance: Balance = None,
    on_divergence: OnDivergence = None,
    wire: WireName = "exact",
    changes: Changes = None,
    view: Annotated[
        Path | None, typer.Option(help="Only show the page of this run folder.", show_default=False)
    ] = None,
    stay: Annotated[bool, typer.Option("--stay", help="Keep the page up after the last round.")] = False,
    upstream: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Answer this coordinator with sums of the silos here."),
    ] = None,
    silo: Annotated[str | None, typer.Option(help="With --upstream: this one's name there.")] = None,
    token_file: Annotated[Path | None, typer.Option(help="With --upstream: its token there.")] = None,
    ca: Annotated[Path | None, typer.Option(help="With --upstream: the authority to trust there.")] = None,
    client_cert: Annotated[
        Path | None, typer.Option(help="With --upstream: its certificate there, in place of a token.")
    ] = None,
    client_key: Annotated[Path | None, typer.Option(help="Its key, PEM.")] = None,
    model: ModelFunction = None,
    data_dir: DataDir = None,
    log_format: LogFormat = None,
) -> None:
    """Coordinate silos that join from elsewhere, and show the run on a page.

    With --model, each silo brings the same network, by the same option of `join`. With --upstream there is
    no experiment: the run is that of the coordinator above, for which this one is one silo that answers for
    many.
    """
    from fedilc.runtimes.rest import require_server

    require_server()
    with quick_imports():
        from fedilc.config import read_experiment
        from fedilc.runtimes.remote.manifest import find_wire
        from fedilc.runtimes.rest.listener import Address

    log_to_stderr(log_format)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    address = Address(host, port, cert, key, insecure, allow_insecure, client_ca)
    console = make_console()
    known = _tokens(tokens, client_ca, console)
    address.require_safe(known)
    if view is not None:
        _view(console, view, address, known)
        return
    if upstream is None and any(given is not None for given in (silo, token_file, ca, client_cert)):
        raise ConfigError("--silo, --token-file, --ca and --client-cert go with --upstream URL; give it too")
    patience = round_timeout if math.isfinite(round_timeout) else _FOREVER
    if upstream is not None:
        above = Upstream(upstream, silo, token_file, ca, client_cert, client_key, allow_insecure)
        settings_given = {
            "the experiment": experiment,
            "--algorithm": algorithm,
            "--rounds": rounds,
            "--seed": seed is not None,
            "--min-silos": min_silos,
            "--on-divergence": on_divergence,
            "--wire": wire != "exact",
            "--set": changes,
            "--model": model,
            "--stay": stay,
        }
        above.require_alone(settings_given)
        above.serve(console, out, address, known, patience)
        return
    if experiment is None:
        raise ConfigError("name an experiment to serve, or a run folder to show with --view")
    if data_dir is not None:
        use_data_folder(data_dir)
    one = only_one(algorithm, "serve")
    short = {
        "algorithm": one,
        "rounds": rounds,
        "seed": seed,
        "min_silos": min_silos,
        "balance": balance,
        "on_divergence": on_divergence,
    }
    settings, folder = read_experiment(experiment, [*(changes or []), *as_changes(short)])
    target = out or Path("runs") / settings.name / "served"
    _Serving(console, settings, folder, target, address, known, patience, find_wire(wire), model, stay).run()


def _tokens(path: Path | None, client_ca: Path | None, console: Console) -> Tokens | TokenFile | None:
    """Return the tokens of a file; none if silos show certificates instead; None if everybody may join."""
    from fedilc.runtimes.rest.exposure import warn_if_public
    from fedilc.runtimes.rest.tokens import TokenFile, Tokens

    if path is None:
        return Tokens() if client_ca is not None else None
    warn_if_public(path, "the hashes of the tokens")
    return TokenFile(path, lambda sentence: console.print(sentence, markup=False, soft_wrap=True))


@dataclass(frozen=True)
class _Serving:
    """A run to coordinate, and how."""

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

    def run(self) -> None:
        """Wait for silos and train; Ctrl-C and SIGTERM end with a sentence on how to go on."""
        from fedilc.report.progress import ProgressBar
        from fedilc.runtimes.remote.run import RemoteRun
        from fedilc.runtimes.rest.coordinator import serve

        bar = ProgressBar(self.console, self.settings.algorithm)
        try:
            made, address = self._surveyed()
            serve(
                RemoteRun.of(self.settings, self.folder, self.model, self.wire, made),
                self.target,
                address,
                self.tokens,
                round_timeout=self.round_timeout,
                callbacks=[bar],
                ready=self._ready,
                afterwards=self._afterwards,
            )
        except KeyboardInterrupt:
            bar.close()
            done = self._done()
            if done >= self.settings.rounds:
                raise StoppedError("the run is complete, and the page is down") from None
            sentence = f"stopped after round {done}; run the same command to continue; silos wait for it"
            raise StoppedError(sentence) from None
        finally:
            bar.close()

    def _surveyed(self) -> tuple[Preprocessing | None, Address]:
        """Return what silos' tables become: as in the run folder, or from summaries that they send now."""
        from fedilc.config.table_sources import RemoteTables

        data = self.settings.data
        if not isinstance(data, RemoteTables):
            return None, self.address
        from fedilc.data.checks.federation import Report
        from fedilc.data.tables.notes import table_notes
        from fedilc.data.tables.preprocessing import Preprocessing
        from fedilc.federation.run_folder import SUMMARIES
        from fedilc.federation.tensor_files import write_atomically
        from fedilc.runtimes.remote.survey import Survey
        from fedilc.runtimes.rest.coordinator import require_tokens
        from fedilc.runtimes.rest.survey import collect_summaries
        from fedilc.training.loaded import read_preprocessing

        made = read_preprocessing(self.target)
        if isinstance(made, Preprocessing):
            return made, self.address
        survey = Survey.of(self.settings.name, data)
        require_tokens(survey.silos, self.tokens, self.address)
        found, port = collect_summaries(
            survey,
            self.target,
            self.address,
            self.tokens,
            self.settings.quorum(len(survey.silos)),
            self.round_timeout,
            lambda url: self._say(f"silos join at {url}; waiting for summaries of {', '.join(survey.silos)}"),
        )
        made = survey.preprocessing(found)
        summaries = [summary.model_dump(mode="json") for summary in found.values()]
        write_atomically(self.target / SUMMARIES, json.dumps(summaries).encode())
        Report(notes=table_notes(list(found.values()), made)).warn()
        return made, replace(self.address, port=port)

    def _done(self) -> int:
        from fedilc.federation import RunFolder

        return len(RunFolder(self.target).history())

    def _ready(self, url: str, manifest: Manifest) -> None:
        self._say(f"silos join at {url}, and the page is there")
        if self._done() >= self.settings.rounds:
            self._say(f"the run in {self.target} is complete; silos that still ask are told so")
        else:
            self._say(f"waiting for {', '.join(manifest.silos)}; manifest {manifest.hash[:16]}")

    def _say(self, sentence: str) -> None:
        self.console.print(sentence, markup=False, soft_wrap=True)
        sys.stdout.flush()

    def _afterwards(self, result: Result) -> None:
        """Print the table and picture that end a run, and keep the page for as long as it is wanted."""
        from fedilc.report.plots import loss_picture
        from fedilc.report.tables import run_table

        title, picture = f"{self.settings.name} · {self.settings.algorithm}", self.target / "loss.png"
        line = drawn(loss_picture, picture, title, result.history)
        self.console.print(run_table(title, result.history))
        self._say(f"{line}run folder: {self.target}")
        if self.stay:
            self._say("the page stays up; Ctrl-C ends")
            while True:
                time.sleep(3600)


def _view(console: Console, folder: Path, address: Address, known: Tokens | TokenFile | None) -> None:
    from fedilc.runtimes.rest.viewer import show

    def ready(url: str) -> None:
        console.print(f"the run in {folder} is shown at {url}; Ctrl-C ends", markup=False, soft_wrap=True)
        sys.stdout.flush()

    try:
        show(folder, address, known, ready)
    except KeyboardInterrupt:
        raise StoppedError("the page is down; the run folder is as it was") from None
