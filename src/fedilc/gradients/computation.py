"""Compute what one silo answers in a round: its statistic s_e, its gradient, and J_e^T v_e."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from fedilc.gradients.environments import Chunk, Layout, later, lay_out, lay_out_mean
from fedilc.gradients.forward import KEPT_BYTES, Pass, private_randomness
from fedilc.gradients.losses import Loss
from fedilc.gradients.per_example import Sink, stream_environments
from fedilc.gradients.workbench import Workbench
from fedilc.seeds import seed_for

Seeds = list[tuple[Tensor, Tensor]]


class Statistic(Protocol):
    """A penalty's statistic s_e: sums over chunks, and how a vector is carried back through it."""

    @property
    def needs_graph(self) -> bool:
        """Return whether the statistic is computed from a pass that keeps its graph."""

    def sums(self, chunk: Pass) -> Any:
        """Return one chunk's sums."""

    def value(self, total: Any) -> Tensor:
        """Return s_e from the total of all chunks' sums."""

    def carry_back(self, chunk: Pass, total: Any, vector: Tensor) -> Seeds:
        """Return the tensors and gradients from which a backward pass gives J_e^T vector."""


@dataclass
class Computed:
    """The result of a silo: its gradient (None if environments vote), J_e^T v_e, and the mean loss."""

    gradient: dict[str, Tensor] | None
    penalty: dict[str, Tensor] | None
    loss: float


