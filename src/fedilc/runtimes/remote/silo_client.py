"""Build a silo's client from a manifest and from the examples that its user names.

The examples are those of a table, of a function of the user's own, or of an experiment on this machine; no
message over the network names any of them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from torch import nn

from fedilc.algorithms.loss_registry import task_of
from fedilc.algorithms.user_code import call_user_code, find_function
from fedilc.config import Experiment
from fedilc.data import Silo
from fedilc.data.backbones import require_same
from fedilc.data.checks.federation import Report, silo_notes
from fedilc.data.inputs import is_several, require_one_input, shape_of
from fedilc.data.silo import check_classes, check_labels, split_silo
from fedilc.data.sources import ManySilos, Source
from fedilc.errors import ConfigError, DataError, ProtocolError
from fedilc.evaluation import measure
from fedilc.federation.client import SiloClient
from fedilc.federation.control_variates import SiloState
from fedilc.gradients import Loss, ModelRunner, find_device, require_supported
from fedilc.gradients.newton import prepared_for_newton
from fedilc.runtimes.remote.manifest import Manifest, read_received
from fedilc.runtimes.remote.survey import SurveyLimits, silo_from_table

_ROWS_PER_COEFFICIENT = 10
_CELL_FLOOR = 10  # the floor of categories in a survey of tables


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
    if manifest.program.algorithm.is_newton:
        model = prepared_for_newton(model)
    manifest.require_fits(model)
    require_supported(model)
    silo = make_silo(manifest)
    inputs, wanted = shape_of(silo.x), manifest.model.inputs
    if inputs != wanted:
        raise ConfigError(
            f"silo {name!r} has inputs of shape {inputs}, but the run takes {wanted}; "
            f"give it the {'inputs' if is_several(wanted) else 'columns'} that the run expects"
        )
    check_labels(silo, manifest.loss)
    if manifest.program.algorithm.is_newton:
        require_safe_hessian(silo)
    if task_of(manifest.loss) == "multiclass":
        check_classes([silo], None, manifest.model.outputs)
    loss, program = Loss(manifest.loss), manifest.program
    runner = ModelRunner(model.to(find_device(device)), loss, program.classifier)
    state = None
    if program.keeps_state:
        folder = None if state_folder is None else state_folder / manifest.hash[:16]
        state = SiloState(name, folder, manifest.hash)
    return SiloClient(silo, runner, program, partial(measure, loss, metrics=manifest.metrics), state)


def require_safe_hessian(silo: Silo) -> None:
    """Raise if a Hessian would reveal too much of this silo: it holds the cross-table of any two columns."""
    reason = unsafe_hessian(require_one_input(silo.x, "Newton's method"))
    if reason is not None:
        instead = "train with gradients alone instead: the model 'linear' with fedsgd"
        raise ConfigError(f"silo {silo.name!r} has {reason}; {instead}")


def unsafe_hessian(x: torch.Tensor) -> str | None:
    """Return what a silo with these inputs has that a Hessian would reveal; None if it is safe."""
    rows = len(x)
    x = x.reshape(rows, -1).double()
    needed = _ROWS_PER_COEFFICIENT * (x.shape[1] + 1)
    if rows < needed:
        return (
            f"{rows} training examples, and second derivatives of {x.shape[1] + 1} coefficients need at "
            f"least {needed} to be safe"
        )
    low, high = x.amin(0), x.amax(0)
    # For columns of two values, sides.T @ sides counts the rows in the four cells of each cross-table.
    two_valued = ((x == low) | (x == high)).all(0) & (low < high)
    flags = (x == high)[:, two_valued].double()
    sides = torch.cat([flags, 1 - flags], 1)
    cells = sides.T @ sides
    smallest = cells[cells > 0].min() if cells.any() else torch.tensor(torch.inf)
    if smallest < _CELL_FLOOR:
        return (
            f"fewer than {_CELL_FLOOR} examples in a cell of the cross-table of two columns, which second "
            "derivatives would reveal"
        )
    return None


def refuse_many_silos(data: Source, needs: str) -> None:
    """Raise if an experiment has too many silos for one process per silo; `needs` names the process."""
    if isinstance(data, ManySilos):
        raise ConfigError(
            f"this experiment has {data.silos} silos, and {needs} for each; use `fedilc run`, with torchrun "
            "if one process is not enough"
        )


def silo_from_file(
    name: str,
    path: Path,
    label: str,
    validation_share: float,
    log: Callable[[str], None],
    limits: SurveyLimits | None = None,
    backbone: str | None = None,
) -> Callable[[Manifest], Silo]:
    """Return a function that reads the silo from a table, with its columns in the order of the manifest.

    `limits` has the columns that the table's owner allows. A folder has pictures in folders by class, of
    which the silo's own `backbone` makes features.
    """
    from fedilc.data.tables.file_reader import read_examples, same_columns

    if not path.exists():
        raise DataError(f"{path} does not exist; name the file of the silo's table")
    if path.is_dir():
        return partial(_silo_of_pictures, name, path, validation_share, backbone)
    if backbone is not None:
        raise ConfigError(f"`backbone` is for pictures, and {path} is a table; leave it out")

    def make(manifest: Manifest) -> Silo:
        if manifest.preprocessing is not None:
            return silo_from_table(name, path, manifest, validation_share, limits)
        if limits is not None and limits.columns is not None:
            limits.require_listed(label, manifest.columns)
        read = read_examples(path, label)
        if manifest.columns is not None and read.columns:
            read = same_columns(str(path), read, "the run", manifest.columns)
        elif read.columns:
            log(f"the run names no columns, so the columns of {path} are used in the order of the file")
        silo = split_silo(name, read.x, read.y, validation_share, manifest.seed, manifest.loss)
        notes = silo_notes(silo, read.columns, read.identifiers, manifest.loss)
        Report(notes=[*read.notes, *notes]).warn()
        return silo

    return make


def _silo_of_pictures(
    name: str, folder: Path, validation_share: float, backbone: str | None, manifest: Manifest
) -> Silo:
    """Return the silo of a folder of pictures; raise if its backbone is not that of the run."""
    from fedilc.data.image_folder import ImagePreprocessing, labelled_pictures  # loads Polars

    kind = (manifest.preprocessing or {}).get("kind")
    if kind != "images":
        raise ConfigError(f"{folder} is a folder, but the run does not take pictures; give a file")
    made = read_received(ImagePreprocessing, manifest.preprocessing, "the manifest's preprocessing")
    if list(made.inputs) != manifest.model.inputs:
        raise ProtocolError("the manifest's preprocessing does not make the inputs of its network")
    network = None
    if made.backbone is not None and backbone is None:
        raise ConfigError(
            f"the run takes features of the backbone {made.backbone.name!r}; name it with `backbone` if silo "
            f"{name!r} agrees to run it"
        )
    if made.backbone is not None:
        network = require_same(made.backbone, backbone, f"the run of silo {name!r}")
    elif backbone is not None:
        raise ConfigError("`backbone` is given, but the run takes pictures without one; leave it out")
    files, y = labelled_pictures(folder, made.label.classes)
    return split_silo(name, made.transform(files, network), y, validation_share, manifest.seed, manifest.loss)


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
