"""Make the ServerApp of an experiment."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedilc.config import read_experiment
from fedilc.errors import ConfigError, FedILCError
from fedilc.federation import RunFolder
from fedilc.runtimes.flower import logger, require_flower
from fedilc.runtimes.flower.nodes import NodeRegistry
from fedilc.runtimes.flower.runtime import train_on_nodes
from fedilc.runtimes.remote.manifest import find_wire
from fedilc.runtimes.remote.run import RemoteRun
from fedilc.training.result import Result

if TYPE_CHECKING:
    from flwr.app import Context
    from flwr.serverapp import Grid, ServerApp

TIMEOUT_SECONDS = 600.0
_SETTINGS = {"algorithm": "algorithm", "rounds": "rounds", "seed": "seed", "min-silos": "min_silos"}
_OTHER_KEYS = ("set", "timeout", "wire", "out")


def make_server_app(
    experiment: str | os.PathLike[str], folder: str | os.PathLike[str] | None = None
) -> ServerApp:
    """Return a ServerApp that trains an experiment.

    Args:
        experiment: a shipped experiment or a TOML file.
        folder: what file names in the experiment are relative to, if not its own folder.

    The run's configuration (`--run-config`) may have `algorithm`, `rounds`, `seed` and `min-silos`, which
    replace the experiment's unless they are empty or 0; `set` with further changes, such as
    "penalty_weight=5 model.hidden=[16]"; `timeout`, the seconds that an exchange may take; `wire`, exact or
    float16; and `out`, the run folder, in which an interrupted run continues.
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
    """Train an experiment over the grid, with the changes of the run's configuration."""
    settings, own_folder = read_experiment(os.fspath(experiment), read_changes(config))
    registry = NodeRegistry(grid, settings.seed, config.get("timeout") or TIMEOUT_SECONDS)
    wire = find_wire(str(config.get("wire") or "exact"))
    out = Path(str(config.get("out") or Path("runs") / settings.name / "flower")).expanduser().absolute()
    logger.info(
        "fedilc: %s, %s, %d rounds; run folder %s", settings.name, settings.algorithm, settings.rounds, out
    )
    run = RemoteRun.of(settings, own_folder if folder is None else Path(folder), wire=wire)
    result = train_on_nodes(registry, run, out)
    done = len(RunFolder(out).history())
    logger.info("fedilc: %s after round %d; run folder %s", result.stopped or "complete", done, out)
    return result


def read_changes(config: Mapping[str, Any]) -> list[str]:
    """Return the changes of the experiment in the run's configuration, as `key=value`.

    >>> read_changes({"algorithm": "fedsgd", "rounds": 0, "set": "penalty_weight=5 model.hidden=[16]"})
    ['penalty_weight=5', 'model.hidden=[16]', 'algorithm=fedsgd']
    """
    for key in config:
        if key not in _SETTINGS and key not in _OTHER_KEYS:
            raise ConfigError(
                f"the run's configuration has {key!r}; use {', '.join([*_SETTINGS, *_OTHER_KEYS])}"
            )
    changes = shlex.split(str(config.get("set") or ""))
    for change in changes:
        if change.split("=")[0].split(".")[0] in ("data", "name"):
            raise ConfigError(
                f"{change!r} would change the data for the server alone; change the experiment that both "
                "server_app.py and client_app.py name"
            )
    return changes + [f"{name}={config[key]}" for key, name in _SETTINGS.items() if config.get(key)]
