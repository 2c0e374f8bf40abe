"""The runs of a study: each trains one model on some silos, and is stored in a file.

`plan.py` lists them, `training.py` trains the model of one, and `run.py` does all of them in order.

The name of a run's file is a digest of everything that the run depends on: its settings and the data of its
training silos. The file holds the same facts, so that a result under another run's name is noticed. A study
that was stopped, or that is asked for more seeds or algorithms, finds the runs that it has done and does the
others. A run gets the silo that it predicts without that silo's labels.
"""

from __future__ import annotations

import hashlib
import json
import time
import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedilc import __version__
from fedilc.data import Silo
from fedilc.data.digest import digest
from fedilc.data.inputs import require_one_input
from fedilc.errors import CheckpointError, DataError, FedILCWarning
from fedilc.federation.tensor_files import read_tensors, write_tensors
from fedilc.studies.engine import Job
from fedilc.studies.study.data import StudyData
from fedilc.studies.study.training import Examples, Units, fit, folds_of, validation_rows

POOLED, ALONE = "pooled", "site alone"
PLAIN = "fedsgd"  # on one silo it is plain full-batch training with the server's optimiser

Result = tuple[dict[str, Tensor], dict[str, Any]]  # tensors, and what there is to know about them


@dataclass(frozen=True)
class RunTask:
    """One model to be trained.

    Attributes:
        algorithm: by name, or "pooled": plain training on the training silos' examples together.
        options: of `train`.
        training: the silos to train on.
        hidden: the widths of the hidden layers; None is a convolutional network for images.
        seed: of the first weights and of every choice in training.
        scored: silos that are left out, whose loss is recorded by round, to choose settings by.
        validation: the share of each training silo that is left out and scored instead.
        predicted: a silo whose examples the trained model predicts.
    """

    algorithm: str
    options: Mapping[str, Any]
    training: tuple[str, ...]
    hidden: tuple[int, ...] | None
    seed: int
    scored: tuple[str, ...] = ()
    validation: float = 0.0
    predicted: str | None = None

    def identity(self, data: StudyData) -> dict[str, Any]:
        """Return everything that the run depends on."""
        labelled = {*self.training, *self.scored}
        used = {*labelled, *([] if self.predicted is None else [self.predicted])}
        return _identity(self, data) | {
            "labels": {name: digest(torch.as_tensor(data.labels[name])) for name in sorted(labelled)},
            "features": {name: data.fingerprints[name] for name in sorted(used)},
        }

    def perform(self, data: StudyData) -> Result:
        """Train; return weights and predictions, and the losses by round."""
        silos, scored = self._silos(data)
        algorithm = PLAIN if self.algorithm == POOLED else self.algorithm
        fitted = fit(data, silos, self.hidden, algorithm, self.options, self.seed, scored)
        tensors = {f"weights.{name}": tensor for name, tensor in fitted.weights.items()}
        if self.predicted is not None and fitted.failed is None:
            inputs = data.inputs(self.training, self.predicted)
            tensors["outputs"] = self._units(data).to_data_units(fitted.predict(inputs))
        about: dict[str, Any] = {"curve": fitted.curve, "failed": fitted.failed}
        return tensors, about | ({"agreement": fitted.agreement} if self.predicted is not None else {})

    def _units(self, data: StudyData) -> Units:
        return Units.of(data.loss, [data.labels[name] for name in self.training])

    def _silos(self, data: StudyData) -> tuple[list[Silo], dict[str, Examples]]:
        """Return what is trained on, and the examples left out to be scored."""
        units = self._units(data)
        scored = {name: (data.inputs(self.training, name), units.labels(data, name)) for name in self.scored}
        silos = []
        for name in self.training:
            x, y = data.inputs(self.training, name), units.labels(data, name)
            if self.validation:
                held = validation_rows(y.numpy(), self.validation, data.loss, self.seed)
                if held.any():
                    scored[name] = (x[held], y[held])
                x, y = x[~held], y[~held]
            silos.append(Silo(name, x, y))
        if self.algorithm == POOLED:
            inputs = [require_one_input(silo.x, "a study") for silo in silos]
            silos = [Silo(POOLED, torch.cat(inputs), torch.cat([silo.y for silo in silos]))]
        return silos, scored


