"""The runs of a study: each trains one model on some silos, predicts with it, and is stored in a file."""

from __future__ import annotations

import hashlib
import json
import time
import warnings
from collections.abc import Callable, Generator, Hashable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedilc import __version__
from fedilc.algorithms import find_algorithm
from fedilc.algorithms.loss_registry import LossName, has_classes
from fedilc.algorithms.user_code import code_digest
from fedilc.data import Silo
from fedilc.data.inputs import require_one_input
from fedilc.data.silo import by_patient, folds_of
from fedilc.data.tables.table_settings import Scaling
from fedilc.errors import (
    CheckpointError,
    DataError,
    FedILCWarning,
)
from fedilc.seeds import numpy_generator
from fedilc.storage.files import read_tensors, write_tensors
from fedilc.studies.study.comparators import ALONE, ESTIMATED, ON_POOLED_DATA, POOLED
from fedilc.studies.study.data import StudyData
from fedilc.studies.study.fits import Examples, Fit, Fitted, Network, fit_all, fit_estimators
from fedilc.studies.worker_pool import POLL_SECONDS, Job


@dataclass(frozen=True)
class Units:
    """The units in which quantities are learned: those in which the training examples have deviation 1.

    Classes stay as they are.
    """

    mean: float = 0.0
    scale: float = 1.0

    @classmethod
    def of(cls, loss: LossName, labels: Sequence[NDArray[Any]]) -> Units:
        """Return the units of the training silos' labels: from their counts, sums and sums of squares."""
        if has_classes(loss):
            return cls()
        count = sum(len(y) for y in labels)
        mean = sum(float(y.sum()) for y in labels) / count
        variance = sum(float(((y - mean) ** 2).sum()) for y in labels) / count
        return cls(mean, variance**0.5 or 1.0)

    def labels(self, data: StudyData, silo: str) -> Tensor:
        """Return a silo's labels as they are learned."""
        y = data.labels[silo]
        return torch.as_tensor(y if has_classes(data.loss) else (y - self.mean) / self.scale)

    def to_data_units(self, outputs: Tensor) -> Tensor:
        """Return a model's outputs in the units of the data."""
        return outputs if self == Units() else outputs.double() * self.scale + self.mean


def validation_rows(
    y: NDArray[Any],
    share: float,
    loss: LossName,
    seed: int,
    patients: NDArray[Any] | None = None,
    purpose: str = "validation",
) -> NDArray[np.bool_]:
    """Return which examples are held out: each class in proportion, drawn from the seed, patients whole."""
    if patients is not None:
        return by_patient(
            lambda labels: validation_rows(labels, share, loss, seed, purpose=purpose), y, patients
        )
    held = np.zeros(len(y), dtype=bool)
    random = numpy_generator(seed, "study", purpose)
    for label in np.unique(y) if has_classes(loss) else [None]:
        members = np.arange(len(y)) if label is None else np.flatnonzero(y == label)
        held[random.permutation(members)[: round(share * len(members))]] = True
    return held


def choosing_rows(
    y: NDArray[Any], most: int | None, loss: LossName, patients: NDArray[Any] | None
) -> NDArray[np.bool_]:
    """Return which examples of a silo settings are chosen on: `most` of them, or all."""
    if most is None or len(y) <= most:
        return np.ones(len(y), dtype=bool)
    return validation_rows(y, most / len(y), loss, 0, patients, "choosing")


def _stacks(network: Network, algorithm: str) -> bool:
    """Return whether a network can be trained in lockstep with others: a perceptron, or a linear model."""
    plain = isinstance(network, tuple) or network in ("mlp", "linear")
    return plain or find_algorithm(PLAIN if algorithm == POOLED else algorithm)[1].is_newton


def is_large(data: StudyData) -> bool:
    """Return whether tables of several preprocessings should not be in memory at the same time."""
    return sum(len(y) for y in data.labels.values()) > LARGE_ROWS


LARGE_ROWS = 20_000
PLAIN = "fedsgd"  # on one silo it is plain full-batch training with the server's optimiser

