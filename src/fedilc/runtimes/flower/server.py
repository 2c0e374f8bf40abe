"""The ServerApp of an experiment."""

from __future__ import annotations

import math
import os
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedilc.config import read_experiment
from fedilc.errors import ConfigError, FedILCError
from fedilc.federation import RunFolder
from fedilc.runtimes.flower.coordinator import run_job
from fedilc.runtimes.flower.engine import logger, require_flower
from fedilc.runtimes.flower.nodes import Roll
from fedilc.runtimes.remote.builders import plan_of
from fedilc.runtimes.remote.job import Job
from fedilc.runtimes.remote.manifest import find_wire
from fedilc.training.result import Result

if TYPE_CHECKING:
    from flwr.app import Context
    from flwr.serverapp import Grid, ServerApp

TIMEOUT_SECONDS = 600.0
_SHORT = {"algorithm": "algorithm", "rounds": "rounds", "seed": "seed", "min-silos": "min_silos"}
_OTHERS = ("set", "timeout", "wire", "out")


def make_server_app(
    experiment: str | os.PathLike[str], folder: str | os.PathLike[str] | None = None
) -> ServerApp:
    """A ServerApp that trains an experiment.

    Args:
        experiment: a shipped experiment or a TOML file.
        folder: what file names in the experiment are relative to, if not its own folder.

    The run's configuration (`--run-config`) may have `algorithm`, `rounds`, `seed` and `min-silos`, which
    win over the experiment where they are neither empty nor 0; `set` with further changes, as in
    "penalty_weight=5 model.hidden=[16]"; `timeout`, seconds an exchange may take; `wire`, exact or float16;
    and `out`, the run folder, in which a run that was cut off goes on.
    """
    require_flower()
    from flwr.serverapp import ServerApp

    app = ServerApp()

    def main(grid: Grid, context: Context) -> None:
        try:
            run_experiment(grid, experiment, context.run_config, folder)
        except FedILCError as error:
            logger.error("fedilc: %s", error)
            raise

    app.main()(main)
    return app


def run_experiment(
    grid: Grid,
    experiment: str | os.PathLike[str],
    config: Mapping[str, Any],
    folder: str | os.PathLike[str] | None = None,
) -> Result:
    """Train an experiment over the grid, changed as the run's configuration says."""
    settings, own_folder = read_experiment(os.fspath(experiment), changes_of(config))
    timeout = timeout_of(config.get("timeout") or TIMEOUT_SECONDS)
    wire = find_wire(str(config.get("wire") or "exact"))
    out = Path(str(config.get("out") or Path("runs") / settings.name / "flower")).expanduser().absolute()
    logger.info(
        "fedilc: %s, %s, %d rounds; run folder %s", settings.name, settings.algorithm, settings.rounds, out
    )
    plan = plan_of(settings, own_folder if folder is None else Path(folder))
    job = Job(settings.name, settings.algorithm, settings, plan, wire)
    result = run_job(Roll(grid, settings.seed, timeout), job, out)
    done = len(RunFolder(out).history())
    logger.info("fedilc: %s after round %d; run folder %s", result.stopped or "complete", done, out)
    return result


def changes_of(config: Mapping[str, Any]) -> list[str]:
    """What the run's configuration changes in the experiment, as `key=value`.

    >>> changes_of({"algorithm": "fedsgd", "rounds": 0, "set": "penalty_weight=5 model.hidden=[16]"})
    ['penalty_weight=5', 'model.hidden=[16]', 'algorithm=fedsgd']
    """
    for key in config:
        if key not in _SHORT and key not in _OTHERS:
            raise ConfigError(f"the run's configuration has {key!r}; use {', '.join([*_SHORT, *_OTHERS])}")
    changes = shlex.split(str(config.get("set") or ""))
    for change in changes:
        if change.split("=")[0].split(".")[0] in ("data", "name"):
            raise ConfigError(
                f"{change!r} would change the data for the server alone; change the experiment that both "
                "server_app.py and client_app.py name"
            )
    return changes + [f"{name}={config[key]}" for key, name in _SHORT.items() if config.get(key)]


def timeout_of(given: Any) -> float:
    """Seconds that an exchange may take."""
    try:
        seconds = float(given)
    except (TypeError, ValueError):
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise ConfigError(f"timeout={given!r} is not a number of seconds; every exchange must end")
    return seconds
