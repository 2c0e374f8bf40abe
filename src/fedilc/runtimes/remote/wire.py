"""Turn requests and replies into bytes and back: safetensors with a JSON object in the header, never pickle.

The reader knows which tensors must be there: a header that declares anything else is refused before any
tensor is created.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import torch
from pydantic import Field
from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor

from fedilc.aggregation.base import is_finite
from fedilc.data.digests import tensors_digest
from fedilc.data.sources import Section
from fedilc.errors import ProtocolError
from fedilc.federation import Reply, Request
from fedilc.federation.protocol import Range, Step, check_numbers
from fedilc.privacy.words import VALUES, SumForm
from fedilc.runtimes.remote.manifest import Manifest, Wire, read_received
from fedilc.storage.files import DTYPE_NAMES, pack_tensors, pack_with_digest, require_digest

MEDIA_TYPE = "application/vnd.safetensors"
HEADER_BYTES = 1 << 20
_ENTRY_BYTES = 200  # of a tensor in the header beside its name: type, shape and offsets
_MAX_FLOAT16 = 2.0**15  # the largest number after scaling: half of what float16 holds, against rounding up
_MAX_SCALE = 1e300
WEIGHTS, SIDES = "weights", "sides"
MASK = "mask"  # the phase of a secure sum whose task has tensors

Name = Annotated[str, Field(max_length=64)]


class DamagedError(ProtocolError):
    """A message was damaged on the way; it can be asked for again."""


@dataclass(frozen=True)
class TensorSchema:
    """The shape and type of a tensor in a message, whether it is sent as float16, and must be finite."""

    like: Tensor
    as_float16: bool = False
    finite: bool = True


def tensor_schemas(
    groups: Mapping[str, Mapping[str, Tensor]], as_float16: Callable[[str], bool]
) -> dict[str, TensorSchema]:
    """Return the schemas of groups of tensors, by their names in a message."""
    return {
        f"{group}/{name}": TensorSchema(like, as_float16(group))
        for group, named in groups.items()
        for name, like in named.items()
    }


def pack(
    groups: Mapping[str, Mapping[str, Tensor]],
    about: Mapping[str, Any],
    as_float16: Callable[[str], bool] = lambda _: False,
    digest: bool = False,
) -> bytes:
    """Return groups of tensors and a JSON object as bytes; `as_float16` groups are scaled to float16.

    >>> body = pack({"gradient": {"w": torch.tensor([1.0, -2.0])}}, {"round": 3})
    >>> found, about = unpack(body, {"gradient/w": TensorSchema(torch.empty(2, device="meta"))})
    >>> found["gradient"]["w"].tolist(), about["round"]
    ([1.0, -2.0], 3)
    """
    tensors = tensor_schemas(groups, as_float16)
    sent, scales = {name: schema.like for name, schema in tensors.items()}, {}
    for name, schema in tensors.items():
        tensor = schema.like
        if schema.as_float16:
            plain = tensor.detach().cpu()
            largest = float(plain.abs().max()) if plain.numel() else 0.0
            scales[name] = largest / _MAX_FLOAT16 if largest and math.isfinite(largest) else 1.0
            sent[name] = (plain.double() / scales[name]).half()
    metadata = {"fedilc": json.dumps({**about, "scales": scales}, allow_nan=False)}
    return pack_with_digest(sent, metadata) if digest else pack_tensors(sent, metadata)


def unpack(
    body: bytes, expected: Mapping[str, TensorSchema], room: int = 0
) -> tuple[dict[str, dict[str, Tensor]], dict[str, Any]]:
    """Return the groups of tensors and the JSON object; raise if tensors are not finite or not as `expected`.

    The header may be `room` bytes larger than these tensors need.
    """
    entries, about = read_header(body, header_room(expected) + room)
    for name in entries:
        if name not in expected:
            raise ProtocolError(f"it holds the tensor {_short(name)}, which was not asked for")
    for name, schema in expected.items():
        like = schema.like
        dtype = "F16" if schema.as_float16 else DTYPE_NAMES[like.dtype]
        if name not in entries:
            raise ProtocolError(f"it lacks the tensor {name!r}")
        entry = entries[name] if isinstance(entries[name], dict) else {}
        if entry.get("dtype") != dtype or entry.get("shape") != list(like.shape):
            raise ProtocolError(
                f"the tensor {name!r} is {_short(entry.get('dtype'))} of shape {_short(entry.get('shape'))}; "
                f"{dtype!r} of shape {list(like.shape)} was expected"
            )
    try:
        loaded, groups = load(body), dict[str, dict[str, Tensor]]()
        for name, schema in expected.items():
            group, _, rest = name.partition("/")
            groups.setdefault(group, {})[rest] = _decode(name, loaded[name], schema, about)
        return groups, about
    except (SafetensorError, ValueError, KeyError, TypeError, RuntimeError, AssertionError) as error:
        raise ProtocolError(f"the tensors cannot be read: {_short(error)}") from error


def read_header(body: bytes, max_bytes: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the header's entry of each tensor, and its JSON object; refuse one larger than `max_bytes`."""
    try:
        size = int.from_bytes(body[:8], "little")
        if size > min(max_bytes, len(body) - 8):
            raise ValueError("its header is too large or not complete")
        entries = json.loads(body[8 : 8 + size])
        about = json.loads(entries.pop("__metadata__")["fedilc"])
        if not isinstance(about, dict) or not isinstance(about.get("scales"), dict):
            raise ValueError("it has no header of this protocol")
        return entries, about
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ProtocolError(f"the body is not a message of this protocol: {_short(error)}") from error