class SiloComputation:
    """One silo's examples on a workbench, and what it remembers between the steps of a round.

    Args:
        bench: the model to compute with.
        name: the silo's, from which its random choices derive.
        x: inputs, on the device and in the dtype of the bench.
        y: labels, as the loss needs them.
        environment_size: examples per environment; None is all of them.
        streams: whether environments vote (an `intra` aggregation), rather than being averaged.
        seed: the run's.
        statistic: what the silos match, if anything.
        step: the number of a local step; random choices of the first are those of the whole gradient.
        loss: the silo's own, if its classes have weights; None is the bench's.
    """

    def __init__(
        self,
        bench: Workbench,
        name: str,
        x: Tensor,
        y: Tensor,
        environment_size: int | None = None,
        streams: bool = False,
        seed: int = 0,
        statistic: Statistic | None = None,
        step: int = 1,
        loss: Loss | None = None,
    ) -> None:
        self.bench = bench
        self.loss = loss or bench.loss
        self.name = name
        self.x, self.y = x, y
        self.environment_size = environment_size
        self.streams = streams
        self.seed = seed
        self.statistic = statistic
        self.step = step
        self.forget()

    def part(self, rows: Tensor | None, step: int) -> SiloComputation:
        """Return the computation of some of the examples, or of all, in a local step."""
        x, y = (self.x, self.y) if rows is None else (self.x[rows], self.y[rows])
        size = self.environment_size
        return SiloComputation(
            self.bench, self.name, x, y, size, self.streams, self.seed, self.statistic, step, self.loss
        )

    def forget(self) -> None:
        """Drop the sums and forward passes of the last round."""
        self._round: int | None = None
        self._total: Any = None
        self._kept: dict[int, Pass] = {}

    @property
    def kept_bytes(self) -> int:
        """Estimate the memory of the forward passes that are kept for the next step, in bytes."""
        return sum(len(chunk.x) for chunk in self._kept.values()) * self.bench.example_bytes(self.x)

    def statistics(self, round_: int, keep_bytes: int) -> Tensor:
        """Return s_e at the current weights; forward passes of up to `keep_bytes` stay for the gradients."""
        assert self.statistic is not None, "the algorithm has no penalty"
        self.forget()
        layout = self.layout(round_)
        kept = keep_bytes // self.bench.example_bytes(self.x)
        total: Any = None
        for number, cut in enumerate(layout.chunks):
            keep = cut.stop <= kept
            graph = keep or self.statistic.needs_graph
            with torch.set_grad_enabled(graph), self._randomness(round_, number):
                chunk = self._pass(layout, cut, taps=keep)
                sums = self.statistic.sums(chunk)
            total = sums if total is None else total + sums
            if keep:
                self._kept[number] = chunk
        self._round, self._total = round_, total
        return self.statistic.value(total)

    def matched(self, round_: int) -> Tensor:
        """Return s_e of this round, computed again if this silo was not asked for it in the step before."""
        self.prepare(round_)
        assert self.statistic is not None
        return self.statistic.value(self._total)

    def prepare(self, round_: int) -> None:
        """Make sure that the sums of s_e are of this round, which J_e^T v_e needs."""
        if self._total is None or self._round != round_:
            self.statistics(round_, KEPT_BYTES)

    def gradients(
        self, round_: int, vector: Tensor | None, sink: Sink | None, together: bool = False
    ) -> Computed:
        """Return the gradient (into `sink` if environments vote) and, given v_e, J_e^T v_e.

        The product is returned beside the gradient, or with `together` added to it, in one backward pass.
        """
        layout, parameters = self.layout(round_), self.bench.parameters
        gradient = None if sink else {n: torch.zeros_like(p) for n, p in parameters.items()}
        penalty = None
        if vector is not None and not together:
            penalty = {n: torch.zeros_like(p) for n, p in parameters.items()}
        partial: dict[str, Tensor] = {}
        loss = 0.0
        for cut, chunk in self._passes(layout, round_):
            losses = chunk.losses()
            loss += float(losses.detach().double().sum())
            product: Seeds = []
            if vector is not None:
                assert self.statistic is not None, "the algorithm has no penalty"
                product = self.statistic.carry_back(chunk, self._total, vector)
            if gradient is not None:
                mean = layout.mean(cut, losses)
                begin = [(mean, torch.ones_like(mean))]
                if penalty is None:
                    begin, product = begin + product, []
                self._add_gradient(gradient, begin, keep_graph=bool(product))
            elif sink is not None:
                self._vote(sink, cut, chunk, losses, partial, keep_graph=bool(product))
            if product and penalty is not None:
                self._add_gradient(penalty, product, keep_graph=False)
        self.forget()
        return Computed(gradient, penalty, loss / len(self.x))

    def layout(self, round_: int) -> Layout:
        """Return how the examples are cut into environments and chunks in a round."""
        most = self.bench.most_examples(self.x)
        lay = lay_out if self.streams else lay_out_mean
        return lay(len(self.x), self.environment_size, most, self.seed, round_, self.name, self.step)

    def _taps(self) -> dict[str, nn.Module]:
        return self.bench.plan(self.x, self.y).tapped if self.streams else {}

    def _passes(self, layout: Layout, round_: int) -> Iterator[tuple[Chunk, Pass]]:
        """Yield the chunks' forward passes: each kept one once, the others computed again."""
        for number, cut in enumerate(layout.chunks):
            with self._randomness(round_, number):
                chunk = self._kept.pop(number, None)
                yield cut, self._pass(layout, cut, taps=True) if chunk is None else chunk

    def _pass(self, layout: Layout, cut: Chunk, taps: bool) -> Pass:
        x, y = layout.rows(cut, self.x), layout.rows(cut, self.y)
        return self.bench.forward(x, y, self._taps() if taps else {}, self.loss)

    def _randomness(self, round_: int, chunk: int) -> AbstractContextManager[None]:
        """Return a random stream per chunk, so that keeping some chunks changes no bit of the others."""
        number = [chunk] if chunk else []
        seed = seed_for(self.seed, round_, self.name, "forward", *number, *later(self.step))
        return private_randomness(self.bench.device, seed)

    def _add_gradient(self, total: dict[str, Tensor], begin: Seeds, keep_graph: bool) -> None:
        """Add to `total` the gradient that a backward pass from these places brings."""
        places, seeds = zip(*begin, strict=True)
        found = torch.autograd.grad(
            places,
            list(self.bench.parameters.values()),
            seeds,
            retain_graph=keep_graph,
            materialize_grads=True,
        )
        for name, value in zip(total, found, strict=True):
            total[name] += value

    def _vote(
        self,
        sink: Sink,
        cut: Chunk,
        chunk: Pass,
        losses: Tensor,
        partial: dict[str, Tensor],
        keep_graph: bool,
    ) -> None:
        """Hand the mean gradients of the chunk's environments to the sink."""
        if cut.stop - cut.start >= cut.size and cut.closes and not partial:
            plan = self.bench.plan(self.x, self.y)
            stream_environments(self.bench.model, self.loss, chunk, cut.size, plan, sink, keep_graph)
            return
        if not partial:
            partial.update({n: torch.zeros_like(p) for n, p in self.bench.parameters.items()})
        self._add_gradient(partial, [(losses, torch.full_like(losses, 1 / cut.size))], keep_graph)
        if cut.closes:
            for name, value in partial.items():
                sink.stack(name, value.unsqueeze(0))
            sink.counted(1)
            partial.clear()
