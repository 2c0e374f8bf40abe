"""Build a silo's client from a manifest and the silo's own examples and network; no code is received."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from torch import nn

from fedilc.data import Silo
from fedilc.data.labels import check_classes, check_labels
from fedilc.errors import ConfigError
from fedilc.evaluation import measure
from fedilc.federation.client import SiloClient
from fedilc.federation.control_variates import SiloState
from fedilc.gradients import Loss, Workbench, find_device, require_supported
from fedilc.runtimes.remote.manifest import Manifest


def make_client(
    manifest: Manifest,
    name: str,
    make_silo: Callable[[Manifest], Silo],
    build: Callable[[Manifest], nn.Module] | None = None,
    device: str = "auto",
    state_folder: Path | None = None,
) -> SiloClient:
    """Return the client of the silo `name`; its network is the manifest's, or that of `build`.

    The silo's state between rounds is stored in `state_folder`, if given.
    """
    manifest.require_same_steps()
    model = build(manifest) if build is not None else manifest.model.build()
    manifest.require_fits(model)
    require_supported(model)
    silo = make_silo(manifest)
    inputs = list(silo.x.shape[1:])
    if inputs != manifest.model.inputs:
        raise ConfigError(
            f"silo {name!r} has inputs of shape {inputs} and the run takes "
            f"{manifest.model.inputs}; give it the columns that the run expects"
        )
    check_labels(silo, manifest.loss)
    if manifest.loss == "multiclass":
        check_classes([silo], None, manifest.model.outputs)
    loss, program = Loss(manifest.loss), manifest.program
    bench = Workbench(model.to(find_device(device)), loss, program.parts.classifier)
    state = None
    if program.keeps_state:
        folder = None if state_folder is None else state_folder / manifest.hash[:16]
        state = SiloState(name, folder, manifest.hash)
    return SiloClient(silo, bench, program, partial(measure, loss), state)
