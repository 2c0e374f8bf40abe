"""Add up the replies of silos for all models of a stack, with the norms and losses that they come with."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

from fedilc.aggregation import AbsoluteGeometricMean, Aggregator, Clipped, Mean, Sum, WeightedGeometricMean
from fedilc.aggregation.exact_sum import ExactSum
from fedilc.aggregation.packed_sums import Sums
from fedilc.aggregation.signed_logs import SignedLogs
from fedilc.federation.stacked_client import StackedReply
from fedilc.gradients.stacked import ALL

BATCH_BYTES = 64 << 20  # of replies that are added together
LOSS = "loss"
_BY_COORDINATE = (Mean, Sum, AbsoluteGeometricMean)

Norms = list[tuple[str, Tensor, Tensor]]  # silo, places of models, lengths


class StackedSums:
    """The sums of one group of tensors, a row per model; each row has its own number of silos.

    Args:
        aggregator: how replies are aggregated.
        like: a tensor of the shape and dtype of the group, without storage.
        weighted: whether replies have weights.
    """

    def __init__(self, aggregator: Aggregator, like: Tensor, weighted: bool) -> None:
        self.inner = aggregator.inner if isinstance(aggregator, Clipped) else aggregator
        self.most = aggregator.max_norm
        self.like = like
        self.counts = torch.zeros(len(like), dtype=torch.int64)
        self.weights = ExactSum(torch.Size((len(like), 1)), torch.device("cpu")) if weighted else None
        self.kept: list[tuple[Tensor, Tensor]] = []
        self.state: Sums | None = None
        if not self.inner.keeps_values:
            self.state = self.inner.zero({ALL: like})

    def add(self, places: Tensor, values: Tensor, norms: Tensor, weights: Tensor | None) -> None:
        """Add finite values to rows, perhaps several to one; longer ones are scaled to the largest norm."""
        if not len(places):
            return
        if self.most < math.inf:
            factors = (self.most / norms).clamp(max=1.0).to(values).unsqueeze(1)
            values = torch.where(norms.unsqueeze(1) > self.most, values * factors, values)
        self.counts += torch.bincount(places, minlength=len(self.counts))
        if self.state is None:
            self.kept.append((places, values))
            return
        if weights is not None and self.weights is not None:
            self.weights.add(weights.unsqueeze(1), places)
            values = values.double() * weights.unsqueeze(1)
        self.inner._add(self.state, ALL, values, "a silo", places)

    def finish(self, slices: Sequence[slice], members: Tensor) -> Tensor:
        """Return the aggregate of each row.

        Args:
            slices: where each parameter is in a row.
            members: which coordinates each model has (rows, parameters).
        """
        if self.state is None:
            return self._of_kept()
        if isinstance(self.inner, WeightedGeometricMean):
            return self.inner.finish_rows(self.state, ALL, self.counts.clamp(min=1).tolist())
        counts = self.counts.clamp(min=1).double().unsqueeze(1)
        if self.weights is not None:
            counts = self.weights.total()
            counts = torch.where(counts > 0, counts, 1.0)
        sums = self._sums()
        if type(self.inner) in _BY_COORDINATE:
            result = self.inner.finish(counts, sums)[0]  # type: ignore[arg-type]  # a count per row
            return result.to(self.like.dtype)
        return self._row_by_row(counts, sums, slices, members)

    def agreement(self, slices: Sequence[slice], members: Tensor) -> Tensor | None:
        """Return how far signs agree by model and parameter, if the rule counts signs."""
        if self.state is None or not isinstance(self.inner, WeightedGeometricMean):
            return None
        (logs,) = self.state.sums[ALL].values()
        assert isinstance(logs, SignedLogs)
        up, down = logs.counts()
        margin = (up - down).abs()
        totals = torch.stack([margin[:, part].sum(1) for part in slices], 1)
        sizes = torch.stack([members[:, part].sum(1) for part in slices], 1)
        return totals / (self.counts.clamp(min=1).unsqueeze(1) * sizes.clamp(min=1))

    def _sums(self) -> dict[str, Tensor]:
        assert self.state is not None
        sums: dict[str, Tensor] = {}
        for key, part in self.state.sums[ALL].items():
            if isinstance(part, SignedLogs):
                (sums["positives"], sums["negatives"]), logs = part.counts_and_logs()
                sums["log_positive"], sums["log_negative"] = logs
            else:
                sums[key] = part.total()
        return sums

    def _row_by_row(
        self, counts: Tensor, sums: Mapping[str, Tensor], slices: Sequence[slice], members: Tensor
    ) -> Tensor:
        """Return the aggregates of a rule that looks at a whole parameter, one model after another."""
        out = torch.zeros(self.like.shape, dtype=self.like.dtype)
        for row, count in enumerate(counts[:, 0].tolist()):
            for part in slices:
                own = members[row, part]
                result, _ = self.inner.finish(
                    count, {key: value[row, part][own] for key, value in sums.items()}
                )
                out[row, part].masked_scatter_(own, result.to(out.dtype))
        return out

    def _of_kept(self) -> Tensor:
        """Return the aggregates of a rule that keeps values: together for models with the same silos."""
        out = torch.zeros(self.like.shape, dtype=self.like.dtype)
        where: dict[int, list[tuple[int, int]]] = {}
        for number, (places, _) in enumerate(self.kept):
            for row, place in enumerate(places.tolist()):
                where.setdefault(place, []).append((number, row))
        alike: dict[tuple[int, ...], list[int]] = {}
        for place, found in where.items():
            alike.setdefault(tuple(number for number, _ in found), []).append(place)
        for numbers, rows in alike.items():
            state = self.inner.zero({ALL: self.like[rows]})
            for position, number in enumerate(numbers):
                chosen = [where[place][position][1] for place in rows]
                self.inner.accumulate(state, {ALL: self.kept[number][1][chosen]})
            out[rows] = self.inner.finalize(state).value[ALL]
        return out


class Heard:
    """The losses and norms of the replies of one round.

    Args:
        models: number of models in the stack.
    """

    def __init__(self, models: int) -> None:
        self.loss = torch.zeros(models, dtype=torch.float64)
        self.weight = torch.zeros(models, dtype=torch.float64)
        self.norms: dict[str, Norms] = {}
        self._losses: Norms = []

    def add_losses(self, replies: Sequence[StackedReply], rows: Tensor, weights: Tensor) -> None:
        """Add the training losses of silos with the weights of their updates."""
        losses = torch.cat([reply.numbers[LOSS].double() for reply in replies])
        self.loss.index_add_(0, rows, losses * weights)
        self.weight.index_add_(0, rows, weights)
        self._losses += [(one.silo, one.places, one.numbers[LOSS]) for one in replies]

    def losses_of(self, place: int) -> dict[str, float]:
        """Return the losses of one model by silo."""
        return of_place(self._losses, place)

    def add_norms(self, name: str, replies: Sequence[StackedReply], lengths: Tensor) -> None:
        """Store the norms of one group of tensors."""
        parts = lengths.split([len(reply.places) for reply in replies])
        own = [(reply.silo, reply.places, part) for reply, part in zip(replies, parts, strict=True)]
        self.norms.setdefault(name, []).extend(own)


def of_place(parts: Norms, place: int) -> dict[str, float]:
    """Return one model's numbers by silo."""
    found = {}
    for silo, places, numbers in parts:
        at = torch.nonzero(places == place)
        if len(at):
            found[silo] = float(numbers[at[0, 0]])
    return found


def batches(replies: Iterator[StackedReply]) -> Iterator[list[StackedReply]]:
    """Yield replies several at a time: adding many rows at once costs little more than one silo's."""
    batch: list[StackedReply] = []
    size = 0
    for reply in replies:
        batch.append(reply)
        size += sum(tensor.nbytes for tensor in reply.tensors.values())
        if size >= BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def lengths_of(rows: Tensor) -> Tensor:
    """Return the Euclidean norm of each row, in float64."""
    found: Tensor = torch.linalg.vector_norm(rows, dim=1, dtype=torch.float64)
    return found