Result = tuple[dict[str, Tensor], dict[str, Any]]  # tensors, and what there is to know about them
Steps = Generator[list[Fit], list[Fitted], Result]  # what a task trains, step by step
Shared = dict[Hashable, tuple[list[Silo], dict[str, Examples]]]  # of tasks that are done together


@dataclass(frozen=True)
class RunTask:
    """One model to be trained.

    Attributes:
        algorithm: by name, or "pooled": plain training on the training silos' examples together; or one of
            the comparators that are trained on them together.
        options: of `train`, or of the comparator.
        training: the silos to train on.
        hidden: the network.
        seed: of the first weights and of every choice in training.
        scored: silos that are left out, whose loss is recorded by round, to choose settings by.
        validation: the share of each training silo that is left out and scored instead.
        predicted: a silo whose examples the trained model predicts.
        scaling: how numbers of tables are scaled.
        rows: the most examples of each silo to train on and to score; None is all.
    """

    algorithm: str
    options: Mapping[str, Any]
    training: tuple[str, ...]
    hidden: Network
    seed: int
    scored: tuple[str, ...] = ()
    validation: float = 0.0
    predicted: str | None = None
    scaling: Scaling = "moments"
    rows: int | None = None
    stages: ClassVar[int] = 1

    def identity(self, data: StudyData) -> dict[str, Any]:
        """Return everything that the run depends on."""
        labelled = {*self.training, *self.scored}
        used = {*labelled, *([] if self.predicted is None else [self.predicted])}
        return _identity(self, data) | {
            "labels": {name: data.label_digests[name] for name in sorted(labelled)},
            "features": {name: data.fingerprints[name] for name in sorted(used)},
        }

    def perform(self, data: StudyData) -> Result:
        """Train alone; return weights and predictions, and the losses by round."""
        return perform_all([self], data)[0]

    def stack(self, data: StudyData) -> Hashable | None:
        """Return what tasks that are done together have in common; None if this one is done alone."""
        if self.algorithm in ESTIMATED or not _stacks(self.hidden, self.algorithm):
            return None
        kind = (self.algorithm, repr(self.hidden), self.seed, bool(self.scored), self.validation)
        return (*kind, self.predicted is None, self.training if is_large(data) else None)

    def steps(self, data: StudyData, shared: Shared) -> Steps:
        """Yield the fit, and return the result."""
        apart = (self.seed,) if self.validation else ()
        key = (self.training, self.scored, self.scaling, self.validation, self._pools, self.rows, *apart)
        if key not in shared:
            shared[key] = self._silos(data)
        silos, scored = shared[key]
        if self.algorithm in ESTIMATED:
            (fitted,) = fit_estimators(data, silos, self.algorithm, [self.options], [scored])
        else:
            algorithm = PLAIN if self.algorithm == POOLED else self.algorithm
            (fitted,) = yield [Fit(silos, self.hidden, algorithm, self.options, self.seed, scored)]
        tensors = {f"weights.{name}": tensor for name, tensor in fitted.weights.items()}
        if self.predicted is not None and fitted.failed is None:
            inputs = data.inputs(self.training, self.predicted, self.scaling)
            tensors["outputs"] = self._units(data).to_data_units(fitted.predict(inputs))
        about: dict[str, Any] = {"curve": fitted.curve, "failed": fitted.failed}
        return tensors, about | ({"agreement": fitted.agreement} if self.predicted is not None else {})

    @property
    def _pools(self) -> bool:
        return self.algorithm in ON_POOLED_DATA

    def _units(self, data: StudyData) -> Units:
        return Units.of(data.loss, [data.labels[name] for name in self.training])

    def _silos(self, data: StudyData) -> tuple[list[Silo], dict[str, Examples]]:
        """Return what is trained on, and the examples left out to be scored."""
        units = self._units(data)
        scored = {name: self._examples(data, units, name)[:2] for name in self.scored}
        silos = []
        for name in self.training:
            x, y, patients = self._examples(data, units, name)
            if self.validation:
                held = validation_rows(y.numpy(), self.validation, data.loss, self.seed, patients)
                if held.any():
                    scored[name] = (x[held], y[held])
                x, y = x[~held], y[~held]
            silos.append(Silo(name, x, y))
        if self._pools:
            inputs = [require_one_input(silo.x, "a study") for silo in silos]
            silos = [Silo(POOLED, torch.cat(inputs), torch.cat([silo.y for silo in silos]))]
        return silos, scored

    def _examples(
        self, data: StudyData, units: Units, name: str
    ) -> tuple[Tensor, Tensor, NDArray[np.intp] | None]:
        """Return a silo's examples, and whose each is; as many as are trained on or scored."""
        y, patients = units.labels(data, name), data.patients.get(name)
        if self.rows is None or len(y) <= self.rows:
            return data.inputs(self.training, name, self.scaling), y, patients
        drawn = choosing_rows(data.labels[name], self.rows, data.loss, patients)
        x = data.inputs(self.training, name, self.scaling, drawn)
        return x, y[drawn], None if patients is None else patients[drawn]


