"""Set up a run whose silos are on other machines, the same way for HTTP, NVIDIA FLARE and Flower."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from fedilc.algorithms.loss_registry import task_of
from fedilc.config import Experiment
from fedilc.config.experiment import Network
from fedilc.data import Federation, Silo
from fedilc.data.checks.federation import Report
from fedilc.data.image_folder import class_rule, image_features, labelled_pictures
from fedilc.data.inputs import shape_of, zeros
from fedilc.data.silo_store import Outline
from fedilc.data.sources import Remote, RemoteImages, RemoteTables
from fedilc.errors import ConfigError
from fedilc.federation import Record
from fedilc.models.user_models import user_network
from fedilc.privacy.words import require_summable
from fedilc.runtimes.base import Runtime
from fedilc.runtimes.remote.manifest import Manifest, Wire, make_manifest
from fedilc.storage.run_folder import RunFolder
from fedilc.training.callbacks import Callback, Run
from fedilc.training.loop import Specification, Training
from fedilc.training.result import Result

if TYPE_CHECKING:
    from fedilc.data.tables.preprocessing import Preprocessing

_LOGGED = {"train_loss": "train loss", "validation_loss": "validation loss", "test_loss": "OOD loss"}


@dataclass(frozen=True)
class RemoteRun:
    """The coordinator's side of a run: its specification, which has no silo's examples, and its name.

    `network` is None if the model is the user's own, and not built in.
    """

    name: str
    specification: Specification
    network: Network | None = None
    wire: Wire = "exact"
    roster: str | None = None

    @classmethod
    def of(
        cls,
        settings: Experiment,
        folder: Path,
        builder: str | None = None,
        wire: Wire = "exact",
        preprocessing: Preprocessing | None = None,
        roster: str | None = None,
    ) -> RemoteRun:
        """Return the run of an experiment, with its network or that of the user's own `builder`.

        If the experiment's data can be built here, only its outline is used. A run over tables at the silos
        needs the `preprocessing` that follows from their summaries.
        """
        data = settings.data
        if isinstance(data, Remote):
            outline = _remote_outline(settings.name, data, folder)
            outputs = data.classes if task_of(data.loss) == "multiclass" else 1
        elif isinstance(data, RemoteTables):
            if preprocessing is None:
                raise ConfigError("a run over tables of silos starts with a survey; use `fedilc serve`")
            outline = _tables_outline(settings.name, data, folder, preprocessing)
            outputs = preprocessing.label.outputs
        elif isinstance(data, RemoteImages):
            outline = _images_outline(settings.name, data, folder)
            outputs = class_rule(data.classes).outputs
        else:
            store = data.store(settings.seed, folder)
            outline, outputs = store.outline(), store.outputs
        if builder is not None:
            network, model = None, user_network(builder, settings.seed)
        else:
            network = settings.model
            model = network.of_shape(shape_of(outline.sample), outputs, settings.seed)
        spec = Specification.of(outline, model, settings.algorithm, settings)
        if settings.secure:
            require_summable(spec.program, len(outline.silos))
        return cls(settings.name, spec, network, wire, roster)

    @property
    def needed(self) -> int:
        """Return how many silos a round needs at least."""
        return self.specification.options.quorum(len(self.specification.outline.silos))

    @cached_property
    def manifest(self) -> Manifest:
        """Return the manifest, which every silo receives."""
        return make_manifest(self.name, self.specification, self.network, self.wire, self.roster)

    def training(self, runtime: Runtime) -> Training:
        """Return the training over a runtime; raise if settings do not fit."""
        return Training(self.specification, runtime)

    def train(
        self, training: Training, runtime: str, out: Path | None, callbacks: Sequence[Callback] = ()
    ) -> Result:
        """Train over a runtime, whose name is recorded; continue the run in `out`, if it is this one."""
        network = {"name": self.manifest.model.name, **self.manifest.model.sizes}
        facts = {"experiment": self.name, "wire": self.wire, "runtime": runtime, "model": network}
        resume = out is not None and RunFolder(out).settings_file.exists()
        return training.run(list(callbacks), out, resume, facts)


class RoundLog(Callback):
    """Write a line to a log at the start and after each round."""

    def __init__(self, log: Callable[[str], None]) -> None:
        self.log = log

    def on_start(self, run: Run) -> None:
        """Log the run folder."""
        self._since = time.perf_counter()
        done = len(run.history)
        continues = f" and continues after round {done} of {run.rounds}" if done else ""
        self.log(f"the run is in {run.out}{continues}")

    def on_round(self, run: Run, record: Record) -> None:
        """Log the losses and the seconds of a round."""
        now = time.perf_counter()
        losses = [
            f"{label} {record[key]:.6g}" for key, label in _LOGGED.items() if record.get(key) is not None
        ]
        seconds = f"{now - self._since:.1f} s"
        self.log(f"round {record['round']} of {run.rounds}: {', '.join([*losses, seconds])}")
        self._since = now


def _tables_outline(name: str, data: RemoteTables, folder: Path, made: Preprocessing) -> Outline:
    """Return the outline of tables at the silos; the test set is a table of the coordinator."""
    x = y = patients = None
    if data.test is not None:
        from fedilc.data.tables.silo_tables import read_features

        features, label, _, patients = read_features(folder / data.test, data.settings(), "the test set")
        x, y = made.transform(features), torch.as_tensor(made.label.encode(label))
    sample, loss, names = torch.zeros(2, *made.inputs), made.label.loss, (made.columns, made.label.text)
    silos: dict[str, dict[str, int]] = {silo: {} for silo in data.silos}
    return Outline(name, silos, sample, loss, x, y, *names, preprocessing=made, test_patients=patients)


def _images_outline(name: str, data: RemoteImages, folder: Path) -> Outline:
    """Return the outline of pictures at the silos; the test set is a folder of the coordinator."""
    backbone, made = image_features(class_rule(data.classes), data.image_size, data.backbone)
    x = y = None
    if data.test is not None:
        files, labels = labelled_pictures(folder / data.test, data.classes)
        x, y = made.transform(files, backbone), torch.as_tensor(labels)
    silos: dict[str, dict[str, int]] = {silo: {} for silo in data.silos}
    return Outline(name, silos, torch.zeros(2, *made.inputs), made.label.loss, x, y, preprocessing=made)


def _remote_outline(name: str, data: Remote, folder: Path) -> Outline:
    sample = zeros(data.inputs)
    x = y = label = None
    if data.test is not None:
        from fedilc.data.tables.file_reader import read_examples, same_columns

        read = read_examples(folder / data.test, data.label)
        if data.columns is not None and read.columns:
            read = same_columns("the test set", read, "data.columns", data.columns)
        Report(notes=list(read.notes)).warn()
        x, y, label = torch.from_numpy(read.x), torch.as_tensor(read.y), data.label
        checked = Federation(name, [Silo(data.silos[0], sample, [0, 0])], x, y, loss=data.loss)
        checked.check_classes(data.classes)
    names = tuple(data.columns or ()), label
    return Outline(name, {silo: {} for silo in data.silos}, sample, data.loss, x, y, *names)
