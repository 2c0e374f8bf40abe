"""Add up the replies to a step (`StepSums`), with the weight of each silo in a mean (`SiloWeights`).

Replies come from single silos, or as sums from sub-coordinators. Adaptive weights are state of the server.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from torch import Tensor

from fedilc.aggregation import Aggregator, Sums, norm_of
from fedilc.aggregation.base import require_finite
from fedilc.aggregation.packed_sums import add_packed, pack_sums
from fedilc.errors import ConfigError, listed
from fedilc.federation.outliers import cosine_to
from fedilc.federation.protocol import AggregatedReply, Reply, SiloNumbers, Step

Numbers = Mapping[str, float | None]
NORMS, METRICS, COSINE = "norms", "metrics", "cosine"
_MAX_EXPONENT = 500.0  # e^500 = 10^217: weights and sums of them stay far below the largest float64, 10^308
_MIN_SHARE = 1e-3
_MIN_LOSS = 1e-10


class StepSums:
    """The sums of each group of tensors of a step, and the rest of each silo's reply.

    Args:
        step: the step.
        like: tensors of the shapes, dtypes and devices of the aggregates, by group.
        weights: the weight of each silo in a mean.
        strict: whether a NaN or an infinity is an error; if not, the group is left out of the sums.
        directions: by group, the direction with which each silo's tensors are compared, by their cosine. All
            silos whose sums a sub-coordinator sends have the cosine of their aggregate.
    """

    def __init__(
        self,
        step: Step,
        like: Mapping[str, Mapping[str, Tensor]],
        weights: SiloWeights,
        strict: bool = False,
        directions: Mapping[str, Mapping[str, Tensor]] | None = None,
    ) -> None:
        self.step, self.weights, self.strict = step, weights, strict
        self.like, self.directions = like, directions or {}
        self.sums: dict[str, tuple[Aggregator, Sums]] = {
            name: (answer.aggregator, answer.aggregator.zero(like[name]))
            for name, answer in step.answers.items()
        }
        self.replies: dict[str, Reply] = {}
        self.norms: dict[str, dict[str, float]] = {}
        self.cosines: dict[str, float] = {}

    def add(self, reply: Reply | AggregatedReply) -> None:
        """Add a reply to the sums; leave out groups with an infinite norm."""
        if isinstance(reply, AggregatedReply):
            self._merge(reply)
        else:
            self._add(reply)

    def silo_numbers(self) -> SiloNumbers:
        """Return the numbers, norms and metrics of each silo."""
        found: SiloNumbers = {}
        for silo, reply in self.replies.items():
            found[silo] = {**reply.numbers, NORMS: self.norms[silo]}
            if silo in self.cosines:
                found[silo][COSINE] = self.cosines[silo]
            if reply.metrics:
                found[silo][METRICS] = reply.metrics
        return found

    def aggregated_reply(self) -> AggregatedReply:
        """Return all that was added, as the reply of a sub-coordinator."""
        count = len(self.replies)
        sums = {name: pack_sums(state, count) for name, (_, state) in self.sums.items()}
        return AggregatedReply(dict(self.replies), dict(self.norms), sums)

    def _add(self, reply: Reply) -> None:
        norms: dict[str, float] = {}
        source = f"silo {reply.silo!r}"
        for name, (aggregator, state) in self.sums.items():
            answer, values = self.step.answers[name], reply.tensors[name]
            norm = norm_of(values)
            norms[name] = math.sqrt(norm) if answer.order == 2 else norm
            if name in self.directions:
                self.cosines[reply.silo] = cosine_to(self.directions[name], values, norm)
            if norm < math.inf:
                aggregator.accumulate(state, values, source, self._weight(name, reply))
            elif self.strict:
                for key, value in values.items():
                    require_finite(value, source, key)
        self._keep(reply, norms)

    def _merge(self, aggregated: AggregatedReply) -> None:
        for name, (aggregator, state) in self.sums.items():
            self._merge_group(name, state, aggregated)
            if name in self.directions:
                alone = aggregator.zero(self.like[name])
                self._merge_group(name, alone, aggregated)
                values = aggregator.finalize(alone).value if alone.count else {}
                cosine = cosine_to(self.directions[name], values, norm_of(values))
                self.cosines |= dict.fromkeys(aggregated.replies, cosine)
        for silo, reply in aggregated.replies.items():
            self._keep(reply, aggregated.norms[silo])

    def _merge_group(self, name: str, state: Sums, aggregated: AggregatedReply) -> None:
        for silo, reply in aggregated.replies.items():
            if aggregated.norms[silo][name] < math.inf:
                state.counted(1, self._weight(name, reply))
        add_packed(state, aggregated.sums[name], len(aggregated.replies))

    def _weight(self, group: str, reply: Reply) -> float | None:
        weighted = self.step.answers[group].weighted
        return self.weights.of(reply.silo, reply.numbers) if weighted else None

    def _keep(self, reply: Reply, norms: dict[str, float]) -> None:
        self.replies[reply.silo] = replace(reply, tensors={})
        self.norms[reply.silo] = norms


def make_weights(
    choice: str | Mapping[str, float], silos: Sequence[str], step: float = 0.01, power: float = 1.0
) -> SiloWeights:
    """Return the rule for an algorithm's `silo_weights`: a rule by name, or one number per silo."""
    if not isinstance(choice, str):
        return Given(choice, silos)
    rules: dict[str, Callable[[], SiloWeights]] = {
        "equal": SiloWeights,
        "examples": Examples,
        "group-dro": lambda: GroupDRO(silos, step),
        "afl": lambda: AFL(silos, step),
        "q-ffl": lambda: QFFL(power),
    }
    return rules[choice]()