@dataclass(frozen=True)
class AloneTask:
    """A site's own model, cross-validated: for one fold, trained on the site's other examples alone.

    The rate and the round are chosen on a quarter of those, and the model is then trained on all of them.
    With `rows`, no more of them than that are used to choose.
    """

    site: str
    fold: int
    folds: int
    rates: tuple[float, ...]
    rounds: int
    every: int
    hidden: Network
    seeds: tuple[int, ...]
    rows: int | None = None

    algorithm = ALONE  # of the network; that of a regression is a field
    stages: ClassVar[int] = 2  # how many times it trains something that depends on what came before

    def identity(self, data: StudyData) -> dict[str, Any]:
        """Return everything that the run depends on."""
        labels = data.label_digests[self.site]
        own = {"algorithm": self.algorithm, "labels": labels, "features": data.fingerprints[self.site]}
        return _identity(self, data) | own

    def perform(self, data: StudyData) -> Result:
        """Return the predictions of the fold's examples, by seed."""
        return perform_all([self], data)[0]

    def stack(self, data: StudyData) -> Hashable | None:
        """Return what tasks that are done together have in common; None if this one is done alone."""
        if not _stacks(self.hidden, PLAIN):
            return None
        # A site does its own, so that it has the same bits if it does them at home.
        kind = (self.site, repr(self.hidden), self.rates, self.rounds, self.every, self.seeds)
        large = len(data.labels[self.site]) > LARGE_ROWS
        return (self.algorithm, *kind, self.fold if large else None)

    def steps(self, data: StudyData, _shared: Shared) -> Steps:
        """Yield the fits to choose by, then those of all seeds; return the result."""
        try:
            return (yield from self._steps(data))
        except DataError as error:  # so few rows that no column differs among them
            return {}, {"failed": str(error)}

    def _steps(self, data: StudyData) -> Steps:
        patients = data.patients.get(self.site)
        held = folds_of(data.labels[self.site], self.folds, data.loss, patients) == self.fold
        rest = np.flatnonzero(~held)
        units = Units.of(data.loss, [data.labels[self.site][rest]])
        y = units.labels(data, self.site)
        of_rest = None if patients is None else patients[rest]
        drawn = choosing_rows(data.labels[self.site][rest], self.rows, data.loss, of_rest)
        of_drawn, few = None if of_rest is None else of_rest[drawn], rest[drawn]
        # The rows that are left out to choose by have a part in preprocessing; those of the fold have none.
        x = data.inputs_by_rows(self.site, rest)
        found: dict[tuple[float, int], list[float]] = {}
        tried: list[tuple[float, Fit]] = []
        for left_out in self._parts(y[few].numpy(), data.loss, of_drawn):
            inner, first = few[left_out], few[~left_out]
            silo, scored = Silo(self.site, x[first], y[first]), {"": (x[inner], y[inner])}
            silos = [silo]
            tried += [
                (rate, self._fit(silos, rate, self.rounds, self.seeds[0], scored)) for rate in self.rates
            ]
        fits = yield from self._trained(data, [one for _, one in tried])
        for (rate, _), fitted in zip(tried, fits, strict=True):
            for number, losses in fitted.curve.items():
                if np.isfinite(losses[""]):
                    found.setdefault((rate, int(number)), []).append(losses[""])
        if not found:
            return {}, {"failed": "training diverged at every rate"}
        best_rate, best_round = min(found, key=lambda key: float(np.mean(found[key])))
        silos = [Silo(self.site, x[rest], y[rest])]
        tensors = {"rows": torch.from_numpy(np.flatnonzero(held))}
        last = [self._fit(silos, best_rate, best_round, seed) for seed in self.seeds]
        fits = yield from self._trained(data, last)
        for seed, fitted in zip(self.seeds, fits, strict=True):
            if fitted.failed:
                return {}, {"failed": fitted.failed}
            tensors[f"outputs.{seed}"] = units.to_data_units(fitted.predict(x[held]))
        return tensors, {"failed": None, "learning_rate": best_rate, "round": best_round}

    def _parts(
        self, y: NDArray[Any], loss: LossName, patients: NDArray[Any] | None
    ) -> list[NDArray[np.bool_]]:
        """Return which of the site's other examples are left out to choose by: a quarter, once."""
        return [validation_rows(y, 0.25, loss, 0, patients)]

    def _fit(
        self,
        silos: list[Silo],
        rate: float,
        rounds: int,
        seed: int,
        scored: Mapping[str, Examples] | None = None,
    ) -> Fit:
        options = {"learning_rate": rate, "rounds": rounds, "score_every": self.every}
        return Fit(silos, self.hidden, PLAIN, options, seed, scored or {})

    def _trained(self, _data: StudyData, fits: list[Fit]) -> Generator[list[Fit], list[Fitted], list[Fitted]]:
        """Return what the fits give."""
        return (yield fits)


