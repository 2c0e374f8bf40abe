"""The runs of a study: each trains one model on some silos, predicts with it, and is stored in a file."""

from __future__ import annotations

import hashlib
import json
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedilc import __version__
from fedilc.algorithms import find_algorithm
from fedilc.algorithms.loss_registry import LossName, has_classes, task_of
from fedilc.algorithms.user_code import code_digest
from fedilc.api import train
from fedilc.data import Federation, Silo
from fedilc.data.digests import digest
from fedilc.data.inputs import Shape, example_shape, require_one_input
from fedilc.data.silo import by_patient, folds_of
from fedilc.data.tables.table_settings import Scaling
from fedilc.errors import (
    CheckpointError,
    ConfigError,
    DataError,
    DivergedError,
    FedILCWarning,
    NonFiniteError,
)
from fedilc.evaluation.calibration import calibration_intercept
from fedilc.federation import Record
from fedilc.gradients import Loss
from fedilc.models import build_model
from fedilc.models.user_models import user_network
from fedilc.seeds import numpy_generator
from fedilc.storage.files import read_tensors, write_tensors
from fedilc.studies.study.comparators import ALONE, ESTIMATED, ON_POOLED_DATA, POOLED, Estimator
from fedilc.studies.study.data import StudyData
from fedilc.studies.worker_pool import Job
from fedilc.training.callbacks import Callback, Run

_ROWS = 2048  # examples predicted at a time

Examples = tuple[Tensor, Tensor]
# The widths of the hidden layers of "mlp"; None for "cnn"; or the name of a model, or module:function.
Network = tuple[int, ...] | str | None


@dataclass
class Fitted:
    """A model with its weights after the last round, losses by round, and why training failed.

    Attributes:
        predict: gives the outputs for inputs.
        weights: by parameter; none if training failed.
        curve: the losses of the scored sets, by round.
        failed: why there are no weights.
        agreement: that of the silos' signs, by round and layer, of algorithms that measure it.
    """

    predict: Callable[[Tensor], Tensor]
    weights: dict[str, Tensor] = field(default_factory=dict)
    curve: dict[str, dict[str, float]] = field(default_factory=dict)
    failed: str | None = None
    agreement: dict[str, dict[str, float]] = field(default_factory=dict)


class _Curve(Callback):
    """Record the losses of the sets that are scored."""

    def __init__(self, loss: Loss, model: nn.Module, scored: Mapping[str, Examples], every: int) -> None:
        self.loss, self.model, self.scored, self.every = loss, model, scored, every
        self.curve: dict[str, dict[str, float]] = {}

    def on_round(self, run: Run, record: Record) -> None:
        """Score the weights after every so many rounds."""
        number = int(record["round"])
        if not self.scored or (number % self.every and number != run.rounds):
            return
        self.curve[str(number)] = {
            name: choosing_loss(self.loss, _predict(self.model, run.weights, x), y)
            for name, (x, y) in self.scored.items()
        }


def fit(
    data: StudyData,
    silos: Sequence[Silo],
    network: Network,
    algorithm: str,
    options: Mapping[str, Any],
    seed: int,
    scored: Mapping[str, Examples] | None = None,
) -> Fitted:
    """Train the study's network over silos, with the losses of the scored sets by round.

    Args:
        data: the study's data, which has the loss and the number of outputs.
        silos: to train on.
        network: what is trained, unless the algorithm is a regression, which is linear.
        algorithm: by name.
        options: of `train`, and "score_every": the rounds between scores.
        seed: of the first weights and of every choice in training.
        scored: sets of examples whose loss is recorded.
    """
    given = dict(options)
    newton = find_algorithm(algorithm)[1].is_newton
    model = build_network("linear" if newton else network, example_shape(silos[0].x), data.outputs, seed)
    loss = Loss(data.loss)
    curve = _Curve(loss, model, scored or {}, int(given.pop("score_every", 1)))
    federation = Federation("study", silos, loss=data.loss)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FedILCWarning)
        try:
            watching = [] if newton else [curve]
            result = train(federation, model, algorithm, seed=seed, callbacks=watching, **given)
        except (DivergedError, NonFiniteError) as error:
            return Fitted(partial(_predict, model, {}), failed=str(error))
        except ConfigError as error:  # columns that depend on one another have no regression
            if not newton:
                raise
            return Fitted(partial(_predict, model, {}), failed=str(error))
    weights = {name: tensor.detach().clone() for name, tensor in result.model.named_parameters()}
    agreement = {str(record["round"]): record.get("sign_agreement") for record in result.history}
    known = {number: found for number, found in agreement.items() if found and len(silos) > 1}
    fitted = Fitted(partial(_predict, model, weights), weights, curve.curve, agreement=known)
    if newton and scored:  # a regression is its minimum; weights on the way to it are not scored
        fitted.curve[str(given["rounds"])] = {
            name: choosing_loss(loss, fitted.predict(x), y) for name, (x, y) in scored.items()
        }
    return fitted


