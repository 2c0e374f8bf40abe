"""A task that is up: the bytes that silos get, and what their answers must be."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from fedilc.errors import ProtocolError
from fedilc.federation import Reply, Request
from fedilc.runtimes.remote.manifest import Manifest, tensors_digest
from fedilc.runtimes.remote.wire import header_room, is_number, pack_request, task_name, unpack

MOST_EXAMPLES = 2**53
_LARGEST = 1e100
_ROUNDING = 1e-9
_MOST_DOMAINS = 1000
_LONGEST_KEY = 200
_SHARES = ("accuracy", "auroc", "auprc")
_MEASURED = ("loss", *_SHARES, "examples")


class Posted:
    """A task that is up, as every silo asked gets it.

    The request's weights are the live ones: they are packed when the first silo needs them, and never
    after `close`, when the server may step.
    """

    def __init__(self, request: Request, manifest: Manifest, weights: str | None = None) -> None:
        self.request = request
        self.manifest = manifest
        self.weights = weights or tensors_digest(request.weights)
        self.name = task_name(request, manifest.hash, self.weights)
        self.expected = expected_tensors(request, manifest)
        self._bodies: dict[bool, bytes] = {}
        self._packing = threading.Lock()
        self._closed = False

    def body(self, have: str) -> bytes | None:
        """The task for a silo that has the weights of this name; None once the task is down."""
        with_weights = have != self.weights
        with self._packing:
            if self._closed:
                return None
            if with_weights not in self._bodies:
                self._bodies[with_weights] = pack_request(
                    self.request, self.manifest.hash, self.weights, with_weights, self.manifest.wire
                )
            return self._bodies[with_weights]

    def at_hand(self, have: str) -> bytes | None:
        """The same where it is packed already, without waiting for it."""
        return self._bodies.get(have != self.weights)

    def close(self) -> None:
        """Nobody gets this task any more."""
        with self._packing:
            self._closed = True
            self._bodies.clear()

    @property
    def most_bytes(self) -> int:
        """How large an answer may be."""
        tensors = sum(like.numel() * like.element_size() for like in self.expected.values())
        return tensors + header_room(self.expected) + 8

    def read(self, body: bytes, silo: str) -> Reply:
        """A silo's answer, or an error that says what is wrong with it."""
        tensors, about = unpack(body, self.expected, self.manifest.wire)
        reply = Reply(silo, self.request.phase, self.request.round, numbers=about.get("numbers", {}))
        _check_numbers(self.request, reply.numbers)
        for name, tensor in tensors.items():
            kind, _, rest = name.partition("/")
            reply.tensors.setdefault(kind, {})[rest] = tensor
        return reply


class Posting:
    """A run's requests as tasks, one after another; weights of one version are fingerprinted once."""

    def __init__(self, manifest: Manifest) -> None:
        self.manifest = manifest
        self._last: Posted | None = None

    def post(self, request: Request) -> Posted:
        """The request as a task; the one before it is down."""
        last, known = self._last, None
        if last is not None:
            last.close()
            known = last.weights if last.request.version == request.version else None
        self._last = Posted(request, self.manifest, known)
        return self._last


def expected_tensors(request: Request, manifest: Manifest) -> dict[str, Tensor]:
    """Tensors without storage like those of an answer, by their names on the wire."""
    if request.phase == "evaluate":
        return {}
    if request.phase == "statistics":
        return {"variance/C": manifest.variance_like}
    apart = request.variance is not None and not manifest.parts.adds_up_in_silo
    kinds = ("gradient", "penalty") if apart else ("gradient",)
    return {f"{kind}/{name}": like for kind in kinds for name, like in manifest.like.items()}


def _check_numbers(request: Request, numbers: Any) -> None:
    """Raise unless the numbers are those of the phase, and small enough to be added up."""
    if not isinstance(numbers, dict):
        raise ProtocolError("its numbers are not an object")
    if request.phase == "evaluate":
        _check_measured(numbers)
        return
    ranges: dict[str, tuple[float, float]] = {}
    if request.phase == "gradients":
        ranges = {"loss": (-_LARGEST, _LARGEST), "examples": (1, MOST_EXAMPLES)}
        if request.variance is not None:
            ranges["distance"] = (0, _LARGEST)
    if set(numbers) != set(ranges):
        raise ProtocolError(f"its numbers are {_names(numbers)}; expected were {_names(ranges)}")
    for key, (least, most) in ranges.items():
        if not is_number(numbers[key], least, most):
            raise ProtocolError(f"its {key} is not a number from {least:g} to {most:g}")


def _check_measured(numbers: Mapping[str, Any]) -> None:
    """A silo without a validation set measures nothing; any other all metrics, and some by sub-domain."""
    missing = [key for key in _MEASURED if numbers and key not in numbers]
    if missing:
        raise ProtocolError(f"it measures no {missing[0]}")
    if len(numbers) > _MOST_DOMAINS * len(_MEASURED):
        raise ProtocolError(f"it measures more than {_MOST_DOMAINS} sub-domains")
    for key, value in numbers.items():
        metric = key.partition(" of ")[0]
        if metric not in _MEASURED or len(key) > _LONGEST_KEY:
            raise ProtocolError(f"it measures {key[:100]!r}, which is no metric of this run")
        least, most = (0.0, 1.0) if metric in _SHARES else (-_LARGEST, _LARGEST)
        if value is not None and not is_number(value, least, most + _ROUNDING):
            raise ProtocolError(f"its {key[:100]!r} is not a number from {least:g} to {most:g}")


def _names(numbers: Mapping[str, object]) -> str:
    return ", ".join(sorted(numbers))[:100] or "none"