@dataclass(frozen=True)
class AloneRegressionTask(AloneTask):
    """The same for a site's own regression; the rates to choose from are ridges.

    It costs so little that each example is left out once to choose by: a comparator must not be weak for want
    of a good ridge.
    """

    algorithm: str = field(kw_only=True)

    def _parts(
        self, y: NDArray[Any], loss: LossName, patients: NDArray[Any] | None
    ) -> list[NDArray[np.bool_]]:
        folds = folds_of(y, self.folds, loss, patients)
        return [folds == fold for fold in range(self.folds)]

    def stack(self, _data: StudyData) -> Hashable | None:
        """Return None: the ridges of a fold are fitted together, and folds one after another."""
        return None

    def _trained(self, data: StudyData, fits: list[Fit]) -> Generator[list[Fit], list[Fitted], list[Fitted]]:
        """Return what the comparator gives."""
        yield from ()
        silos = [one.silos[0] for one in fits]
        options = [{"weight_decay": one.options["learning_rate"]} for one in fits]
        return fit_estimators(data, silos, self.algorithm, options, [one.scored for one in fits])


Task = RunTask | AloneTask


def _identity(task: Task, data: StudyData) -> dict[str, Any]:
    """Return what every run depends on, besides its features and labels."""
    own = isinstance(task.hidden, str) and ":" in task.hidden
    code = {"code": code_digest(str(task.hidden))} if own else {}
    return {"version": __version__, **asdict(task), **code, "loss": data.loss, "outputs": data.outputs}


def name_of(identity: Mapping[str, Any]) -> str:
    """Return the name of the file of a result that depends on this."""
    text = json.dumps(json.loads(json.dumps(identity)), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:20]


def perform_all(
    tasks: Sequence[Task], data: StudyData, progress: Callable[[float], None] = lambda _: None
) -> list[Result]:
    """Do tasks together: what all of them train next is trained at once; return their results in order."""
    if data.trainer is not None:
        return data.trainer(tasks, progress)
    shared: Shared = {}
    results: dict[int, Result] = {}
    waiting: dict[int, tuple[Steps, list[Fit]]] = {}

    def advance(place: int, steps: Steps, fitted: list[Fitted] | None) -> None:
        try:
            waiting[place] = steps, steps.send(fitted) if fitted is not None else next(steps)
        except StopIteration as end:
            waiting.pop(place, None)
            results[place] = end.value

    for place, task in enumerate(tasks):
        advance(place, task.steps(data, shared), None)
    stage, stages = 0, max(task.stages for task in tasks)
    while waiting:
        now = dict(waiting)
        wanted = [one for _, fits in now.values() for one in fits]
        fitted = iter(fit_all(data, wanted, partial(_overall, progress, stage, stages)))
        stage += 1
        for place, (steps, fits) in now.items():
            advance(place, steps, [next(fitted) for _ in fits])
    return [results[place] for place in range(len(tasks))]


