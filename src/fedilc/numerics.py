"""The dtype that sums are kept in."""

from __future__ import annotations

import torch


def wide_dtype(device: torch.device) -> torch.dtype:
    """float64, except on devices that have none."""
    return torch.float32 if device.type == "mps" else torch.float64