class SiloWeights:
    """Equal weights; the base class of all other rules.

    A weight depends only on the silo's own reply and on earlier rounds, so that each reply can be added when
    it arrives; the mean divides by the sum of the weights.
    """

    def of(self, _silo: str, _numbers: Numbers) -> float | None:
        """Return the weight of a reply; None is 1."""
        return None

    def mean_loss(self, replies: Mapping[str, Numbers]) -> float:
        """Return the mean training loss over silos, with the weights of their updates."""
        weights = [self.of(silo, numbers) for silo, numbers in replies.items()]
        counts = [1 if weight is None else weight for weight in weights]
        losses = [numbers["loss"] or 0.0 for numbers in replies.values()]
        return sum(count * loss for count, loss in zip(counts, losses, strict=True)) / sum(counts)

    def learn(self, losses: Mapping[str, float]) -> None:
        """Update the weights with the losses of a completed round."""

    def state(self) -> dict[str, float]:
        """Return the adaptive weights, for a checkpoint."""
        return {}

    def restore(self, state: Mapping[str, float]) -> None:
        """Restore the adaptive weights of a checkpoint."""


class Examples(SiloWeights):
    """n_e: the mean is over the examples of all silos that answer."""

    def of(self, _silo: str, numbers: Numbers) -> float:
        """Return the number of examples."""
        return int(numbers["examples"] or 0)


class Given(SiloWeights):
    """A weight for each silo, as the user gave them."""

    def __init__(self, weights: Mapping[str, float], silos: Sequence[str]) -> None:
        unlike = sorted(weights.keys() ^ set(silos))
        if unlike:
            what = "there is no such silo" if unlike[0] in weights else "none is given for it"
            raise ConfigError(
                f"silo_weights must have one number per silo; {what}: {unlike[0]!r}; the silos are "
                f"{listed(silos)}"
            )
        self.weights = dict(weights)

    def of(self, silo: str, _numbers: Numbers) -> float:
        """Return the silo's weight."""
        return self.weights[silo]


class _Learnt(SiloWeights):
    """Weights q of all silos that change by round; they sum to 1 and are equal at first.

    No weight falls below a thousandth of an equal share, so that a round in which only silos with tiny
    weights reply is still defined.
    """

    def __init__(self, silos: Sequence[str], step: float) -> None:
        self.step = step
        self.q = dict.fromkeys(silos, 1 / len(silos))

    def state(self) -> dict[str, float]:
        """Return q."""
        return dict(self.q)

    def restore(self, state: Mapping[str, float]) -> None:
        """Restore q."""
        self.q.update(state)


class GroupDRO(_Learnt):
    """Group DRO (Sagawa et al. 2020): q_e grows by exp(step * loss_e) before the step that it weighs."""

    def of(self, silo: str, numbers: Numbers) -> float:
        """Return q_e after this round's loss, before normalisation."""
        return self.q[silo] * self._growth(numbers["loss"] or 0.0)

    def learn(self, losses: Mapping[str, float]) -> None:
        """Increase the weights of silos that replied, and normalise all weights to sum 1."""
        grown = {silo: q * self._growth(losses[silo]) if silo in losses else q for silo, q in self.q.items()}
        self.q = _shares(grown)

    def _growth(self, loss: float) -> float:
        return math.exp(min(self.step * loss, _MAX_EXPONENT))


class AFL(_Learnt):
    """Agnostic federated learning (Mohri et al. 2019): q itself takes a gradient step after each round.

    q = projection of q + step * losses onto the simplex.
    """

    def of(self, silo: str, _numbers: Numbers) -> float:
        """Return q_e as the rounds before left it."""
        return self.q[silo]

    def learn(self, losses: Mapping[str, float]) -> None:
        """Move weight to the silos with larger losses."""
        moved = {silo: q + self.step * losses.get(silo, 0.0) for silo, q in self.q.items()}
        self.q = _shares(dict(zip(moved, project_to_simplex(list(moved.values())), strict=True)))


class QFFL(SiloWeights):
    """q-FFL (Li et al. 2020): the weight of a silo is its loss to the power q."""

    def __init__(self, power: float) -> None:
        self.power = power

    def of(self, _silo: str, numbers: Numbers) -> float:
        """Return loss_e^q."""
        exponent = self.power * math.log(max(numbers["loss"] or 0.0, _MIN_LOSS))
        return math.exp(max(-_MAX_EXPONENT, min(exponent, _MAX_EXPONENT)))


def _shares(values: Mapping[str, float]) -> dict[str, float]:
    """Return values as shares of their sum, none below the smallest share."""
    total = math.fsum(values.values())
    least = _MIN_SHARE / len(values)
    raised = {silo: max(value / total, least) for silo, value in values.items()}
    total = math.fsum(raised.values())
    return {silo: value / total for silo, value in raised.items()}


def project_to_simplex(values: Sequence[float]) -> list[float]:
    """Return the nearest point whose coordinates are not negative and sum to 1.

    >>> project_to_simplex([0.5, 1.5])
    [0.0, 1.0]
    """
    # The nearest point is max(value - shift, 0) (Duchi et al. 2008): if the k largest values stay above 0,
    # they sum to 1, so that shift = (their sum - 1) / k; k is the most for which the smallest of them does.
    ordered = sorted(values, reverse=True)
    total, shift = 0.0, 0.0
    for count, value in enumerate(ordered, 1):
        total += value
        if value - (total - 1) / count > 0:
            shift = (total - 1) / count
    return [max(value - shift, 0.0) for value in values]
