"""Balance the classes inside a silo, by weights on the loss or by repeated examples."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fedilc.data.inputs import Examples, select
from fedilc.seeds import torch_generator

if TYPE_CHECKING:
    from fedilc.config.options import Balance
    from fedilc.gradients.losses import Loss


def balanced(
    x: Examples, y: Tensor, loss: Loss, balance: Balance | None, seed: int, silo: str
) -> tuple[Examples, Tensor, Loss]:
    """Return a silo's training examples and loss with `balance` applied; frequencies are its own."""
    if balance == "weights":
        return x, y, replace(loss, class_weights=class_weights(y))
    if balance == "oversample":
        rows = oversampled_rows(y.cpu(), torch_generator(seed, silo, "balance")).to(y.device)
        return select(x, rows), y[rows], loss
    return x, y, loss


def class_weights(y: Tensor) -> tuple[float, ...]:
    """Return n/(K n_c) for each class c of the K that occur, so that the examples' weights sum to n.

    >>> class_weights(torch.tensor([0, 0, 0, 2]))
    (0.6666666666666666, 0.0, 2.0)
    """
    counts = torch.bincount(y.long()).tolist()
    occur = sum(count > 0 for count in counts)
    return tuple(len(y) / (occur * count) if count else 0.0 for count in counts)


def oversampled_rows(y: Tensor, generator: torch.Generator) -> Tensor:
    """Return all rows, and after them repeats drawn until each class is as frequent as the largest.

    >>> rows = oversampled_rows(torch.tensor([0, 0, 0, 1]), torch.Generator().manual_seed(0))
    >>> rows.tolist()
    [0, 1, 2, 3, 3, 3]
    """
    classes, counts = y.unique(return_counts=True)
    rows = [torch.arange(len(y))]
    for label, count in zip(classes, counts.tolist(), strict=True):
        members = torch.nonzero(y == label)[:, 0]
        drawn = torch.randint(count, (int(counts.max()) - count,), generator=generator)
        rows.append(members[drawn])
    return torch.cat(rows)
