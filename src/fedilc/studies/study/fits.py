"""Train the networks of a study: many fits at once, in lockstep where `train_many` can."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedilc.algorithms import find_algorithm
from fedilc.algorithms.loss_registry import task_of
from fedilc.api import train_many
from fedilc.data import Federation, Silo
from fedilc.data.inputs import Shape, example_shape, require_one_input
from fedilc.errors import FedILCWarning
from fedilc.evaluation.calibration import calibration_intercept
from fedilc.gradients import Loss
from fedilc.models import build_model
from fedilc.models.user_models import user_network
from fedilc.studies.study.comparators import Estimator, Regression
from fedilc.studies.study.data import StudyData
from fedilc.studies.study.regressions import fit_regressions
from fedilc.training.stack import Moment, StackedRun

_ROWS = 2048  # examples predicted at a time
_SETS = 256  # sets of examples scored at a time
_APART = 256 << 10  # bytes of a set; models of different larger ones are scored one set at a time

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


@dataclass(frozen=True, eq=False)
class Fit:
    """A network to be trained over silos.

    Attributes:
        silos: to train on; fits on the same silos share the very list.
        network: what is trained, unless the algorithm is a regression, which is linear.
        algorithm: by name.
        options: of `train`, and "score_every": the rounds between scores.
        seed: of the first weights and of every choice in training.
        scored: sets of examples whose loss is recorded.
    """

    silos: Sequence[Silo]
    network: Network
    algorithm: str
    options: Mapping[str, Any]
    seed: int
    scored: Mapping[str, Examples] = field(default_factory=dict)

    @property
    def newton(self) -> bool:
        """Return whether it is a regression by Newton's method."""
        return find_algorithm(self.algorithm)[1].is_newton

    @property
    def rounds(self) -> int:
        """Return the number of rounds."""
        return int(self.options["rounds"])

    def run(self, data: StudyData, federation: Federation) -> StackedRun:
        """Return the run: its network with the first weights, and the options of `train`."""
        given = {key: value for key, value in self.options.items() if key != "score_every"}
        network = "linear" if self.newton else self.network
        model = build_network(network, example_shape(self.silos[0].x), data.outputs, self.seed)
        return StackedRun(federation, model, self.algorithm, {**given, "seed": self.seed})

    def scores_at(self, number: int) -> bool:
        """Return whether losses are recorded after a round; a regression is scored at its minimum alone."""
        due = number % int(self.options.get("score_every", 1)) == 0 or number == self.rounds
        return due and bool(self.scored) and not self.newton


def fit_all(
    data: StudyData, fits: Sequence[Fit], progress: Callable[[float], None] = lambda _: None
) -> list[Fitted]:
    """Train networks, in lockstep where they allow it; `progress` gets the share of the rounds done."""
    federations = {id(one.silos): one.silos for one in fits}
    made = {key: Federation("study", silos, loss=data.loss) for key, silos in federations.items()}
    watching = _Watching(Loss(data.loss), fits, progress)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FedILCWarning)
        trained = train_many([one.run(data, made[id(one.silos)]) for one in fits], watching)
    found = []
    for one, result, curve in zip(fits, trained, watching.curves, strict=True):
        if result.failed:
            found.append(Fitted(partial(predict, result.model, {}), curve=curve, failed=result.failed))
            continue
        weights = {name: tensor.detach().clone() for name, tensor in result.model.named_parameters()}
        agreement = {str(record["round"]): record.get("sign_agreement") for record in result.history}
        known = {number: signs for number, signs in agreement.items() if signs and len(one.silos) > 1}
        fitted = Fitted(partial(predict, result.model, weights), weights, curve, agreement=known)
        if one.newton and one.scored:  # a regression is its minimum; weights on the way to it are not scored
            curve[str(one.rounds)] = {
                name: float(choosing_losses(watching.loss, fitted.predict(x).unsqueeze(0), [y])[0])
                for name, (x, y) in one.scored.items()
            }
        found.append(fitted)
    return found


class _Watching:
    """Record the losses of the sets that are scored, for all models of a set at once."""

    def __init__(self, loss: Loss, fits: Sequence[Fit], progress: Callable[[float], None]) -> None:
        self.loss, self.fits, self.progress = loss, fits, progress
        self.curves: list[dict[str, dict[str, float]]] = [{} for _ in fits]
        self._done, self._total = 0, sum(one.rounds for one in fits)

    def __call__(self, moment: Moment) -> None:
        """Score the weights of models for which a score is due after this round."""
        self._done += len(moment.places)
        self.progress(self._done / self._total)
        due = (
            (place, name, examples)
            for place in moment.places
            if self.fits[place].scores_at(moment.round)
            for name, examples in self.fits[place].scored.items()
        )
        for members in together(due):
            outputs = moment.predict([place for place, _, _ in members], [x for _, _, (x, _) in members])
            losses = choosing_losses(self.loss, outputs, [y for _, _, (_, y) in members])
            for (place, name, _), value in zip(members, losses.tolist(), strict=True):
                self.curves[place].setdefault(str(moment.round), {})[name] = value


Scored = tuple[int, str, Examples]  # a model, and a set of examples that it is scored on, by name