def header_room(expected: Iterable[str]) -> int:
    """Return how large a header that describes these tensors may be."""
    # JSON may write a character in six: \u00e9.
    return HEADER_BYTES + sum(6 * len(name) + _ENTRY_BYTES for name in expected)


def content_digest(body: bytes) -> str:
    """Return the Content-Digest header of a body, to detect one that is damaged on the way.

    >>> content_digest(b"")
    'sha-256=:47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=:'
    """
    return f"sha-256=:{base64.b64encode(hashlib.sha256(body).digest()).decode()}:"


def is_whole(digest: str, sent: str | None) -> bool:
    """Return whether a body's `content_digest` is the one `sent` with it, if that is a SHA-256."""
    return sent is None or not sent.startswith("sha-256=") or sent == digest


def _decode(name: str, tensor: Tensor, schema: TensorSchema, about: Mapping[str, Any]) -> Tensor:
    """Return the tensor in its own type again, finite and of the right shape."""
    like = schema.like
    if schema.as_float16:
        scale = about["scales"].get(name)
        if not Range(0.0, _MAX_SCALE).holds(scale) or tensor.dtype != torch.float16:
            raise ProtocolError(f"the tensor {name!r} has the scale {_short(scale)}, which is not valid")
        tensor = (tensor.double() * scale).to(like.dtype)
    if tensor.shape != like.shape or tensor.dtype != like.dtype:
        raise ProtocolError(f"the tensor {name!r} differs from what the header declares")
    if schema.finite and not is_finite(tensor):
        raise ProtocolError(f"the tensor {name!r} holds a NaN or an infinity")
    return tensor


def _short(value: object) -> str:
    text = str(value) if isinstance(value, Exception) else repr(value)
    return text if len(text) <= 120 else text[:117] + "..."


def task_name(request: Request, run: str, weights_digest: str) -> str:
    """Return a task's name: a hash of everything that its reply depends on, the same after a restart."""
    numbers = sorted((name, float(number)) for name, number in request.numbers.items())
    facts = [run, request.step, request.round, weights_digest, list(request.silos), numbers]
    digest = hashlib.sha256(json.dumps(facts).encode())
    for group, tensors in sorted(request.tensors.items()):
        digest.update(f"{group} {tensors_digest(tensors)}".encode())
    return digest.hexdigest()[:32]


class _Task(Section):
    """The JSON object of a task, beside its tensors."""

    run: Name
    task: Name
    weights: Name
    step: Name
    round: Annotated[int, Field(ge=1)]
    silos: list[str]
    numbers: dict[Name, float]
    silo_weights: dict[str, Annotated[float, Field(ge=0, le=1)]] = Field(default_factory=dict)
    asked: list[str] | None = None
    secure: dict[str, Any] | None = None
    scales: dict[str, float]


@dataclass(frozen=True)
class ReceivedRequest:
    """A request as a silo receives it, with its task's name, its run's hash and the digest of its weights.

    `asked` are the silos for which a sub-coordinator shall reply: all of the round, or those that the
    coordinator above still waits for. `secure` is a message of a secure sum, `sides` the sides of coordinates
    whose logarithms are added up.
    """

    request: Request
    task: str
    run: str
    weights_digest: str
    asked: frozenset[str]
    secure: dict[str, Any] | None = None
    sides: Tensor | None = None

    def require_for(self, silo: str, manifest: Manifest) -> None:
        """Raise if the task is of another run, or for other silos."""
        if self.run != manifest.hash:
            raise ProtocolError("the task belongs to another run than the manifest")
        if silo not in self.request.silos:
            raise ProtocolError(f"silo {silo!r} received a task for other silos")


