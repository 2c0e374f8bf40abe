"""Requests and replies as bytes: safetensors with a JSON object in its header, never pickle.

Whoever reads says what must be there: a header that declares anything else is refused, and no tensor made.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import torch
from pydantic import Field, ValidationError
from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor

from fedilc.aggregation.numerics import is_finite
from fedilc.config.section import Section
from fedilc.errors import ProtocolError
from fedilc.federation import Reply, Request
from fedilc.federation.packing import WORDS, packed, packed_with_digest, require_digest
from fedilc.federation.steps import Range, Step, check_numbers
from fedilc.runtimes.remote.manifest import Manifest, Wire, tensors_digest

MEDIA_TYPE = "application/vnd.safetensors"
HEADER_BYTES = 1 << 20
_ENTRY_BYTES = 200
_LARGEST_HALF = 2.0**15
_LARGEST_SCALE = 1e300
WEIGHTS = "weights"

Name = Annotated[str, Field(max_length=64)]


class DamagedError(ProtocolError):
    """A message is not the one that was sent; to ask for it again may help."""


@dataclass(frozen=True)
class Form:
    """What a tensor of a message must be like, and whether it travels as float16."""

    like: Tensor
    halved: bool = False


def forms(groups: Mapping[str, Mapping[str, Tensor]], halved: Callable[[str], bool]) -> dict[str, Form]:
    """Return the forms of groups of tensors, by the names that they have in a message."""
    return {
        f"{group}/{name}": Form(like, halved(group))
        for group, named in groups.items()
        for name, like in named.items()
    }


def pack(
    groups: Mapping[str, Mapping[str, Tensor]],
    about: Mapping[str, Any],
    halved: Callable[[str], bool] = lambda _: False,
    digest: bool = False,
) -> bytes:
    """Return groups of tensors and a JSON object as bytes; groups that are `halved` are scaled to float16.

    >>> body = pack({"gradient": {"w": torch.tensor([1.0, -2.0])}}, {"round": 3})
    >>> found, about = unpack(body, {"gradient/w": Form(torch.empty(2, device="meta"))})
    >>> found["gradient"]["w"].tolist(), about["round"]
    ([1.0, -2.0], 3)
    """
    tensors = forms(groups, halved)
    sent, scales = {name: form.like for name, form in tensors.items()}, {}
    for name, form in tensors.items():
        tensor = form.like
        if form.halved:
            plain = tensor.detach().cpu()
            largest = float(plain.abs().max()) if plain.numel() else 0.0
            scales[name] = largest / _LARGEST_HALF if largest and math.isfinite(largest) else 1.0
            sent[name] = (plain.double() / scales[name]).half()
    words = {"fedilc": json.dumps({**about, "scales": scales}, allow_nan=False)}
    return packed_with_digest(sent, words) if digest else packed(sent, words)


def unpack(
    body: bytes, expected: Mapping[str, Form], room: int = 0
) -> tuple[dict[str, dict[str, Tensor]], dict[str, Any]]:
    """Return what `pack` was given, if it is finite tensors like those `expected` and nothing else.

    The header may be `room` bytes larger than these tensors need.
    """
    entries, about = read_header(body, header_room(expected) + room)
    for name in entries:
        if name not in expected:
            raise ProtocolError(f"it holds the tensor {_short(name)}, which was not asked for")
    for name, form in expected.items():
        like = form.like
        word = "F16" if form.halved else WORDS[like.dtype]
        if name not in entries:
            raise ProtocolError(f"it lacks the tensor {name!r}")
        entry = entries[name] if isinstance(entries[name], dict) else {}
        if entry.get("dtype") != word or entry.get("shape") != list(like.shape):
            raise ProtocolError(
                f"the tensor {name!r} is {_short(entry.get('dtype'))} of shape {_short(entry.get('shape'))}; "
                f"{word!r} of shape {list(like.shape)} was expected"
            )
    try:
        found, groups = load(body), dict[str, dict[str, Tensor]]()
        for name, form in expected.items():
            group, _, rest = name.partition("/")
            groups.setdefault(group, {})[rest] = _checked(name, found[name], form, about)
        return groups, about
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


def header_room(expected: Iterable[str]) -> int:
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


def _checked(name: str, tensor: Tensor, form: Form, about: Mapping[str, Any]) -> Tensor:
    """Return the tensor in its own type again, finite and of the right shape."""
    like = form.like
    if form.halved:
        scale = about["scales"].get(name)
        if not Range(0.0, _LARGEST_SCALE).holds(scale) or tensor.dtype != torch.float16:
            raise ProtocolError(f"the tensor {name!r} has the scale {_short(scale)}, which is not one")
        tensor = (tensor.double() * scale).to(like.dtype)
    if tensor.shape != like.shape or tensor.dtype != like.dtype:
        raise ProtocolError(f"the tensor {name!r} is declared twice")
    if not is_finite(tensor):
        raise ProtocolError(f"the tensor {name!r} holds a NaN or an infinity")
    return tensor


def _short(value: object) -> str:
    text = str(value) if isinstance(value, Exception) else repr(value)
    return text if len(text) <= 120 else text[:117] + "..."


def task_name(request: Request, run: str, weights: str) -> str:
    """Return what identifies a task: all that its answer depends on, also after a restart."""
    facts = [run, request.step, request.round, weights, list(request.silos), sorted(request.numbers.items())]
    digest = hashlib.sha256(json.dumps(facts).encode())
    for group, tensors in sorted(request.tensors.items()):
        digest.update(f"{group} {tensors_digest(tensors)}".encode())
    return digest.hexdigest()[:32]


class _Task(Section):
    """What a task says beside its tensors."""

    run: Name
    task: Name
    weights: Name
    step: Name
    round: Annotated[int, Field(ge=1)]
    silos: list[str]
    numbers: dict[Name, float]
    silo_weights: dict[str, Annotated[float, Field(ge=0, le=1)]] = Field(default_factory=dict)
    scales: dict[str, float]


@dataclass(frozen=True)
class Asked:
    """A task as a silo reads it: the request, and the names of the task, its run and its weights."""

    request: Request
    task: str
    run: str
    weights: str


def pack_request(
    request: Request, manifest: Manifest, weights: str, with_weights: bool, to_carrier: bool = False
) -> bytes:
    """Return a task for a silo, with the weights if it does not have those of that name yet.

    A sub-coordinator is told how much each silo counts as well.
    """
    about: dict[str, Any] = {
        "run": manifest.hash,
        "task": task_name(request, manifest.hash, weights),
        "weights": weights,
        "step": request.step,
        "round": request.round,
        "silos": list(request.silos),
        "numbers": dict(request.numbers),
    }
    if to_carrier:
        about["silo_weights"] = dict(request.silo_weights)
    groups = dict(request.tensors) | ({WEIGHTS: request.weights} if with_weights else {})
    return pack(groups, about, lambda group: group == WEIGHTS and manifest.wire == "float16", digest=True)


def unpack_request(body: bytes, manifest: Manifest, have: str, weights: Mapping[str, Tensor]) -> Asked:
    """Return a task as it came, if it is as it was sent; `weights` are the silo's, under the name `have`."""
    try:
        require_digest(body)
    except ValueError as error:
        raise DamagedError(f"a task was damaged on its way: {_short(error)}") from error
    halves = manifest.wire == "float16"
    own = forms({WEIGHTS: manifest.like}, lambda _: halves)
    entries, found = read_header(body, header_room(own) + HEADER_BYTES)
    try:
        about = _Task.model_validate(found)
    except ValidationError as error:
        raise ProtocolError(f"the coordinator's task cannot be read: {error.errors()[0]['msg']}") from error
    step = manifest.program.steps.get(about.step)
    if step is None:
        raise ProtocolError(f"the coordinator asks for {about.step!r}, which is no step of this run")
    check_numbers(about.numbers, step.sent_numbers)
    expected = {} if about.weights == have and not any(name in own for name in entries) else own
    groups, _ = unpack(body, expected | forms(step.sends, lambda _: False))
    if not 1 <= about.round <= manifest.rounds or not set(about.silos) <= set(manifest.silos):
        raise ProtocolError("the coordinator asks for a round or for silos that the run does not have")
    sent = groups.pop(WEIGHTS, None) or weights
    version = int(hashlib.sha256(about.weights.encode()).hexdigest()[:15], 16)
    if not set(about.silo_weights) <= set(manifest.silos):
        raise ProtocolError("the coordinator weighs silos that the run does not have")
    told = tuple(about.silos), sent, groups, about.numbers, about.silo_weights
    request = Request(about.step, about.round, version, *told)
    return Asked(request, about.task, about.run, about.weights)


def answer_forms(step: Step, wire: Wire) -> dict[str, Form]:
    """Return what the tensors of an answer must be like."""
    groups = {name: answer.like for name, answer in step.answers.items()}
    return forms(groups, lambda name: wire == "float16" and not step.answers[name].exact)


def pack_reply(reply: Reply, manifest: Manifest) -> bytes:
    """Return a silo's answer as bytes; what is not a finite number is sent as none."""
    answers = manifest.program.steps[reply.step].answers
    about = {"numbers": finite(reply.numbers), "metrics": finite(reply.metrics)}
    return pack(reply.tensors, about, lambda name: manifest.wire == "float16" and not answers[name].exact)


def finite(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return numbers, nested or not, with none in place of what is no finite number."""
    most = torch.finfo(torch.float64).max
    return {
        key: finite(value)
        if isinstance(value, Mapping)
        else (value if Range(-most, most).holds(value) else None)
        for key, value in values.items()
    }
