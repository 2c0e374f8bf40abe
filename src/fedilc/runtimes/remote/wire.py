"""Requests and replies as bytes: safetensors with a JSON object in its header, never pickle.

Whoever reads says what must be there: a header that declares anything else is refused, and no tensor made.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import torch
from pydantic import Field, ValidationError
from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor

from fedilc.errors import ProtocolError
from fedilc.federation import Reply, Request
from fedilc.federation.messages import Phase
from fedilc.numerics import is_finite
from fedilc.packing import WORDS, packed, packed_with_digest, require_digest
from fedilc.runtimes.remote.manifest import Manifest, Wire, tensors_digest
from fedilc.sections import Section

MEDIA_TYPE = "application/vnd.safetensors"
HEADER_BYTES = 1 << 20
_ENTRY_BYTES = 200
_LARGEST_HALF = 2.0**15
_LARGEST_SCALE = 1e300
_LARGE = ("weights/", "gradient/", "penalty/")

Name = Annotated[str, Field(max_length=64)]


class DamagedError(ProtocolError):
    """A message is not the one that was sent; to ask for it again may help."""


def pack(
    tensors: Mapping[str, Tensor], about: Mapping[str, Any], wire: Wire = "exact", digest: bool = False
) -> bytes:
    """Tensors and a JSON object; on a float16 wire whatever is large is scaled to fit that type.

    Statistics are a few hundred numbers, and differences of them count: they travel as they are.

    >>> body = pack({"w": torch.tensor([1.0, -2.0])}, {"round": 3})
    >>> found, about = unpack(body, {"w": torch.empty(2, device="meta")})
    >>> found["w"].tolist(), about["round"]
    ([1.0, -2.0], 3)
    """
    sent, scales = dict(tensors), {}
    for name, tensor in tensors.items():
        if _halved(name, wire):
            plain = tensor.detach().cpu()
            largest = float(plain.abs().max()) if plain.numel() else 0.0
            scales[name] = largest / _LARGEST_HALF if largest and math.isfinite(largest) else 1.0
            sent[name] = (plain.double() / scales[name]).half()
    words = {"fedilc": json.dumps({**about, "scales": scales}, allow_nan=False)}
    return packed_with_digest(sent, words) if digest else packed(sent, words)


def unpack(
    body: bytes, expected: Mapping[str, Tensor], wire: Wire = "exact"
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """What `pack` was given, if it is finite tensors like those `expected` and nothing else."""
    entries, about = read_header(body, header_room(expected))
    for name in entries:
        if name not in expected:
            raise ProtocolError(f"it holds the tensor {_short(name)}, which was not asked for")
    for name, like in expected.items():
        word = "F16" if _halved(name, wire) else WORDS[like.dtype]
        if name not in entries:
            raise ProtocolError(f"it lacks the tensor {name!r}")
        entry = entries[name] if isinstance(entries[name], dict) else {}
        if entry.get("dtype") != word or entry.get("shape") != list(like.shape):
            raise ProtocolError(
                f"the tensor {name!r} is {_short(entry.get('dtype'))} of shape {_short(entry.get('shape'))}; "
                f"{word!r} of shape {list(like.shape)} was expected"
            )
    try:
        found = load(body)
        return {
            name: _checked(name, found[name], like, about, wire) for name, like in expected.items()
        }, about
    except (SafetensorError, ValueError, KeyError, TypeError, RuntimeError, AssertionError) as error:
        raise ProtocolError(f"the tensors cannot be read: {_short(error)}") from error


def read_header(body: bytes, most: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """What the header says of each tensor, and the JSON object; one larger than `most` is refused."""
    try:
        size = int.from_bytes(body[:8], "little")
        if size > min(most, len(body) - 8):
            raise ValueError("its header has another size than it says")
        entries = json.loads(body[8 : 8 + size])
        about = json.loads(entries.pop("__metadata__")["fedilc"])
        if not isinstance(about, dict) or not isinstance(about.get("scales"), dict):
            raise ValueError("it has no header of ours")
        return entries, about
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ProtocolError(f"the body is not a message of this protocol: {_short(error)}") from error


def header_room(expected: Mapping[str, Tensor]) -> int:
    """How large a header may be that describes these tensors."""
    return HEADER_BYTES + sum(6 * len(name) + _ENTRY_BYTES for name in expected)


def content_digest(body: bytes) -> str:
    """What a Content-Digest header says of a body, so that one damaged on its way is not taken for another.

    >>> content_digest(b"")
    'sha-256=:47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=:'
    """
    return f"sha-256=:{base64.b64encode(hashlib.sha256(body).digest()).decode()}:"


def is_whole(digest: str, told: str | None) -> bool:
    """Whether a body of this `content_digest` is the one that was told of, where that is one of its kind."""
    return told is None or not told.startswith("sha-256=") or told == digest


def _halved(name: str, wire: Wire) -> bool:
    return wire == "float16" and name.startswith(_LARGE)


def _checked(name: str, tensor: Tensor, like: Tensor, about: Mapping[str, Any], wire: Wire) -> Tensor:
    """The tensor in its own type again, finite and of the right shape."""
    if _halved(name, wire):
        scale = about["scales"].get(name)
        if not is_number(scale, 0.0, _LARGEST_SCALE) or tensor.dtype != torch.float16:
            raise ProtocolError(f"the tensor {name!r} has the scale {_short(scale)}, which is not one")
        tensor = (tensor.double() * scale).to(like.dtype)
    if tensor.shape != like.shape or tensor.dtype != like.dtype:
        raise ProtocolError(f"the tensor {name!r} is declared twice")
    if not is_finite(tensor):
        raise ProtocolError(f"the tensor {name!r} holds a NaN or an infinity")
    return tensor


def is_number(value: object, least: float, most: float) -> bool:
    """Whether this is a number, no NaN, in a range; integers of any size are compared exactly.

    >>> is_number(0.5, 0, 1), is_number(True, 0, 1), is_number(10**400, 0, 1), is_number(float("nan"), 0, 1)
    (True, False, False, False)
    """
    return isinstance(value, float | int) and not isinstance(value, bool) and least <= value <= most


def _short(value: object) -> str:
    text = str(value) if isinstance(value, Exception) else repr(value)
    return text if len(text) <= 120 else text[:117] + "..."


def task_name(request: Request, run: str, weights: str) -> str:
    """What identifies a task: all that its answer depends on. A restarted coordinator asks for the same."""
    facts = [run, request.phase, request.round, weights, list(request.silos), request.penalty]
    digest = hashlib.sha256(json.dumps(facts).encode())
    if request.variance is not None:
        digest.update(tensors_digest({"variance": request.variance}).encode())
    return digest.hexdigest()[:32]


class _Task(Section):
    """What a task says beside its tensors."""

    run: Name
    task: Name
    weights: Name
    phase: Phase
    round: Annotated[int, Field(ge=1)]
    silos: list[str]
    penalty: Annotated[float, Field(ge=0, le=1e30)] | None
    scales: dict[str, float]


@dataclass(frozen=True)
class Asked:
    """A task as a silo reads it: the request, and the names of the task, its run and its weights."""

    request: Request
    task: str
    run: str
    weights: str


def pack_request(request: Request, run: str, weights: str, with_weights: bool, wire: Wire) -> bytes:
    """A task for a silo, with the weights if it does not have those of that name yet."""
    about = {
        "run": run,
        "task": task_name(request, run, weights),
        "weights": weights,
        "phase": request.phase,
        "round": request.round,
        "silos": list(request.silos),
        "penalty": request.penalty,
    }
    tensors = {f"weights/{name}": t for name, t in request.weights.items()} if with_weights else {}
    if request.variance is not None:
        tensors["variance"] = request.variance
    return pack(tensors, about, wire, digest=True)


def unpack_request(body: bytes, manifest: Manifest, have: str, weights: Mapping[str, Tensor]) -> Asked:
    """A task as it came, if it is as it was sent; `weights` are those the silo has, under the name `have`."""
    try:
        require_digest(body)
    except ValueError as error:
        raise DamagedError(f"a task was damaged on its way: {_short(error)}") from error
    like = {f"weights/{name}": tensor for name, tensor in manifest.like.items()}
    entries, found = read_header(body, header_room(like))
    try:
        about = _Task.model_validate(found)
    except ValidationError as error:
        raise ProtocolError(f"the coordinator's task cannot be read: {error.errors()[0]['msg']}") from error
    expected = {} if about.weights == have and not any(name in like for name in entries) else dict(like)
    if about.penalty is not None and manifest.variance is not None:
        expected["variance"] = manifest.variance_like
    tensors, _ = unpack(body, expected, manifest.wire)
    if not 1 <= about.round <= manifest.rounds or not set(about.silos) <= set(manifest.silos):
        raise ProtocolError("the coordinator asks for a round or for silos that the run does not have")
    variance = tensors.pop("variance", None)
    sent = {name.removeprefix("weights/"): tensor for name, tensor in tensors.items()}
    version = int(hashlib.sha256(about.weights.encode()).hexdigest()[:15], 16)
    silos = tuple(about.silos)
    request = Request(about.phase, about.round, version, silos, sent or weights, variance, about.penalty)
    return Asked(request, about.task, about.run, about.weights)


def pack_reply(reply: Reply, wire: Wire) -> bytes:
    """A silo's answer; what is not a finite number is sent as none."""
    tensors = {f"{kind}/{name}": t for kind, named in reply.tensors.items() for name, t in named.items()}
    most = torch.finfo(torch.float64).max
    numbers = {key: value if is_number(value, -most, most) else None for key, value in reply.numbers.items()}
    return pack(tensors, {"numbers": numbers}, wire)