def fit_estimator(
    data: StudyData,
    silo: Silo,
    method: str,
    options: Mapping[str, Any],
    scored: Mapping[str, Examples] | None = None,
) -> Fitted:
    """Train a comparator of scikit-learn on one silo's examples, with the losses of the scored sets."""
    loss = Loss(data.loss)
    x = _rows(require_one_input(silo.x, "a study"))
    found = Estimator.of(method, data.loss, data.outputs, options, x, silo.y.double().numpy())
    curve: dict[str, dict[str, float]] = {}
    for name, (inputs, labels) in (scored or {}).items():
        for number, outputs in found.staged(_rows(inputs)):
            scores = curve.setdefault(str(number), {})
            scores[name] = choosing_loss(loss, torch.from_numpy(outputs), labels)
    weights = {name: torch.from_numpy(values) for name, values in found.coefficients.items()}
    return Fitted(lambda inputs: torch.from_numpy(found.outputs(_rows(inputs))), weights, curve)


def _rows(x: Tensor) -> NDArray[np.float64]:
    found: NDArray[np.float64] = x.reshape(len(x), -1).double().numpy()
    return found


def build_network(network: Network, inputs: Shape, outputs: int, seed: int) -> nn.Module:
    """Return the network of a study with its first weights.

    A function of the user's own takes the shape of an input and the number of outputs, or nothing.
    """
    if isinstance(network, str) and ":" in network:
        return user_network(network, seed, inputs, outputs)
    if isinstance(network, str):
        return build_model(network, inputs, outputs, seed)
    name, sizes = ("cnn", {}) if network is None else ("mlp", {"hidden": network})
    return build_model(name, inputs, outputs, seed, **sizes)


def choosing_loss(loss: Loss, outputs: Tensor, y: Tensor) -> float:
    """Return the loss that settings are chosen by: the mean loss, of binary labels with a refitted intercept.

    Sites differ in how common the positive class is. Without the refit, settings that predict almost nothing
    win, since their loss depends least on the share of positives. A set with one class has no intercept, and
    gives NaN.
    """
    outputs = outputs.double()
    if task_of(loss.name) == "binary":
        intercept = calibration_intercept(y.double().numpy(), outputs[:, 0].numpy())[0]
        outputs = outputs + float(intercept)
    return float(loss.per_example(outputs, loss.labels(y, outputs.dtype)).mean())


@torch.no_grad()
def _predict(model: nn.Module, weights: Mapping[str, Tensor], x: Tensor) -> Tensor:
    model.eval()
    x = x.to(next(iter(weights.values())).dtype)
    parts = [torch.func.functional_call(model, dict(weights), (part,)) for part in x.split(_ROWS)]
    return torch.cat([part.reshape(len(part), -1) for part in parts])


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
    y: NDArray[Any], share: float, loss: LossName, seed: int, patients: NDArray[Any] | None = None
) -> NDArray[np.bool_]:
    """Return which examples are held out: each class in proportion, drawn from the seed, patients whole."""
    if patients is not None:
        return by_patient(lambda labels: validation_rows(labels, share, loss, seed), y, patients)
    held = np.zeros(len(y), dtype=bool)
    random = numpy_generator(seed, "study", "validation")
    for label in np.unique(y) if has_classes(loss) else [None]:
        members = np.arange(len(y)) if label is None else np.flatnonzero(y == label)
        held[random.permutation(members)[: round(share * len(members))]] = True
    return held


PLAIN = "fedsgd"  # on one silo it is plain full-batch training with the server's optimiser

