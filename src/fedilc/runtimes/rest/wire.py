"""Requests and replies as bytes: safetensors with a JSON object in its header, never pickle."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from fedilc.errors import ProtocolError
from fedilc.federation import Reply, Request
from fedilc.federation.messages import Phase
from fedilc.runtimes.rest.manifest import Wire

MEDIA_TYPE = "application/vnd.safetensors"
HEADER_BYTES = 1 << 20
_LARGEST_HALF = 2.0**15
_LARGE = ("weights/", "gradient/", "penalty/")


def pack(tensors: Mapping[str, Tensor], about: Mapping[str, Any], wire: Wire = "exact") -> bytes:
    """Tensors and a JSON object; on a float16 wire whatever is large is scaled to fit that type.

    Statistics are a few hundred numbers, and differences of them count: they travel as they are.

    >>> found, about = unpack(pack({"w": torch.tensor([1.0, -2.0])}, {"round": 3}))
    >>> found["w"].tolist(), about["round"]
    ([1.0, -2.0], 3)
    """
    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    scales = {}
    if wire == "float16":
        for name in [name for name in plain if name.startswith(_LARGE)]:
            largest = float(plain[name].abs().max()) if plain[name].numel() else 0.0
            scales[name] = largest / _LARGEST_HALF or 1.0
            plain[name] = (plain[name].double() / scales[name]).half()
    return save(plain, {"fedilc": json.dumps({**about, "scales": scales}, allow_nan=False)})


def unpack(body: bytes) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """What `pack` was given, with halves still to be scaled by `widen`; damaged bytes are refused."""
    try:
        size = int.from_bytes(body[:8], "little")
        header = json.loads(body[8 : 8 + size])
        about = json.loads(header["__metadata__"]["fedilc"])
        if not isinstance(about, dict) or not isinstance(about.get("scales"), dict):
            raise ValueError("it has no header of ours")
        return load(body), about
    except (SafetensorError, ValueError, KeyError, TypeError, RuntimeError, RecursionError) as error:
        raise ProtocolError(f"the body is not a message of this protocol: {str(error)[:200]}") from error


def widen(tensors: Mapping[str, Tensor], about: Mapping[str, Any], dtype: torch.dtype) -> dict[str, Tensor]:
    """Undo the scaling of a float16 wire."""
    wide = {}
    for name, tensor in tensors.items():
        scale = about["scales"].get(name)
        if scale is None:
            wide[name] = tensor
            continue
        if not isinstance(scale, float | int) or not math.isfinite(scale) or tensor.dtype != torch.float16:
            raise ProtocolError(f"{name!r} has the scale {scale!r}, which does not suit {tensor.dtype}")
        wide[name] = (tensor.double() * scale).to(dtype)
    return wide


def task_name(request: Request, run: str) -> str:
    """What identifies a task: all that its answer depends on. A restarted coordinator asks for the same."""
    facts = [run, request.phase, request.round, request.version, list(request.silos), request.penalty]
    digest = hashlib.sha256(json.dumps(facts).encode())
    if request.variance is not None:
        digest.update(request.variance.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:32]


def pack_request(request: Request, run: str, with_weights: bool, wire: Wire) -> bytes:
    """A task for a silo, with the weights if it does not have them yet."""
    about = {
        "run": run,
        "task": task_name(request, run),
        "phase": request.phase,
        "round": request.round,
        "version": request.version,
        "silos": list(request.silos),
        "penalty": request.penalty,
    }
    tensors = {f"weights/{name}": t for name, t in request.weights.items()} if with_weights else {}
    if request.variance is not None:
        tensors["variance"] = request.variance
    return pack(tensors, about, wire)


def unpack_request(
    body: bytes, like: Mapping[str, Tensor], weights: Mapping[str, Tensor] | None
) -> tuple[Request, str, str]:
    """A task as it came, its name and its run; `weights` are those the silo already has."""
    tensors, about = unpack(body)
    dtype = next(iter(like.values())).dtype
    wide = widen(tensors, about, dtype)
    sent = {name.removeprefix("weights/"): t for name, t in wide.items() if name.startswith("weights/")}
    found = sent or weights
    if found is None or set(found) != set(like):
        raise ProtocolError("the coordinator sent a task without the weights it needs")
    for name, tensor in found.items():
        if tensor.shape != like[name].shape or tensor.dtype != like[name].dtype:
            raise ProtocolError(f"the coordinator sent weights {name!r} of another shape or type")
    try:
        request = Request(
            about["phase"],
            int(about["round"]),
            int(about["version"]),
            tuple(str(silo) for silo in about["silos"]),
            found,
            wide.get("variance"),
            None if about["penalty"] is None else float(about["penalty"]),
        )
        return request, str(about["task"]), str(about["run"])
    except (KeyError, TypeError, ValueError) as error:
        raise ProtocolError(f"the coordinator's task cannot be read: {error}") from error


def pack_reply(reply: Reply, wire: Wire) -> bytes:
    """A silo's answer."""
    tensors = {f"{kind}/{name}": t for kind, named in reply.tensors.items() for name, t in named.items()}
    numbers = {key: value if _finite(value) else None for key, value in reply.numbers.items()}
    return pack(tensors, {"numbers": numbers}, wire)


def unpack_reply(body: bytes, silo: str, phase: Phase, round_: int, dtype: torch.dtype) -> Reply:
    """A silo's answer as it came; every number in it is finite."""
    tensors, about = unpack(body)
    numbers = about.get("numbers")
    if not isinstance(numbers, dict) or not all(_finite(value) for value in numbers.values()):
        raise ProtocolError("its numbers are not finite numbers by name")
    reply = Reply(silo, phase, round_, numbers=numbers)
    for name, tensor in widen(tensors, about, dtype).items():
        kind, slash, rest = name.partition("/")
        if not slash:
            raise ProtocolError(f"it holds a tensor called {name!r}")
        if not bool(torch.isfinite(tensor).all()):
            raise ProtocolError(f"{kind} {rest!r} holds a NaN or an infinity")
        reply.tensors.setdefault(kind, {})[rest] = tensor
    return reply


def _finite(value: object) -> bool:
    if value is None:
        return True
    return isinstance(value, float | int) and not isinstance(value, bool) and math.isfinite(value)
