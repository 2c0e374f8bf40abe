"""The base class of penalties: a statistic of each silo that should be alike in all of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from fedilc.algorithms.parts import Reduction
from fedilc.algorithms.registry import checks_options
from fedilc.gradients.forward import BackwardStarts, Pass


class Penalty(ABC):
    """Match a statistic s_e(w) across silos: L = 1/E sum_e ||s_e - mean s||^2.

    Its gradient is sum_e J_e^T v_e with v_e = 2/E (s_e - mean s) and J_e = ds_e/dw. A penalty defines how s_e
    follows from sums over examples, so that a silo of any size is computed in chunks, and how v_e is carried
    back through s_e. All else (the two steps, lambda, the sum over silos) is the same for every penalty.

    Args:
        reduction: "mean" has the 1/E of L; "sum" leaves it out, as the authors of the paper do in their code.
            A penalty with its own constructor has this option only if the constructor declares it.

    Raises:
        ConfigError: if `reduction` is neither.

    Attributes:
        statistic: the name of s_e in messages and records.
        centred: whether s_e is compared with the mean over silos. If not, it is compared with 0, and only the
            gradient is sent.
        order: 1 if s_e grows in proportion to the gradients, 2 if to their square. Bounds on norms need it.
        needs_graph: whether the sums need the graph of the forward pass.
        needs_classifier: whether s_e needs the layer that gives the logits.

    If s_e is a mean of one number per example, `ExampleMean` does everything but compute these numbers:

    >>> class SquaredRisk(ExampleMean):
    ...     statistic = "squared risk"
    ...     def numbers(self, chunk):
    ...         return chunk.losses().square()
    >>> SquaredRisk().like(nn.Linear(1, 1), None).shape
    torch.Size([1])
    """

    statistic: ClassVar[str]
    centred: ClassVar[bool] = True
    order: ClassVar[int] = 1
    needs_graph: ClassVar[bool] = False
    needs_classifier: ClassVar[bool] = False
    reduction: Reduction = "mean"

    @checks_options
    def __init__(self, reduction: Reduction = "mean") -> None:
        self.reduction = reduction

    @abstractmethod
    def like(self, model: nn.Module, classifier: str | None) -> Tensor:
        """Return a tensor of the shape and dtype of s_e."""

    @abstractmethod
    def sums(self, chunk: Pass) -> Any:
        """Return what the examples of a chunk add to s_e, as an object that supports `+`."""

    @abstractmethod
    def value(self, total: Any) -> Tensor:
        """Return s_e from the sums over all examples of the silo."""

    @abstractmethod
    def carry_back(self, chunk: Pass, total: Any, vector: Tensor) -> BackwardStarts:
        """Return where a backward pass begins, and with which gradients, to give a chunk's part of J_e^T v_e.

        The pairs are tensors in the chunk's graph and new tensors of their shapes.
        """


@dataclass(frozen=True)
class Total:
    """A sum over examples in float64, their number, and the dtype of what was added."""

    sum: Tensor
    count: int
    dtype: torch.dtype

    @classmethod
    def of(cls, values: Tensor) -> Total:
        """Return the total of numbers, one per example."""
        return cls(values.detach().double().sum(-1, keepdim=True), values.shape[-1], values.dtype)

    def __add__(self, other: Total) -> Total:
        return Total(self.sum + other.sum, self.count + other.count, self.dtype)

    def mean(self) -> Tensor:
        """Return the mean over the examples, in their dtype."""
        return (self.sum / self.count).to(self.dtype)


class ExampleMean(Penalty):
    """A statistic that is the mean over the silo's examples of one number per example."""

    @abstractmethod
    def numbers(self, chunk: Pass) -> Tensor:
        """Return the number of each example, with its graph."""

    def like(self, model: nn.Module, _classifier: str | None) -> Tensor:
        """Return one number."""
        return next(model.parameters()).new_zeros(1)

    def sums(self, chunk: Pass) -> Total:
        """Return the sum of the chunk's numbers."""
        return Total.of(self.numbers(chunk))

    def value(self, total: Total) -> Tensor:
        """Return the mean number."""
        return total.mean()

    def carry_back(self, chunk: Pass, total: Total, vector: Tensor) -> BackwardStarts:
        """Return v/n at each example's number."""
        numbers = self.numbers(chunk)
        return [(numbers, (vector.to(numbers) / total.count).expand_as(numbers).clone())]


def outer(left: Tensor, right: Tensor) -> Tensor:
    """Return the outer products of vectors along the last dimension."""
    return left.unsqueeze(-1) * right.unsqueeze(-2)
