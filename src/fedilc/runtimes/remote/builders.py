"""Build what a coordinator and a silo need from what their users write: outlines, networks, silos."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fedilc.config import Experiment
from fedilc.config.sources import ManySilos, Remote, Source
from fedilc.data import Federation, Silo
from fedilc.data.checks import Report, silo_notes
from fedilc.data.outline import Outline
from fedilc.errors import ConfigError, DataError
from fedilc.runtimes.remote.manifest import Manifest, ModelSpec
from fedilc.runtimes.remote.user_code import call_user_code, find_function
from fedilc.seeds import seed_for


@dataclass(frozen=True)
class Plan:
    """What a coordinator begins with: no example of a silo, but its own test set and the first weights."""

    outline: Outline
    spec: ModelSpec
    model: nn.Module
    columns: list[str] | None = None


def plan_of(settings: Experiment, folder: Path, builder: str | None = None) -> Plan:
    """The plan of an experiment, with its network or with that of a function of one's own.

    An experiment whose data can be built here gives its outline only; its silos still bring their own.
    """
    data = settings.data
    columns: list[str] | None = None
    if isinstance(data, Remote):
        outline, inputs, columns = (
            _remote_outline(settings.name, data, folder),
            tuple(data.inputs),
            data.columns,
        )
        outputs = data.classes if data.loss == "multiclass" else 1
    else:
        store = data.store(settings.seed, folder)
        outline, inputs, outputs = Outline.of(store), store.inputs, store.outputs
        columns = list(store.columns) or None
    if builder is not None:
        model = own_network(builder, settings.seed)
        name, sizes = None, {}
    else:
        model = settings.model.of_shape(inputs, outputs, settings.seed)
        name, sizes = settings.model.name, settings.model.sizes
    return Plan(
        outline, ModelSpec(name=name, inputs=list(inputs), outputs=outputs, sizes=sizes), model, columns
    )


def refuse_thousands(data: Source, needs: str) -> None:
    """Raise if an experiment has too many silos for one process each; `needs` names such a process."""
    if isinstance(data, ManySilos):
        raise ConfigError(
            f"this experiment has {data.silos} silos, and {needs} for each; use `fedilc run`, under torchrun "
            "if one process is not enough"
        )


def _remote_outline(name: str, data: Remote, folder: Path) -> Outline:
    sample = torch.zeros(2, *data.inputs)
    test: tuple[Tensor, Tensor] | tuple[None, None] = (None, None)
    if data.test is not None:
        from fedilc.data.tables import read_table, same_columns

        table = read_table(folder / data.test, data.label)
        if data.columns is not None and table.columns:
            table = same_columns("the test set", table, "data.columns", data.columns)
        Report(notes=list(table.notes)).warn()
        test = torch.from_numpy(table.x), torch.as_tensor(table.y)
        checked = Federation(name, [Silo(data.silos[0], sample, [0, 0])], *test, loss=data.loss)
        checked.check_classes(data.classes)
    facts: dict[str, dict[str, Any]] = {silo: {} for silo in data.silos}
    outline = Outline(name, tuple(data.silos), sample, data.loss, facts, *test)
    label = data.label if data.test is not None else None
    return replace(outline, columns=tuple(data.columns or ()), label=label)


def own_network(builder: str, seed: int) -> nn.Module:
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
    return lambda manifest: own_network(builder, manifest.seed)


def silo_from_file(
    name: str, path: Path, label: str, validation_share: float, log: Callable[[str], None]
) -> Callable[[Manifest], Silo]:
    """Return a function that reads the silo from a table, with its columns in the order of the manifest."""
    from fedilc.data.files import silo_of
    from fedilc.data.tables import read_table, same_columns

    def make(manifest: Manifest) -> Silo:
        table = read_table(path, label)
        if manifest.columns is not None and table.columns:
            table = same_columns(str(path), table, "the run", manifest.columns)
        elif table.columns:
            log(f"the run names no columns, so those of {path} are used in the order of the file")
        silo = silo_of(name, table, validation_share, manifest.seed)
        Report(notes=[*table.notes, *silo_notes(silo, table.columns, table.identifiers)]).warn()
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
