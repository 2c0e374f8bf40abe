"""Call Fishr's compiled loops: choose which features they take, and how many threads they use.

What they give does not depend on the number of threads: rows are added up in blocks of a fixed length.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from fedilc.aggregation._kernels import installed, share, threads_for

LEAST_VALUES = 1 << 20
_BLOCK = 256


def usable(features: Tensor, delta: Tensor) -> bool:
    """Return whether the loops take these features and gradients at one logit; others go through torch.

    Loading the loops takes a process longer than they save it in a hundred rounds with fewer values.
    """
    return (
        installed()
        and delta.dim() == 2
        and delta.shape[1] == 1
        and features.numel() >= LEAST_VALUES
        and all(t.device.type == "cpu" and t.dtype == torch.float32 for t in (features, delta))
    )


def moments(features: Tensor, delta: Tensor, bias: bool) -> tuple[Tensor, Tensor]:
    """Return the sums over rows of g = delta (z, 1) and of its square, (1, width) each, in float64."""
    blocks = -(-len(features) // _BLOCK)
    sums = np.zeros((blocks, 2, features.shape[1] + bias))
    _run("moments", features, delta, _BLOCK, sums)
    first, second = torch.from_numpy(sums.sum(0)).unsqueeze(1)
    return first, second


def start_gradients(
    features: Tensor, delta: Tensor, vector: Tensor, weighted: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the gradients at z and at delta from v and v m, vectors of the classifier's parameters."""
    at_features, at_delta = torch.empty(features.shape), torch.empty(delta.shape)
    vectors = vector.contiguous().numpy(), weighted.contiguous().numpy()
    _run("start_gradients", features, delta, *vectors, at_features.numpy(), at_delta.view(-1).numpy())
    return at_features, at_delta


def _run(kernel: str, features: Tensor, delta: Tensor, *arguments: object) -> None:
    rows = len(features)
    ranges = [(start, min(start + _BLOCK, rows)) for start in range(0, rows, _BLOCK)]
    arrays = features.detach().contiguous().numpy(), delta.detach().reshape(-1).contiguous().numpy()
    share(f"{__name__}.compiled.{kernel}", ranges, threads_for(features.numel()), *arrays, *arguments)
