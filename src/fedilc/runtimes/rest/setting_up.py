"""From what users write to what coordinator and silo need: outlines, networks, silos."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from fedilc.assembly import Outline
from fedilc.config import Experiment, read_experiment
from fedilc.data import Silo
from fedilc.data.files import read_table, same_columns, silo_of
from fedilc.errors import ConfigError, DataError
from fedilc.runtimes.rest.manifest import Manifest, ModelSpec
from fedilc.sources import Remote


def outline_of(settings: Experiment, folder: Path) -> tuple[Outline, ModelSpec, nn.Module]:
    """What a coordinator knows: names, shapes, its own test set; and the network with its first weights.

    An experiment whose data can be built here gives its outline only; its silos still bring their own.
    """
    data = settings.data
    if isinstance(data, Remote):
        test: dict[str, Any] = {}
        if data.test is not None:
            table = read_table(folder / data.test, data.label)
            if data.columns is not None:
                table = same_columns("the test set", table, "data.columns", data.columns)
            test = {"x_test": torch.from_numpy(table.x), "y_test": torch.as_tensor(table.y)}
        inputs, outputs = tuple(data.inputs), data.classes if data.loss == "multiclass" else 1
        facts: dict[str, dict[str, Any]] = {silo: {} for silo in data.silos}
        sample = torch.zeros(2, *inputs)
        outline = Outline(settings.name, tuple(data.silos), sample, data.loss, facts, **test)
    else:
        federation = data.build(settings.seed, folder)
        outline = Outline.of(federation)
        inputs, outputs = federation.inputs, federation.outputs
    model = settings.model.of_shape(inputs, outputs, settings.seed)
    sizes = settings.model.sizes
    return (
        outline,
        ModelSpec(name=settings.model.name, inputs=list(inputs), outputs=outputs, sizes=sizes),
        model,
    )


def silo_from_file(name: str, path: Path, label: str, validation_share: float) -> Callable[[Manifest], Silo]:
    """A silo of one's own table, its columns put into the order of the manifest."""

    def make(manifest: Manifest) -> Silo:
        table = read_table(path, label)
        if manifest.columns is not None and table.columns:
            table = same_columns(str(path), table, "the run", manifest.columns)
        return silo_of(name, table, validation_share, manifest.seed)

    return make


def silo_from_provider(name: str, provider: str) -> Callable[[Manifest], Silo]:
    """A silo that a function of one's own makes: `module:function`, called with the silo's name."""
    function = find_function(provider, "--provider")

    def make(_: Manifest) -> Silo:
        silo = function(name)
        if not isinstance(silo, Silo):
            raise DataError(f"{provider} gave {type(silo).__name__}, not a fedilc.Silo")
        silo.name = name
        return silo

    return make


def silo_from_experiment(name: str, experiment: str) -> Callable[[Manifest], Silo]:
    """A silo of an experiment that is on this machine, for trying things out."""
    settings, folder = read_experiment(experiment)

    def make(manifest: Manifest) -> Silo:
        federation = settings.data.build(manifest.seed, folder)
        for silo in federation.silos:
            if silo.name == name:
                return silo
        names = ", ".join(silo.name for silo in federation.silos)
        raise DataError(f"experiment {experiment!r} has no silo {name!r}; it has {names}")

    return make


def network_from(builder: str) -> Callable[[Manifest], nn.Module]:
    """A network of the silo's own: `module:function`, called without arguments."""
    function = find_function(builder, "--model")

    def build(_: Manifest) -> nn.Module:
        model = function()
        if not isinstance(model, nn.Module):
            raise ConfigError(f"{builder} gave {type(model).__name__}, not a torch.nn.Module")
        return model

    return build


def find_function(name: str, option: str) -> Callable[..., Any]:
    """A function of the user's own, from the working folder or an installed package."""
    module, colon, function = name.partition(":")
    if not colon or not module or not function:
        raise ConfigError(f"{option} {name!r} is not of the form module:function")
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        found = getattr(importlib.import_module(module), function)
    except ImportError as error:
        raise ConfigError(f"{option} {name!r}: {error}") from error
    except AttributeError as error:
        raise ConfigError(f"{option} {name!r}: module {module!r} has no {function!r}") from error
    if not callable(found):
        raise ConfigError(f"{option} {name!r} is not a function")
    return found  # type: ignore[no-any-return]
