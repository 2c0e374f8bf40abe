"""Build a silo's network and examples from what its user names: functions, tables, experiments."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

from fedilc.config import Experiment
from fedilc.config.benchmark_sources import ManySilos
from fedilc.config.section import Source
from fedilc.data import Silo
from fedilc.data.checks.federation import Report, silo_notes
from fedilc.errors import ConfigError, DataError
from fedilc.runtimes.remote.manifest import Manifest
from fedilc.runtimes.remote.survey import silo_from_table
from fedilc.runtimes.remote.user_code import call_user_code, find_function
from fedilc.seeds import seed_for


def refuse_many_silos(data: Source, needs: str) -> None:
    """Raise if an experiment has too many silos for one process per silo; `needs` names the process."""
    if isinstance(data, ManySilos):
        raise ConfigError(
            f"this experiment has {data.silos} silos, and {needs} for each; use `fedilc run`, under torchrun "
            "if one process is not enough"
        )


def user_network(builder: str, seed: int) -> nn.Module:
    """Return the network of the user's own `module:function`; its random choices depend only on `seed`."""
    function = find_function(builder, "model")
    with torch.random.fork_rng():
        torch.manual_seed(seed_for(seed, "model"))
        model = call_user_code(function, builder)
    if not isinstance(model, nn.Module):
        raise ConfigError(f"{builder} returned {type(model).__name__}, not a torch.nn.Module")
    return model


def network_from(builder: str) -> Callable[[Manifest], nn.Module]:
    """Return a function that builds the network of the user's own `module:function`."""
    find_function(builder, "model")
    return lambda manifest: user_network(builder, manifest.seed)


def silo_from_file(
    name: str, path: Path, label: str, validation_share: float, log: Callable[[str], None]
) -> Callable[[Manifest], Silo]:
    """Return a function that reads the silo from a table, with its columns in the order of the manifest."""
    from fedilc.data.silo import split_silo
    from fedilc.data.tables.file_reader import read_examples, same_columns

    if not path.exists():
        raise DataError(f"{path} does not exist; name the file of the silo's table")

    def make(manifest: Manifest) -> Silo:
        if manifest.preprocessing is not None:
            return silo_from_table(name, path, manifest, validation_share)
        read = read_examples(path, label)
        if manifest.columns is not None and read.columns:
            read = same_columns(str(path), read, "the run", manifest.columns)
        elif read.columns:
            log(f"the run names no columns, so those of {path} are used in the order of the file")
        silo = split_silo(name, read.x, read.y, validation_share, manifest.seed, manifest.loss)
        notes = silo_notes(silo, read.columns, read.identifiers, manifest.loss)
        Report(notes=[*read.notes, *notes]).warn()
        return silo

    return make


def silo_from_provider(name: str, provider: str) -> Callable[[Manifest], Silo]:
    """Return a function that calls the user's own `module:function` with the silo's name."""
    function = find_function(provider, "provider")

    def make(_: Manifest) -> Silo:
        silo = call_user_code(function, provider, name)
        if not isinstance(silo, Silo):
            raise DataError(f"{provider} returned {type(silo).__name__}, not a fedilc.Silo")
        silo.name = name
        return silo

    return make


def silo_from_experiment(name: str, settings: Experiment, folder: Path) -> Callable[[Manifest], Silo]:
    """Return a function that takes the silo from an experiment on this machine, for a trial."""

    def make(manifest: Manifest) -> Silo:
        store = settings.data.store(manifest.seed, folder)
        if name not in store.sizes:
            some = ", ".join(list(store.sizes)[:20])
            raise DataError(f"experiment {settings.name!r} has no silo {name!r}; it has {some}")
        return store.open(name)

    return make
