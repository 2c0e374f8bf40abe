"""Turn tensors and metadata into the bytes of a safetensors file, in one pass.

The library's own writer copies every tensor several times, which took most of the time of sending a small
message. Files are read with the library, which checks what it reads.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping

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


def pack_tensors(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> bytes:
    """Return tensors, with metadata in the header; the widest dtypes come first, for alignment.

    >>> from safetensors.torch import load
    >>> load(pack_tensors({"w": torch.tensor([1.0, -2.0])}, {"of": "round 3"}))["w"]
    tensor([ 1., -2.])
    """
    header: dict[str, object] = {"__metadata__": dict(metadata)}
    parts, start = [], 0
    for name, tensor in sorted(tensors.items(), key=_sort_key):
        if tensor.dtype not in DTYPE_NAMES:
            raise ModelError(f"{name!r} is {tensor.dtype}, which cannot be stored; use float or integer")
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


def pack_with_digest(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> bytes:
    """Return the same with a SHA-256 in the header: of all bytes, with zeros in place of the digest.

    >>> require_digest(pack_with_digest({"w": torch.tensor([1.0])}, {"of": "round 3"}))
    """
    body = pack_tensors(tensors, {"digest": _BLANK, **metadata})
    return body.replace(_BLANK.encode(), hashlib.sha256(body).hexdigest().encode(), 1)


def require_digest(body: bytes) -> None:
    """Raise ValueError if a body is not what `pack_with_digest` returned, to the bit."""
    end = 8 + int.from_bytes(body[:8], "little")
    try:
        stored = json.loads(body[8:end])["__metadata__"]["digest"]
        start = body.find(stored.encode(), 8, end)
    except (KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError("its header has no digest") from error
    found = hashlib.sha256(body[:start] + _BLANK.encode())
    found.update(memoryview(body)[start + len(_BLANK) :])
    if start < 0 or found.hexdigest() != stored:
        raise ValueError("its content does not match its digest")


def _sort_key(item: tuple[str, Tensor]) -> tuple[int, str]:
    """Return the key of a tensor's place in the file: by width, then by name."""
    return -item[1].element_size(), item[0]


def byte_size(tensors: Iterable[Tensor]) -> int:
    """Return how many bytes the numbers of tensors take.

    >>> byte_size([torch.zeros(3), torch.zeros(2, dtype=torch.int8)])
    14
    """
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def raw_bytes(tensor: Tensor) -> memoryview:
    """Return a tensor's bytes, without a copy if it is contiguous."""
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().data
