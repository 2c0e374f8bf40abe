"""Tensors and a few words as the bytes of a safetensors file, put together in one pass.

The library's own writer copies every tensor several times, which was most of a small round's travel. Reading
is left to it, because it checks what it reads.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping

import torch
from torch import Tensor

from fedilc.errors import ModelError

DTYPE_NAMES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
_ALIGNMENT = 8
_BLANK = "0" * 64


def pack_tensors(tensors: Mapping[str, Tensor], words: Mapping[str, str]) -> bytes:
    """Return tensors from any device with `words` in the header; widest types first, to keep all aligned.

    >>> from safetensors.torch import load
    >>> load(pack_tensors({"w": torch.tensor([1.0, -2.0])}, {"of": "round 3"}))["w"]
    tensor([ 1., -2.])
    """
    header: dict[str, object] = {"__metadata__": dict(words)}
    parts, start = [], 0
    for name, tensor in sorted(tensors.items(), key=_place):
        if tensor.dtype not in DTYPE_NAMES:
            raise ModelError(f"{name!r} is {tensor.dtype}, which cannot be kept; use a real or whole type")
        stop = start + tensor.numel() * tensor.element_size()
        header[name] = {
            "dtype": DTYPE_NAMES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [start, stop],
        }
        parts.append(raw_bytes(tensor))
        start = stop
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    return b"".join([len(text).to_bytes(8, "little"), text, *parts])


def pack_with_digest(tensors: Mapping[str, Tensor], words: Mapping[str, str]) -> bytes:
    """Return the same with a digest in the header: of the whole, with zeros in the digest's place.

    >>> require_digest(pack_with_digest({"w": torch.tensor([1.0])}, {"of": "round 3"}))
    """
    body = pack_tensors(tensors, {"digest": _BLANK, **words})
    return body.replace(_BLANK.encode(), hashlib.sha256(body).hexdigest().encode(), 1)


def require_digest(body: bytes) -> None:
    """Raise ValueError unless a body is as `pack_with_digest` made it, to the bit."""
    end = 8 + int.from_bytes(body[:8], "little")
    try:
        told = json.loads(body[8:end])["__metadata__"]["digest"]
        start = body.find(told.encode(), 8, end)
    except (KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError("its header has no digest") from error
    found = hashlib.sha256(body[:start] + _BLANK.encode())
    found.update(memoryview(body)[start + len(_BLANK) :])
    if start < 0 or found.hexdigest() != told:
        raise ValueError("its content does not match its digest")


def _place(item: tuple[str, Tensor]) -> tuple[int, str]:
    """Return a tensor's sort key in the file: by width, then by name, whatever order they came in."""
    return -item[1].element_size(), item[0]


def raw_bytes(tensor: Tensor) -> memoryview:
    """Return a tensor's bytes, without a copy if it is contiguous."""
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().data
