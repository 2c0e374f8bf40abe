"""Digests of tensors: equal for equal shapes, types and bits."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping

import torch
from torch import Tensor, nn

from fedilc.data.inputs import Examples, Streamed, tensors_of
from fedilc.data.silo import Silo

_BLOCK_BYTES = 8 << 20
# A name, a shape, a type, and the tensor in consecutive blocks of rows.
Part = tuple[str, tuple[int, ...], torch.dtype, Iterable[Tensor]]


def digest(*tensors: Examples | None) -> str:
    """Return a digest of tensors, in order; those of several inputs with their names.

    >>> digest(torch.zeros(2)) == digest(torch.zeros(2)), digest(torch.zeros(2)) == digest(torch.zeros(1, 2))
    (True, False)
    """
    return _sha256(part for tensor in tensors if tensor is not None for part in _parts(tensor))[:16]


def _parts(x: Examples) -> Iterator[Part]:
    sample = x.sample if isinstance(x, Streamed) else x
    names = [""] if isinstance(sample, Tensor) else sample.names
    for place, (name, one) in enumerate(zip(names, tensors_of(sample), strict=True)):
        if isinstance(x, Streamed):
            size = max(1, _BLOCK_BYTES // (one[0].numel() * one.element_size()))
            blocks = (tensors_of(block)[place] for block in x.split(size))
            yield name, (len(x), *one.shape[1:]), one.dtype, blocks
        else:
            yield name, tuple(one.shape), one.dtype, [one]


def tensors_digest(tensors: Mapping[str, Tensor]) -> str:
    """Return a digest of named tensors, in order.

    >>> tensors_digest({"a": torch.zeros(2)}) == tensors_digest({"b": torch.zeros(2)})
    False
    """
    return _sha256((name, tuple(one.shape), one.dtype, [one]) for name, one in tensors.items())[:32]


def _sha256(parts: Iterable[Part]) -> str:
    sha256 = hashlib.sha256()
    for name, shape, dtype, blocks in parts:
        sha256.update(f"{name}{shape}{dtype}".encode())
        for block in blocks:
            sha256.update(block.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return sha256.hexdigest()


def silo_digest(silo: Silo) -> str:
    """Return a digest of a silo's examples, the same whether they are in memory or streamed."""
    return digest(silo.x, silo.y, silo.x_val, silo.y_val)


def weights_digest(model: nn.Module) -> str:
    """Return a digest of a model's weights."""
    return digest(*model.state_dict().values())
