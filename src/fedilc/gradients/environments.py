"""Cut a silo's examples into environments, and environments into chunks that fit in memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from fedilc.data.inputs import Examples, Inputs
from fedilc.seeds import torch_generator


@dataclass(frozen=True)
class Chunk:
    """Rows start..stop of the ordered examples, in environments of `size` examples each.

    `closes` says whether the chunk's last row completes an environment. An environment larger than memory
    spans several chunks, and only the last one closes it.
    """

    start: int
    stop: int
    size: int
    closes: bool = True


@dataclass(frozen=True)
class Layout:
    """An order of the examples, the chunks in that order, and how many environments they make.

    `weights` are the weights of the examples in a mean over environments, if they differ.
    """

    order: Tensor | None
    chunks: list[Chunk]
    environments: int
    weights: Tensor | None = None

    def mean(self, chunk: Chunk, losses: Tensor) -> Tensor:
        """Return the chunk's part of the mean over environments of their mean losses."""
        if self.weights is None:
            return losses.sum() / (self.environments * chunk.size)
        return (losses * self.weights[chunk.start : chunk.stop].to(losses)).sum()

    def rows(self, chunk: Chunk, x: Examples) -> Inputs:
        """Return the examples of a chunk."""
        if self.order is None:
            return x[chunk.start : chunk.stop]
        return x[self.order[chunk.start : chunk.stop]]


def lay_out(
    examples: int,
    environment_size: int | None,
    most: int,
    seed: int,
    round_: int,
    silo: str,
    step: int = 1,
) -> Layout:
    """Return environments of `environment_size` examples, shuffled in each round and local step.

    None is one environment, the whole silo. The last environment is smaller if the size does not divide the
    examples.

    >>> lay_out(5, 2, most=100, seed=0, round_=1, silo="a").chunks
    [Chunk(start=0, stop=4, size=2, closes=True), Chunk(start=4, stop=5, size=1, closes=True)]
    """
    if environment_size is None or environment_size >= examples:
        return Layout(None, list(_cut(0, examples, examples, most)), 1)
    full, rest = divmod(examples, environment_size)
    border = full * environment_size
    chunks = list(_cut(0, border, environment_size, most))
    if rest:
        chunks += _cut(border, examples, rest, most)
    order = None
    if environment_size > 1:
        generator = torch_generator(seed, round_, silo, "environments", *later(step))
        order = torch.randperm(examples, generator=generator)
    return Layout(order, chunks, full + bool(rest))


def lay_out_mean(votes: Layout, most: int) -> Layout:
    """Return the mean over the environments of a layout as one weighted sum over examples, in order.

    An example counts 1/(environments * size of its environment), so only the members of a smaller last
    environment count differently: with 400 examples in environments of 32, the last 16 count twice as much as
    the others.
    If the size divides the examples, this is the plain mean, and `fishr-intra-arith` is `fedcurv` to the bit.

    >>> lay_out_mean(lay_out(3, 2, most=100, seed=0, round_=1, silo="a"), 100).weights.sort().values
    tensor([0.2500, 0.2500, 0.5000], dtype=torch.float64)
    """
    examples, size, last = votes.chunks[-1].stop, votes.chunks[0].size, votes.chunks[-1].size
    weights = None
    if votes.order is not None and last != size:
        weights = torch.full((examples,), 1 / (votes.environments * size), dtype=torch.float64)
        weights[votes.order[examples - last :]] = 1 / (votes.environments * last)
    return Layout(None, list(_cut(0, examples, examples, most)), 1, weights)


def _cut(start: int, stop: int, size: int, most: int) -> Iterator[Chunk]:
    """Yield chunks of whole environments if they fit in memory, and otherwise parts of one environment."""
    if size <= most:
        step = most - most % size
        for begin in range(start, stop, step):
            yield Chunk(begin, min(begin + step, stop), size)
        return
    for first in range(start, stop, size):
        last = first + size
        for begin in range(first, last, most):
            end = min(begin + most, last)
            yield Chunk(begin, end, size, closes=end == last)


def later(step: int) -> tuple[str, ...]:
    """Return what distinguishes the random choices of a local step from those of the first.

    >>> later(1), later(2)
    ((), ('step 2',))
    """
    return () if step == 1 else (f"step {step}",)