def pack_request(
    request: Request,
    manifest: Manifest,
    weights_digest: str,
    with_weights: bool,
    asked: Collection[str] | None = None,
    secure: Mapping[str, Any] | None = None,
    sides: Tensor | None = None,
    task: str | None = None,
) -> bytes:
    """Return a task as bytes, with w if the silo does not have it yet.

    A sub-coordinator also gets the silos that are `asked`, and the adaptive weights of silos.
    """
    about: dict[str, Any] = {
        "run": manifest.hash,
        "task": task or task_name(request, manifest.hash, weights_digest),
        "weights": weights_digest,
        "step": request.step,
        "round": request.round,
        "silos": list(request.silos),
        "numbers": dict(request.numbers),
    }
    if asked is not None:
        about |= {"silo_weights": dict(request.silo_weights), "asked": sorted(asked)}
    groups = dict(request.tensors) | ({WEIGHTS: request.weights} if with_weights else {})
    if secure is not None:
        about["secure"] = dict(secure)
        groups = groups if secure["phase"] == MASK else {}
        groups |= {} if sides is None else {SIDES: {SIDES: sides}}
    return pack(groups, about, lambda group: group == WEIGHTS and manifest.wire == "float16", digest=True)


def unpack_request(
    body: bytes, manifest: Manifest, weights_digest: str, weights: Mapping[str, Tensor]
) -> ReceivedRequest:
    """Return a received task; raise if it is damaged. The silo has `weights` with this digest."""
    try:
        require_digest(body)
    except ValueError as error:
        raise DamagedError(f"a task was damaged on the way: {_short(error)}") from error
    halves = manifest.wire == "float16"
    own = tensor_schemas({WEIGHTS: manifest.like}, lambda _: halves)
    entries, found = read_header(body, header_room(own) + HEADER_BYTES)
    about = read_received(_Task, found, "the coordinator's task")
    step = manifest.program.steps.get(about.step)
    if step is None:
        raise ProtocolError(f"the coordinator asks for {about.step!r}, which is not a step of this run")
    check_numbers(about.numbers, step.sent_numbers)
    known = about.weights == weights_digest and not any(name in own for name in entries)
    expected = ({} if known else own) | tensor_schemas(step.sends, lambda _: False)
    phase = None if about.secure is None else about.secure.get("phase")
    if about.secure is not None:
        expected = expected if phase == MASK else {}
        expected |= _sides_schema(manifest, step, about.secure)
    groups, _ = unpack(body, expected)
    if not 1 <= about.round <= manifest.rounds or not set(about.silos) <= set(manifest.silos):
        raise ProtocolError("the coordinator asks for a round or for silos that the run does not have")
    asked = frozenset(about.silos if about.asked is None else about.asked)
    if not asked <= set(about.silos):
        raise ProtocolError("the coordinator asks for silos that are not in the round")
    sent = groups.pop(WEIGHTS, None) or weights
    sides = groups.pop(SIDES, {}).get(SIDES)
    version = int(hashlib.sha256(about.weights.encode()).hexdigest()[:15], 16)
    if not set(about.silo_weights) <= set(manifest.silos):
        raise ProtocolError("the coordinator gives weights to silos that the run does not have")
    content = tuple(about.silos), sent, groups, about.numbers, about.silo_weights
    request = Request(about.step, about.round, version, *content)
    held = about.weights if phase in (None, MASK) else weights_digest
    return ReceivedRequest(request, about.task, about.run, held, asked, about.secure, sides)


def _sides_schema(manifest: Manifest, step: Step, secure: Mapping[str, Any]) -> dict[str, TensorSchema]:
    """Return the schema of the sides whose logarithms are asked for, one bit each."""
    form = SumForm(manifest.program, step, len(manifest.silos))
    if secure.get("phase") != MASK or secure.get("part") != VALUES or not form.sides:
        return {}
    like = torch.empty(-(-form.sides // 8), dtype=torch.uint8, device="meta")
    return {f"{SIDES}/{SIDES}": TensorSchema(like)}


def reply_schemas(step: Step, wire: Wire) -> dict[str, TensorSchema]:
    """Return the schemas of the tensors of a reply."""
    groups = {name: answer.like for name, answer in step.answers.items()}
    return tensor_schemas(groups, lambda name: wire == "float16" and not step.answers[name].exact)


def pack_reply(reply: Reply, manifest: Manifest) -> bytes:
    """Return a silo's reply as bytes; a number that is not finite is sent as null."""
    answers = manifest.program.steps[reply.step].answers
    about = {"numbers": finite(reply.numbers), "metrics": finite(reply.metrics)}
    return pack(reply.tensors, about, lambda name: manifest.wire == "float16" and not answers[name].exact)


def finite(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return numbers, nested or not, with None in place of those that are not finite."""
    largest = torch.finfo(torch.float64).max
    return {
        key: finite(value)
        if isinstance(value, Mapping)
        else (value if Range(-largest, largest).holds(value) else None)
        for key, value in values.items()
    }
