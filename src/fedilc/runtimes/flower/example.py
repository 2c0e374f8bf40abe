"""Silos of an experiment that is on this machine, to try an app before it has data of its own."""

from __future__ import annotations

import os
from pathlib import Path

from fedilc.config import read_experiment
from fedilc.config.sources import Remote
from fedilc.data import Silo
from fedilc.errors import ConfigError, DataError


def silo_of(
    experiment: str | os.PathLike[str],
    partition_id: int,
    seed: int = 0,
    folder: str | os.PathLike[str] | None = None,
) -> Silo:
    """The silo at a place in the order of an experiment's silos.

    Args:
        experiment: a shipped experiment or a TOML file.
        partition_id: its place, from 0.
        seed: the run's.
        folder: what file names in the experiment are relative to, if not its own folder.

    >>> silo_of("color-digits", 1)
    Silo('flip-0.30', ... examples of shape (2, 8, 8), ... for validation)
    """
    settings, own_folder = read_experiment(os.fspath(experiment))
    if isinstance(settings.data, Remote):
        raise ConfigError(
            f"the silos of experiment {settings.name!r} are elsewhere; let make_silo in client_app.py return "
            "this node's fedilc.Silo"
        )
    store = settings.data.store(seed, own_folder if folder is None else Path(folder))
    if not 0 <= partition_id < len(store.silos):
        raise DataError(
            f"experiment {settings.name!r} has {len(store.silos)} silos, and none for partition-id "
            f"{partition_id}; start as many nodes as there are silos"
        )
    return store.open(store.silos[partition_id])