def together(sets: Iterable[Scored]) -> Iterator[list[Scored]]:
    """Yield the sets that are scored at once: of one silo, as many examples each, in bounded memory.

    A silo scores its own sets, wherever the others are, so that losses have the same bits.
    """
    found: dict[Hashable, list[Scored]] = {}
    for place, name, (x, y) in sets:
        key = (name, len(x), None if x.nbytes <= _APART else id(x))
        found.setdefault(key, []).append((place, name, (x, y)))
    for members in found.values():
        yield from (members[at : at + _SETS] for at in range(0, len(members), _SETS))


def choosing_losses(loss: Loss, outputs: Tensor, labels: Sequence[Tensor]) -> NDArray[np.float64]:
    """Return the losses that settings are chosen by: mean losses, of binary labels with a refitted intercept.

    Sites differ in how common the positive class is. Without the refit, settings that predict almost nothing
    win, since their loss depends least on the share of positives. A set with one class has no intercept, and
    gives NaN.

    Args:
        loss: of the data.
        outputs: of each model (models, examples, outputs).
        labels: one label per example, for each model.
    """
    outputs, y = outputs.double(), torch.stack([one.double() for one in labels])
    if task_of(loss.name) == "binary":
        logits = outputs[:, :, 0].numpy()
        intercepts = calibration_intercept(y.numpy(), logits, np.ones(logits.shape))
        outputs = outputs + torch.from_numpy(intercepts).view(-1, 1, 1)
    found = loss.per_example(outputs.flatten(0, 1), loss.labels(y.flatten(), outputs.dtype))
    losses: NDArray[np.float64] = found.view(y.shape).mean(1).numpy()
    return losses


def fit_estimators(
    data: StudyData,
    silos: Sequence[Silo],
    method: str,
    options: Sequence[Mapping[str, Any]],
    scored: Sequence[Mapping[str, Examples]],
) -> list[Fitted]:
    """Train a comparator on the examples of each silo, with the losses of the sets that are scored.

    Args:
        data: of the study.
        silos: on whose examples it is trained, one after another; some may be the same.
        method: by name.
        options: of each.
        scored: by each.
    """
    x = {id(silo.x): _rows(require_one_input(silo.x, "a study")) for silo in silos}
    y = [silo.y.double() for silo in silos]
    found: list[Regression | Estimator]
    if all(
        Regression.takes(method, data.loss, x[id(s.x)], of.numpy()) for s, of in zip(silos, y, strict=True)
    ):
        inputs = [torch.from_numpy(x[id(silo.x)]) for silo in silos]
        ridges = [one["weight_decay"] for one in options]
        binary = task_of(data.loss) == "binary"
        found = [Regression(one.numpy()) for one in fit_regressions(inputs, y, ridges, binary)]
    else:
        found = [
            Estimator.of(method, data.loss, data.outputs, one, x[id(silo.x)], of.numpy())
            for silo, of, one in zip(silos, y, options, strict=True)
        ]
    curves = _staged_losses(Loss(data.loss), found, scored)
    fitted = []
    for model, curve in zip(found, curves, strict=True):
        weights = {name: torch.from_numpy(values) for name, values in model.coefficients.items()}
        fitted.append(Fitted(partial(_outputs, model), weights, curve))
    return fitted


def _staged_losses(
    loss: Loss, models: Sequence[Regression | Estimator], scored: Sequence[Mapping[str, Examples]]
) -> list[dict[str, dict[str, float]]]:
    """Return the losses of the scored sets by number of trees: of sets with as many examples together."""
    curves: list[dict[str, dict[str, float]]] = [{} for _ in models]
    due: dict[int, list[tuple[int, str, int, NDArray[np.float64], Tensor]]] = {}
    for place, (model, sets) in enumerate(zip(models, scored, strict=True)):
        for name, (x, y) in sets.items():
            for number, outputs in model.staged(_rows(x)):
                due.setdefault(len(y), []).append((place, name, number, outputs, y))
    for members in due.values():
        for at in range(0, len(members), _SETS):
            part = members[at : at + _SETS]
            together = torch.from_numpy(np.stack([one[3] for one in part]))
            losses = choosing_losses(loss, together, [one[4] for one in part])
            for (place, name, number, *_), value in zip(part, losses.tolist(), strict=True):
                curves[place].setdefault(str(number), {})[name] = value
    return curves


def _outputs(model: Regression | Estimator, x: Tensor) -> Tensor:
    return torch.from_numpy(model.outputs(_rows(x)))


def _rows(x: Tensor) -> NDArray[np.float64]:
    found: NDArray[np.float64] = x.reshape(len(x), -1).double().numpy()
    return found


def build_network(network: Network, inputs: Shape, outputs: int, seed: int) -> nn.Module:
    """Return the network of a study with its first weights.

    A function of the user's own takes the shape of an input and the number of outputs, or nothing.
    """
    if isinstance(network, str) and ":" in network:
        return user_network(network, seed, inputs, outputs)
    if isinstance(network, str) or network == ():
        return build_model(network or "linear", inputs, outputs, seed)
    name, sizes = ("cnn", {}) if network is None else ("mlp", {"hidden": network})
    return build_model(name, inputs, outputs, seed, **sizes)


@torch.no_grad()
def predict(model: nn.Module, weights: Mapping[str, Tensor], x: Tensor) -> Tensor:
    """Return the outputs of a model with these weights, a row per example."""
    model.eval()
    x = x.to(next(iter(weights.values())).dtype)
    parts = [torch.func.functional_call(model, dict(weights), (part,)) for part in x.split(_ROWS)]
    return torch.cat([part.reshape(len(part), -1) for part in parts])
