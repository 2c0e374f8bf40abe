"""Add up the replies to a step: those of single silos, and those of sub-coordinators, which are sums."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from torch import Tensor

from fedilc.aggregation import Aggregator, Sums, norm_of
from fedilc.aggregation.base import require_finite
from fedilc.aggregation.sums.packed import add_packed, pack_sums
from fedilc.federation.messages import AggregatedReply, Reply
from fedilc.federation.outliers import cosine_to
from fedilc.federation.runtime import SiloNumbers
from fedilc.federation.silo_weights import SiloWeights
from fedilc.federation.steps import Step

NORMS, METRICS, COSINE = "norms", "metrics", "cosine"


class StepSums:
    """The sums of each group of tensors of a step, and the rest of each silo's reply.

    Args:
        step: the step.
        like: tensors of the shapes, dtypes and devices of the aggregates, by group.
        weights: the weight of each silo in a mean.
        strict: whether a NaN or an infinity is an error; if not, the group is left out of the sums.
        directions: by group, the direction with which the cosine of each silo's tensors is taken. Silos whose
            sums a sub-coordinator sends all have the cosine of their aggregate.
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
        """Return everything that was added, as the reply of a sub-coordinator."""
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