@dataclass(frozen=True)
class AloneTask:
    """A site's own model, cross-validated: for one fold, trained on the site's other examples alone.

    The rate and the round are chosen on a quarter of those, and the model is then trained on all of them.
    """

    site: str
    fold: int
    folds: int
    rates: tuple[float, ...]
    rounds: int
    every: int
    hidden: tuple[int, ...] | None
    seeds: tuple[int, ...]

    algorithm = ALONE

    def identity(self, data: StudyData) -> dict[str, Any]:
        """Return everything that the run depends on."""
        labels = digest(torch.as_tensor(data.labels[self.site]))
        own = {"algorithm": ALONE, "labels": labels, "features": data.fingerprints[self.site]}
        return _identity(self, data) | own

    def perform(self, data: StudyData) -> Result:
        """Return the predictions of the fold's examples, by seed."""
        try:
            return self._perform(data)
        except DataError as error:  # so few rows that no column differs among them
            return {}, {"failed": str(error)}

    def _perform(self, data: StudyData) -> Result:
        held = folds_of(data.labels[self.site], self.folds, data.loss) == self.fold
        rest = np.flatnonzero(~held)
        units = Units.of(data.loss, [data.labels[self.site][rest]])
        y = units.labels(data, self.site)
        inner = rest[validation_rows(y[rest].numpy(), 0.25, data.loss, 0)]
        first = np.setdiff1d(rest, inner)
        x = data.inputs_by_rows(self.site, first)
        silo, scored = Silo(self.site, x[first], y[first]), {"": (x[inner], y[inner])}
        best: tuple[float, float, int] | None = None
        for rate in self.rates:
            options = {"learning_rate": rate, "rounds": self.rounds, "score_every": self.every}
            fitted = fit(data, [silo], self.hidden, PLAIN, options, self.seeds[0], scored)
            for number, losses in fitted.curve.items():
                if np.isfinite(losses[""]) and (best is None or losses[""] < best[0]):
                    best = losses[""], rate, int(number)
        if best is None:
            return {}, {"failed": "training diverged at every rate"}
        chosen = {"learning_rate": best[1], "rounds": best[2]}
        x = data.inputs_by_rows(self.site, rest)
        silo = Silo(self.site, x[rest], y[rest])
        tensors = {"rows": torch.from_numpy(np.flatnonzero(held))}
        for seed in self.seeds:
            fitted = fit(data, [silo], self.hidden, PLAIN, chosen, seed)
            if fitted.failed:
                return {}, {"failed": fitted.failed}
            tensors[f"outputs.{seed}"] = units.to_data_units(fitted.predict(x[held]))
        return tensors, {"failed": None, "learning_rate": best[1], "round": best[2]}


Task = RunTask | AloneTask


def _identity(task: Task, data: StudyData) -> dict[str, Any]:
    """Return what every run depends on, besides its features and labels."""
    return {"version": __version__, **asdict(task), "loss": data.loss, "outputs": data.outputs}


def task_file(folder: Path, task: Task, data: StudyData) -> Path:
    """Return where the result of a task is kept."""
    return folder / "runs" / f"{_name(task.identity(data))}.safetensors"


def _name(identity: Mapping[str, Any]) -> str:
    text = json.dumps(json.loads(json.dumps(identity)), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:20]


@dataclass(frozen=True, eq=False)
class TaskJob(Job):
    """A task as a job, with the file of its result."""

    task: Task
    path: Path

    def finished(self) -> bool:
        """Return whether the result is there and whole; warn about another one, which is replaced."""
        if not self.path.exists():
            return False
        try:
            read_result(self.path)
        except CheckpointError as error:
            warnings.warn(f"{error.problem}; the run is done again", FedILCWarning, stacklevel=2)
            return False
        return True

    def perform(self, data: StudyData) -> None:
        """Do the task and keep its result."""
        started = time.perf_counter()
        tensors, about = self.task.perform(data)
        seconds = time.perf_counter() - started
        self.folder.mkdir(parents=True, exist_ok=True)
        write_tensors(self.path, tensors, {**about, "seconds": seconds, "task": self.task.identity(data)})


def read_result(path: Path) -> Result:
    """Return the result of a task; raise if it is damaged, or that of another task."""
    tensors, about = read_tensors(path)
    if _name(about.get("task", {})) != path.stem:
        raise CheckpointError(f"{path} holds the result of another run of a study", "delete it")
    return tensors, about