Result = tuple[dict[str, Tensor], dict[str, Any]]  # tensors, and what there is to know about them


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
        if self.algorithm in ESTIMATED:
            fitted = fit_estimator(data, silos[0], self.algorithm, self.options, scored)
        else:
            algorithm = PLAIN if self.algorithm == POOLED else self.algorithm
            fitted = fit(data, silos, self.hidden, algorithm, self.options, self.seed, scored)
        tensors = {f"weights.{name}": tensor for name, tensor in fitted.weights.items()}
        if self.predicted is not None and fitted.failed is None:
            inputs = data.inputs(self.training, self.predicted, self.scaling)
            tensors["outputs"] = self._units(data).to_data_units(fitted.predict(inputs))
        about: dict[str, Any] = {"curve": fitted.curve, "failed": fitted.failed}
        return tensors, about | ({"agreement": fitted.agreement} if self.predicted is not None else {})

    def _units(self, data: StudyData) -> Units:
        return Units.of(data.loss, [data.labels[name] for name in self.training])

    def _silos(self, data: StudyData) -> tuple[list[Silo], dict[str, Examples]]:
        """Return what is trained on, and the examples left out to be scored."""
        units = self._units(data)
        scored = {
            name: (data.inputs(self.training, name, self.scaling), units.labels(data, name))
            for name in self.scored
        }
        silos = []
        for name in self.training:
            x, y = data.inputs(self.training, name, self.scaling), units.labels(data, name)
            if self.validation:
                held = validation_rows(
                    y.numpy(), self.validation, data.loss, self.seed, data.patients.get(name)
                )
                if held.any():
                    scored[name] = (x[held], y[held])
                x, y = x[~held], y[~held]
            silos.append(Silo(name, x, y))
        if self.algorithm in ON_POOLED_DATA:
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
    hidden: Network
    seeds: tuple[int, ...]

    algorithm = ALONE  # of the network; that of a regression is a field

    def identity(self, data: StudyData) -> dict[str, Any]:
        """Return everything that the run depends on."""
        labels = digest(torch.as_tensor(data.labels[self.site]))
        own = {"algorithm": self.algorithm, "labels": labels, "features": data.fingerprints[self.site]}
        return _identity(self, data) | own

    def perform(self, data: StudyData) -> Result:
        """Return the predictions of the fold's examples, by seed."""
        try:
            return self._perform(data)
        except DataError as error:  # so few rows that no column differs among them
            return {}, {"failed": str(error)}

    def _perform(self, data: StudyData) -> Result:
        patients = data.patients.get(self.site)
        held = folds_of(data.labels[self.site], self.folds, data.loss, patients) == self.fold
        rest = np.flatnonzero(~held)
        units = Units.of(data.loss, [data.labels[self.site][rest]])
        y = units.labels(data, self.site)
        of_rest = None if patients is None else patients[rest]
        found: dict[tuple[float, int], list[float]] = {}
        for left_out in self._parts(y[rest].numpy(), data.loss, of_rest):
            inner, first = rest[left_out], rest[~left_out]
            x = data.inputs_by_rows(self.site, first)
            silo, scored = Silo(self.site, x[first], y[first]), {"": (x[inner], y[inner])}
            for rate in self.rates:
                fitted = self._fit(data, silo, rate, self.rounds, self.seeds[0], scored)
                for number, losses in fitted.curve.items():
                    if np.isfinite(losses[""]):
                        found.setdefault((rate, int(number)), []).append(losses[""])
        if not found:
            return {}, {"failed": "training diverged at every rate"}
        best_rate, best_round = min(found, key=lambda key: float(np.mean(found[key])))
        x = data.inputs_by_rows(self.site, rest)
        silo = Silo(self.site, x[rest], y[rest])
        tensors = {"rows": torch.from_numpy(np.flatnonzero(held))}
        for seed in self.seeds:
            fitted = self._fit(data, silo, best_rate, best_round, seed)
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
        data: StudyData,
        silo: Silo,
        rate: float,
        rounds: int,
        seed: int,
        scored: Mapping[str, Examples] | None = None,
    ) -> Fitted:
        options = {"learning_rate": rate, "rounds": rounds, "score_every": self.every}
        return fit(data, [silo], self.hidden, PLAIN, options, seed, scored)


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

    def _fit(
        self,
        data: StudyData,
        silo: Silo,
        rate: float,
        rounds: int,  # noqa: ARG002 - part of the signature that runs share
        seed: int,  # noqa: ARG002 - part of the signature that runs share
        scored: Mapping[str, Examples] | None = None,
    ) -> Fitted:
        return fit_estimator(data, silo, self.algorithm, {"weight_decay": rate}, scored)


Task = RunTask | AloneTask


def _identity(task: Task, data: StudyData) -> dict[str, Any]:
    """Return what every run depends on, besides its features and labels."""
    own = isinstance(task.hidden, str) and ":" in task.hidden
    code = {"code": code_digest(str(task.hidden))} if own else {}
    return {"version": __version__, **asdict(task), **code, "loss": data.loss, "outputs": data.outputs}


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
