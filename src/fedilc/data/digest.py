"""Digests of tensors: equal for equal shapes, types and bits."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn

from fedilc.data.inputs import Inputs
from fedilc.data.silo import Silo


def digest(*tensors: Inputs | None) -> str:
    """Return a digest of tensors, in order; those of several inputs with their names.

    >>> digest(torch.zeros(2)) == digest(torch.zeros(2)), digest(torch.zeros(2)) == digest(torch.zeros(1, 2))
    (True, False)
    """
    return _sha256(pair for tensor in tensors if tensor is not None for pair in _named(tensor))[:16]


def _named(x: Inputs) -> Iterable[tuple[str, Tensor]]:
    return [("", x)] if isinstance(x, Tensor) else zip(x.names, x.tensors, strict=True)


def tensors_digest(tensors: Mapping[str, Tensor]) -> str:
    """Return a digest of named tensors, in order.

    >>> tensors_digest({"a": torch.zeros(2)}) == tensors_digest({"b": torch.zeros(2)})
    False
    """
    return _sha256(tensors.items())[:32]


def _sha256(named: Iterable[tuple[str, Tensor]]) -> str:
    sha256 = hashlib.sha256()
    for name, tensor in named:
        sha256.update(f"{name}{tuple(tensor.shape)}{tensor.dtype}".encode())
        sha256.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return sha256.hexdigest()


def silo_digest(silo: Silo) -> str:
    """Return a digest of a silo's examples."""
    return digest(silo.x, silo.y, silo.x_val, silo.y_val)


def weights_digest(model: nn.Module) -> str:
    """Return a digest of a model's weights."""
    return digest(*model.state_dict().values())
