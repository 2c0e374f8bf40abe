"""The dtype that sums are kept in, and what may be added up."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def wide_dtype(device: torch.device) -> torch.dtype:
    """Return float64, or float32 for devices without float64."""
    return torch.float32 if device.type == "mps" else torch.float64


def is_finite(values: Tensor) -> bool:
    """Return whether no value is NaN or infinite, from minimum and maximum in one pass without a mask.

    >>> is_finite(torch.tensor([1.0, -2.0])), is_finite(torch.tensor([1.0, float("nan"), 2.0]))
    (True, False)
    """
    if values.numel() == 0 or not values.is_floating_point():
        return True
    low, high = torch.aminmax(values)
    return math.isfinite(low) and math.isfinite(high)
