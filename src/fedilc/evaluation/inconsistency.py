"""The paper's inconsistency score: how differently the loss curves for two silos at the same weights.

Around weights w where silos A and B are both near a minimum, a step that costs A at most epsilon may cost B
up to epsilon times the ratio of their curvatures (section 4 of the paper, after Parascandolo et al.):

    I(w) = epsilon * max_i max(lambda_i^B / lambda_i^A, lambda_i^A / lambda_i^B)

The curvature lambda^e is the diagonal that Fishr matches, C_e, the variance of the classifier's per-example
gradient, which is proportional to the diagonal of the Hessian there. Only C_e leaves a silo.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product

from torch import Tensor, nn

from fedilc.data import Federation
from fedilc.errors import ConfigError
from fedilc.gradients import Loss, SiloComputation, Workbench

FLOOR = 1e-6


def curvatures(federation: Federation, model: nn.Module, classifier: str | None = None) -> dict[str, Tensor]:
    """C_e of every silo at the model's weights, in float64."""
    bench = Workbench(model, Loss(federation.loss), classifier)
    return {
        silo.name: SiloComputation(bench, silo, None, False, seed=0).statistics(1, keep=False).double()
        for silo in federation.silos
    }


def inconsistency(by_silo: Mapping[str, Tensor], floor: float = FLOOR) -> dict[tuple[str, str], float]:
    """I(w) / epsilon for every pair of silos, 1 where they curve alike.

    A direction that is flat (below `floor` of the largest curvature) for both silos is left out; one
    that is flat for one silo only counts with `floor` in the place of its curvature.

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
        """The silos, in order."""
        return list(dict.fromkeys(one for pairs in self.by_seed.values() for one, _ in pairs))

    def matrix(self) -> list[list[float]]:
        """Each pair's geometric mean over seeds: scores are ratios."""
        return [[self._mean(one, other) for other in self.silos] for one in self.silos]

    def worst(self) -> list[float]:
        """The highest score over pairs, a seed each."""
        return [max(pairs.values()) for pairs in self.by_seed.values()]

    def typical(self) -> list[float]:
        """The geometric mean over pairs of different silos, a seed each; 1 where there is one silo."""
        means = []
        for pairs in self.by_seed.values():
            logs = [math.log(score) for (one, other), score in pairs.items() if one != other]
            means.append(math.exp(sum(logs) / len(logs)) if logs else 1.0)
        return means

    def _mean(self, one: str, other: str) -> float:
        logs = [math.log(pairs[one, other]) for pairs in self.by_seed.values()]
        return math.exp(sum(logs) / len(logs))