def _overall(progress: Callable[[float], None], stage: int, stages: int, share: float) -> None:
    progress((stage + share) / stages)


def stacks_of(tasks: Iterable[Task], data: StudyData) -> list[list[Task]]:
    """Return the tasks that are done together, which depends on these tasks alone."""
    found: dict[Hashable, list[Task]] = {}
    for number, task in enumerate(tasks):
        key = task.stack(data)
        found.setdefault((number,) if key is None else key, []).append(task)
    return list(found.values())


def identities(tasks: Sequence[Task], data: StudyData) -> list[dict[str, Any]]:
    """Return what each result of a stack depends on: its own task, and which others it is trained with.

    Results are the same up to rounding whatever the stack, but their bits are those of the stack.
    """
    own = [task.identity(data) for task in tasks]
    if tasks[0].stack(data) is None:
        return own
    stack = name_of({"stack": sorted(map(name_of, own))})
    return [one | {"stack": stack} for one in own]


@dataclass(frozen=True, eq=False)
class TaskJob(Job):
    """Tasks that are done together as a job, with a file for the result of each."""

    tasks: tuple[Task, ...]
    identities: tuple[Mapping[str, Any], ...]

    @classmethod
    def of(cls, folder: Path, tasks: Sequence[Task], data: StudyData) -> TaskJob:
        """Return the job of a stack of tasks, whose results are kept below a folder."""
        name = tasks[0].algorithm
        return cls(name, name, folder / "runs", len(tasks), tuple(tasks), tuple(identities(tasks, data)))

    @property
    def paths(self) -> list[Path]:
        """Return where the result of each task is kept."""
        return [self.folder / f"{name_of(identity)}.safetensors" for identity in self.identities]

    @property
    def _progress(self) -> Path:
        return self.paths[0].with_suffix(".progress")

    def finished(self) -> bool:
        """Return whether all results are there and whole; warn about another one, which is replaced."""
        whole = [self._is_whole(path) for path in self.paths]  # warn about each that is not
        return all(whole)

    def _is_whole(self, path: Path) -> bool:
        if not path.exists():
            return False
        try:
            read_result(path)
        except CheckpointError as error:
            warnings.warn(f"{error.problem}; the run is done again", FedILCWarning, stacklevel=3)
            return False
        return True

    def done(self) -> int:
        """Return how many runs the rounds that are complete are worth."""
        try:
            return int(float(self._progress.read_text()) * self.cost)
        except (OSError, ValueError):  # not begun, over, or just being written
            return self.cost if self.paths[-1].exists() else 0

    def perform(self, data: StudyData) -> None:
        """Do the tasks and keep their results."""
        started = shown = time.perf_counter()
        self.folder.mkdir(parents=True, exist_ok=True)

        def progress(share: float) -> None:
            nonlocal shown
            if self.cost > 1 and time.perf_counter() - shown > POLL_SECONDS:
                shown = time.perf_counter()
                self._progress.write_text(f"{share:.4f}")

        try:
            results = perform_all(self.tasks, data, progress)
            seconds = (time.perf_counter() - started) / len(results)
            for path, identity, (tensors, about) in zip(self.paths, self.identities, results, strict=True):
                write_tensors(path, tensors, {**about, "seconds": seconds, "task": dict(identity)})
        finally:
            self._progress.unlink(missing_ok=True)


def read_result(path: Path) -> Result:
    """Return the result of a task; raise if it is damaged, or that of another task."""
    tensors, about = read_tensors(path)
    if name_of(about.get("task", {})) != path.stem:
        raise CheckpointError(f"{path} holds the result of another run of a study", "delete it")
    return tensors, about
