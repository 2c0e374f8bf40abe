"""Digests of tensors: equal for equal shapes, types and bits."""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor, nn

from fedilc.data.silo import Silo


def digest(*tensors: Tensor | None) -> str:
    """Return a digest of tensors, in order.

    >>> digest(torch.zeros(2)) == digest(torch.zeros(2)), digest(torch.zeros(2)) == digest(torch.zeros(1, 2))
    (True, False)
    """
    sha256 = hashlib.sha256()
    for tensor in tensors:
        if tensor is not None:
            sha256.update(f"{tuple(tensor.shape)}{tensor.dtype}".encode())
            raw = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
            sha256.update(raw.numpy().tobytes())
    return sha256.hexdigest()[:16]


def silo_digest(silo: Silo) -> str:
    """Return a digest of a silo's examples."""
    return digest(silo.x, silo.y, silo.x_val, silo.y_val)


def weights_digest(model: nn.Module) -> str:
    """Return a digest of a model's weights."""
    return digest(*model.state_dict().values())
