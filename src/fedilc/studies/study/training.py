"""Train one model of a study, with its losses by round, and predict with it.

`tasks.py` calls this for each run and stores what it gives; `run.py` does all runs.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedilc.algorithms.loss_name import LossName, has_classes, task_of
from fedilc.api import train
from fedilc.data import Federation, Silo
from fedilc.data.inputs import example_shape
from fedilc.errors import DivergedError, FedILCWarning, NonFiniteError
from fedilc.evaluation.calibration import calibration_intercept
from fedilc.federation import Record
from fedilc.gradients import Loss
from fedilc.models import build_model
from fedilc.seeds import numpy_generator
from fedilc.studies.study.data import StudyData
from fedilc.training.callbacks import Callback, Run

_ROWS = 2048  # examples predicted at a time

Examples = tuple[Tensor, Tensor]


@dataclass
class Fitted:
    """A model with its weights after the last round, losses by round, and why training failed.

    Attributes:
        model: the network.
        weights: by parameter; none if training failed.
        curve: the losses of the scored sets, by round.
        failed: why there are no weights.
        agreement: that of the silos' signs, by round and layer, of algorithms that measure it.
    """

    model: nn.Module
    weights: dict[str, Tensor] = field(default_factory=dict)
    curve: dict[str, dict[str, float]] = field(default_factory=dict)
    failed: str | None = None
    agreement: dict[str, dict[str, float]] = field(default_factory=dict)

    def predict(self, x: Tensor) -> Tensor:
        """Return the model's outputs."""
        return _predict(self.model, self.weights, x)


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
    hidden: tuple[int, ...] | None,
    algorithm: str,
    options: Mapping[str, Any],
    seed: int,
    scored: Mapping[str, Examples] | None = None,
) -> Fitted:
    """Train the study's network over silos, with the losses of the scored sets by round.

    Args:
        data: the study's data, which has the loss and the number of outputs.
        silos: to train on.
        hidden: the widths of the hidden layers; None is a convolutional network for images.
        algorithm: by name.
        options: of `train`, and "score_every": the rounds between scores.
        seed: of the first weights and of every choice in training.
        scored: sets of examples whose loss is recorded.
    """
    given = dict(options)
    name, sizes = ("cnn", {}) if hidden is None else ("mlp", {"hidden": hidden})
    model = build_model(name, example_shape(silos[0].x), data.outputs, seed, **sizes)
    curve = _Curve(Loss(data.loss), model, scored or {}, int(given.pop("score_every", 1)))
    federation = Federation("study", silos, loss=data.loss)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FedILCWarning)
        try:
            result = train(federation, model, algorithm, seed=seed, callbacks=[curve], **given)
        except (DivergedError, NonFiniteError) as error:
            return Fitted(model, failed=str(error))
    weights = {name: tensor.detach().clone() for name, tensor in result.model.named_parameters()}
    agreement = {str(record["round"]): record.get("sign_agreement") for record in result.history}
    known = {number: found for number, found in agreement.items() if found and len(silos) > 1}
    return Fitted(model, weights, curve.curve, agreement=known)


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


def validation_rows(y: NDArray[Any], share: float, loss: LossName, seed: int) -> NDArray[np.bool_]:
    """Return which examples are held out: each class in proportion, drawn from the seed."""
    held = np.zeros(len(y), dtype=bool)
    random = numpy_generator(seed, "study", "validation")
    for label in np.unique(y) if has_classes(loss) else [None]:
        members = np.arange(len(y)) if label is None else np.flatnonzero(y == label)
        held[random.permutation(members)[: round(share * len(members))]] = True
    return held


def folds_of(y: NDArray[Any], folds: int, loss: LossName) -> NDArray[np.intp]:
    """Return the fold of each example: each class in proportion, in an order drawn once and for all."""
    found = np.empty(len(y), dtype=np.intp)
    random = numpy_generator(0, "study", "folds")
    order = random.permutation(len(y))
    if has_classes(loss):
        order = order[np.argsort(y[order], kind="stable")]
    found[order] = np.arange(len(y)) % folds
    return found
