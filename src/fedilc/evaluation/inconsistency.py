"""The paper's inconsistency score: the ratio of two silos' curvatures of the loss at the same weights.

Around weights w where silos A and B are both near a minimum, a step that costs A at most epsilon may cost B
up to epsilon times the ratio of their curvatures (section 4 of the paper, after Parascandolo et al.):

    I(w) = epsilon * max_i max(lambda_i^B / lambda_i^A, lambda_i^A / lambda_i^B)

The curvature lambda^e is taken over the classifier's parameters, in one of two ways:

    variance   C_e, the diagonal that Fishr matches: the variance of the per-example gradient. The paper
               assumes that it is proportional to the Hessian, which holds only if the model is calibrated.
    hessian    the diagonal of the Hessian itself, in closed form: the mean over examples of l''_k a_j^2 for
               logit k and feature j (a = 1 for the bias). For a cross-entropy l'' is p (1 - p), with p the
               probability of the model; for a squared error it is 1; for Huber's loss it is 1 up to an error
               of 1 and 0 beyond it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from statistics import geometric_mean
from typing import Literal

import torch
from torch import Tensor, nn

from fedilc.data import Federation, Silo
from fedilc.errors import ConfigError
from fedilc.gradients import Loss, ModelRunner, SiloComputation
from fedilc.penalties import Fishr

FLOOR = 1e-6
INCONSISTENCY = "inconsistency_"

Curvature = Literal["variance", "hessian"]
CURVATURES: tuple[Curvature, ...] = ("variance", "hessian")


def curvatures(
    federation: Federation,
    model: nn.Module,
    classifier: str | None = None,
    curvature: Curvature = "variance",
) -> dict[str, Tensor]:
    """Return the curvature of every silo along each of the classifier's parameters, in float64."""
    if curvature not in CURVATURES:
        raise ConfigError(f"curvature={curvature!r} is unknown; give one of {', '.join(CURVATURES)}")
    runner = ModelRunner(model, Loss(federation.loss), classifier)
    if curvature == "hessian":
        return {silo.name: _hessian_diagonal(runner, silo) for silo in federation.silos}
    found = {}
    for silo in federation.silos:
        x, y = runner.inputs(silo.x), runner.labels(silo.y)
        computation = SiloComputation(runner, silo.name, x, y, penalty=Fishr())
        found[silo.name] = computation.statistics(1, keep_bytes=0).double()
    return found


@torch.no_grad()
def _hessian_diagonal(runner: ModelRunner, silo: Silo) -> Tensor:
    """Return the diagonal of the mean loss's Hessian over the classifier: per logit its weights and bias."""
    x, y = runner.inputs(silo.x), runner.labels(silo.y)
    rows = runner.most_examples(x)
    runner.model.eval()
    total = torch.zeros((), dtype=torch.float64)
    for inputs, labels in zip(x.split(rows), y.split(rows), strict=True):
        chunk = runner.forward(inputs, labels, {})
        squares = chunk.only_features().double().square()
        if runner.classifier is not None and runner.classifier.bias is not None:
            squares = torch.cat([squares, squares.new_ones(len(squares), 1)], 1)
        curvature = runner.loss.curvature(chunk.logits.double(), labels.double())
        total = total + curvature.T @ squares
    runner.model.train()
    return (total / len(silo)).flatten()


def inconsistency(by_silo: Mapping[str, Tensor], floor: float = FLOOR) -> dict[tuple[str, str], float]:
    """Return I(w) / epsilon for every pair of silos; it is 1 if they have the same curvatures.

    A direction that is flat (below `floor` of the largest curvature) for both silos is left out; if it is
    flat for one silo only, `floor` replaces the curvature of that silo.

    >>> import torch
    >>> pairs = inconsistency({"a": torch.tensor([1.0, 2.0]), "b": torch.tensor([4.0, 2.0])})
    >>> pairs["a", "b"], pairs["b", "a"], pairs["a", "a"]
    (4.0, 4.0, 1.0)
    """
    if not by_silo:
        raise ConfigError("an inconsistency score needs at least one silo")
    least = floor * max(float(curvature.max()) for curvature in by_silo.values())
    scores = {}
    for one, other in product(by_silo, by_silo):
        a, b = by_silo[one], by_silo[other]
        curved = (a > least) | (b > least)
        logs = a[curved].clamp(min=least).log() - b[curved].clamp(min=least).log()
        scores[one, other] = float(logs.abs().max().exp()) if bool(curved.any()) else 1.0
    return scores


@dataclass(frozen=True)
class Scores:
    """The scores of every pair of silos, for several seeds of one algorithm."""

    by_seed: Mapping[int, Mapping[tuple[str, str], float]]

    @property
    def silos(self) -> list[str]:
        """Return the names of the silos, in order."""
        return list(dict.fromkeys(one for pairs in self.by_seed.values() for one, _ in pairs))

    def matrix(self) -> list[list[float]]:
        """Return each pair's geometric mean over seeds, because scores are ratios."""
        seeds = self.by_seed.values()
        return [
            [geometric_mean([pairs[one, other] for pairs in seeds]) for other in self.silos]
            for one in self.silos
        ]

    def worst(self) -> list[float]:
        """Return the highest score over pairs, per seed."""
        return [max(pairs.values()) for pairs in self.by_seed.values()]

    def typical(self) -> list[float]:
        """Return the geometric mean over pairs of different silos, per seed; 1 if there is one silo."""
        apart = (
            [score for (one, other), score in pairs.items() if one != other]
            for pairs in self.by_seed.values()
        )
        return [geometric_mean(scores) if scores else 1.0 for scores in apart]

    def metrics(self, curvature: Curvature) -> dict[int, dict[str, float]]:
        """Return the typical and the worst score by seed, under their names in a summary."""
        name = f"{INCONSISTENCY}{curvature}"
        pairs = zip(self.by_seed, self.typical(), self.worst(), strict=True)
        return {seed: {name: typical, f"{name}_worst": worst} for seed, typical, worst in pairs}


ScoresByCurvature = Mapping[Curvature, Mapping[str, Scores]]
