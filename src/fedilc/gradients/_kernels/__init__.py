"""Call the compiled loop of local steps: choose which steps it takes, and give it all of a round's at once.

A batch of 32 rows and 500 weights is a few microseconds of arithmetic, and a dozen calls of torch take
twenty times as long. The loop adds up terms one after another in a fixed order, so that bits depend neither
on the number of threads nor on how many models it trains. They differ in the last places from those of torch,
which takes the steps of larger networks and batches, of other optimisers and of silos without numba.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from fedilc.aggregation._kernels import installed, share, threads_for
from fedilc.algorithms import LocalSteps
from fedilc.gradients.losses import Loss

MOST_PRODUCTS = 1 << 19  # of a batch's rows and the weights; above it, torch's matrix products are faster
_KINDS = ("binary", "multiclass", "regression", "huber")


def usable(local: LocalSteps, examples: int, weights: Tensor) -> bool:
    """Return whether the loop takes these local steps from such weights; others go through torch."""
    return (
        local.optimizer == "sgd"
        and not local.momentum
        and local.batch(examples) * weights.shape[-1] <= MOST_PRODUCTS
        and weights.device.type == "cpu"
        and weights.dtype in (torch.float32, torch.float64)
        and installed()
    )


def take_steps(
    weights: Tensor,
    x: Tensor,
    y: Tensor,
    orders: Tensor,
    which: Tensor,
    local: LocalSteps,
    rates: Sequence[float],
    widths: Sequence[int],
    loss: Loss,
    correction: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return where local steps lead, the mean gradients of the steps, and the mean losses (float64).

    Args:
        weights: w of each model (models, parameters): each layer's weight and bias, one after another.
        x: inputs (models, examples, inputs); memory may be shared by models.
        y: labels (models, examples).
        orders: the order of the examples in each epoch (orders, epochs, examples); if there are more epochs,
            the first follows the last.
        which: the order of each model.
        local: number and kind of the steps.
        rates: learning rate of each model.
        widths: number of inputs, of each hidden layer's units, and of outputs.
        loss: a built-in loss.
        correction: what is added to every gradient (models, parameters).
    """
    models, examples = y.shape
    steps = local.count(examples)
    end = weights.detach().contiguous().clone().numpy()
    means, losses = np.empty_like(end), np.empty(models)
    added = np.empty((0, 0), end.dtype) if correction is None else correction.contiguous().numpy()
    given = (
        *(x.numpy(), y.to(weights.dtype).numpy(), orders.numpy(), which.numpy()),
        *(local.batch(examples), steps, np.array(widths), np.array(rates, end.dtype), local.proximal, added),
        *(np.array(loss.class_weights or (), np.float64), _KINDS.index(loss.name), end, means, losses),
    )
    threads = threads_for(models * steps * local.batch(examples) * weights.shape[1] // 8)
    ranges = [(0, models)] if threads == 1 else [(model, model + 1) for model in range(models)]
    share(f"{__name__}.compiled.take_steps", ranges, min(threads, models), *given)
    return torch.from_numpy(end), torch.from_numpy(means), torch.from_numpy(losses)
