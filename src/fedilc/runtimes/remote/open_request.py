"""An open request: the bytes that silos receive, the limit on their replies, and how replies are read.

Replies come from single silos, or from a sub-coordinator for several: sums of tensors, and the numbers and
norms of each silo.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Collection, Mapping
from typing import Any

from torch import Tensor

from fedilc.aggregation.packed_sums import PackedSums, SumsForm
from fedilc.data.digests import tensors_digest
from fedilc.errors import ProtocolError
from fedilc.federation import AggregatedReply, Reply, Request
from fedilc.federation.protocol import Range, Step, check_metrics, check_numbers
from fedilc.federation.step_sums import SiloWeights, make_weights
from fedilc.runtimes.remote.manifest import Manifest
from fedilc.runtimes.remote.wire import (
    HEADER_BYTES,
    TensorSchema,
    finite,
    header_room,
    pack,
    pack_request,
    read_header,
    reply_schemas,
    task_name,
    unpack,
)
from fedilc.storage.files import byte_size

_MAX_HEADER_BYTES = 100_000_000
_MAX_REASON_LENGTH = 500
_NORM = Range(0.0, math.inf)


class NotAskedError(ProtocolError):
    """A sub-coordinator replies for a silo that it is not asked for now.

    This is not its fault: a coordinator may have lost replies, or received others, when it was restarted.
    """


class OpenRequest:
    """A request that silos can reply to.

    Its weights are the server's own tensors, not a copy: they are packed when the first silo needs them, and
    never after `close`, because the server may then change them. `asked` are the silos that must reply, by
    default all of the request; a sub-coordinator may have the replies of some already.
    """

    def __init__(
        self,
        request: Request,
        manifest: Manifest,
        weights_digest: str | None = None,
        asked: Collection[str] | None = None,
    ) -> None:
        self.request = request
        self.asked = request.asked if asked is None else frozenset(asked)
        self.manifest = manifest
        self.weights_digest = weights_digest or tensors_digest(request.weights)
        self.name = task_name(request, manifest.hash, self.weights_digest)
        self.step = manifest.program.steps[request.step]
        self.schemas = reply_schemas(self.step, manifest.wire)
        self._bodies: dict[tuple[bool, bool], bytes] = {}
        self._lock = threading.Lock()
        self._closed = False

    def body(self, weights_digest: str, to_sub_coordinator: bool = False, _silo: str = "") -> bytes | None:
        """Return the task for a silo whose weights have this digest; None once it is closed.

        The task for a sub-coordinator differs only if there are adaptive weights of silos, or if not all of
        the request's silos are asked.
        """
        kind = self._kind(weights_digest, to_sub_coordinator)
        # The training thread closes the request and then changes w; without the lock, a network thread could
        # still be packing w, and send half-changed weights.
        with self._lock:
            if self._closed:
                return None
            if kind not in self._bodies:
                with_weights, to_sub = kind
                asked = self.asked if to_sub else None
                packed = pack_request(self.request, self.manifest, self.weights_digest, with_weights, asked)
                self._bodies[kind] = packed
            return self._bodies[kind]

    def packed_body(
        self, weights_digest: str, to_sub_coordinator: bool = False, _silo: str = ""
    ) -> bytes | None:
        """Return the same without waiting; None if it is not packed yet."""
        return self._bodies.get(self._kind(weights_digest, to_sub_coordinator))

    def _kind(self, weights_digest: str, to_sub_coordinator: bool) -> tuple[bool, bool]:
        with_weights = weights_digest != self.weights_digest
        differs = bool(self.request.silo_weights) or self.asked != self.request.asked
        return with_weights, to_sub_coordinator and differs

    def close(self) -> None:
        """Give the task to no further silo."""
        with self._lock:
            self._closed = True
            self._bodies.clear()

    @property
    def max_bytes(self) -> int:
        """Return how large a silo's reply may be, in bytes."""
        return byte_size(schema.like for schema in self.schemas.values()) + header_room(self.schemas) + 8

    def max_aggregated_bytes(self, silos: int) -> int:
        """Return how large a sub-coordinator's reply for this many silos may be, in bytes."""
        return max_aggregated_bytes(self.step, silos)

    def read(self, body: bytes, silo: str) -> Reply:
        """Return a silo's reply; raise if it is not valid."""
        tensors, about = unpack(body, self.schemas)
        numbers, metrics = about.get("numbers", {}), about.get("metrics", {})
        check_numbers(numbers, self.step.numbers)
        check_metrics(metrics, self.step.metrics)
        return Reply(silo, self.request.step, self.request.round, tensors, numbers, metrics, checked=True)

    def read_aggregated(
        self, body: bytes, silos: Collection[str], wanted: Collection[str]
    ) -> AggregatedReply:
        """Return a sub-coordinator's reply for some of its silos; raise if it is not valid."""
        weights = request_weights(self.request, self.manifest)
        return read_aggregated_reply(body, self.step, self.request.round, silos, wanted, weights)


class RequestOpener:
    """Open the requests of a run one after another; hash the weights of each version once."""

    def __init__(self, manifest: Manifest) -> None:
        self.manifest = manifest
        self._last: OpenRequest | None = None

    def open(self, request: Request, asked: Collection[str] | None = None) -> OpenRequest:
        """Open a request to the silos that are `asked`, by default all, and close the one before it."""
        last, known = self._last, None
        if last is not None:
            last.close()
            known = last.weights_digest if last.request.version == request.version else None
        self._last = OpenRequest(request, self.manifest, known, asked)
        return self._last


def request_weights(request: Request, manifest: Manifest) -> SiloWeights:
    """Return the weights of silos as the server had learnt them when it made a request."""
    steps = manifest.weights_step, manifest.weights_power
    weights = make_weights(manifest.choices.silo_weights, manifest.silos, *steps)
    weights.restore(request.silo_weights)
    return weights


def pack_aggregated_reply(reply: AggregatedReply) -> bytes:
    """Return a sub-coordinator's reply as bytes; an infinite norm is sent as null."""
    about = {
        "replies": {
            silo: {
                "numbers": finite(one.numbers),
                "metrics": finite(one.metrics),
                "norms": finite(reply.norms[silo]),
            }
            for silo, one in reply.replies.items()
        },
        "lost": reply.lost,
        "lowest": {f"{group}/{name}": n for group, s in reply.sums.items() for name, n in s.lowest.items()},
    }
    return pack({group: sums.tensors for group, sums in reply.sums.items()}, about)


def max_aggregated_bytes(step: Step, silos: int) -> int:
    """Return how large a reply for this many silos may be, in bytes."""
    tensors = _largest(step, silos)
    return byte_size(tensors.values()) + header_room(tensors) + _room(silos) + 8


def read_aggregated_reply(
    body: bytes,
    step: Step,
    round_: int,
    silos: Collection[str],
    wanted: Collection[str],
    silo_weights: SiloWeights,
) -> AggregatedReply:
    """Return a sub-coordinator's reply for some of its `silos`; raise if it is not valid.

    `wanted` are those of its silos that have yet to reply.
    """
    forms, room = _sums_forms(step), _room(len(silos))
    entries, about = read_header(body, header_room(_largest(step, len(silos))) + room)
    replies, norms = _replies(about.get("replies"), step, round_, wanted)
    lowest = about.get("lowest")
    if not isinstance(lowest, dict):
        raise ProtocolError("its sums have no object of lowest words")
    expected: dict[str, TensorSchema] = {}
    for group, form in forms.items():
        found = _of_group(group, entries)
        shapes = {name: entry.get("shape") for name, entry in found.items() if isinstance(entry, dict)}
        rows = form.rows(shapes, _of_group(group, lowest))
        likes = form.tensors(len(replies), rows)
        expected |= {f"{group}/{name}": TensorSchema(like) for name, like in likes.items()}
    tensors, _ = unpack(body, expected, room)
    sums: dict[str, PackedSums] = {}
    for group, form in forms.items():
        sums[group] = PackedSums(tensors[group], _of_group(group, lowest))
        answer, lengths, weights = step.answers[group], list[float](), list[float]()
        for silo, reply in replies.items():
            # A product that is too large is infinite; a power would be an OverflowError.
            length = math.prod([norms[silo][group]] * answer.order)
            weight = silo_weights.of(silo, reply.numbers) if answer.weighted else None
            if length < math.inf:
                lengths.append(length)
                weights.append(1.0 if weight is None else weight)
        try:
            form.check(sums[group], lengths, weights)
        except ProtocolError as error:
            raise ProtocolError(f"{group}: {error}") from error
    lost = _lost(about.get("lost"), set(silos) - set(replies))
    return AggregatedReply(replies, norms, sums, lost)


def _replies(
    found: Any, step: Step, round_: int, wanted: Collection[str]
) -> tuple[dict[str, Reply], dict[str, dict[str, float]]]:
    """Return each silo's numbers and metrics, and the norms of its tensors."""
    if not isinstance(found, Mapping) or not found:
        raise ProtocolError("it replies for no silo")
    replies, norms = dict[str, Reply](), dict[str, dict[str, float]]()
    for silo, entry in found.items():
        if silo not in wanted:
            raise NotAskedError(
                f"it replies for {silo[:100]!r}, for which it is not asked now; ask for the task again"
            )
        try:
            if not isinstance(entry, Mapping) or set(entry) != {"numbers", "metrics", "norms"}:
                raise ProtocolError("its keys are not numbers, metrics and norms")
            check_numbers(entry["numbers"], step.numbers)
            check_metrics(entry["metrics"], step.metrics)
            norms[silo] = _norms(entry["norms"], step)
        except ProtocolError as error:
            raise ProtocolError(f"for silo {silo!r}: {error}") from error
        replies[silo] = Reply(silo, step.name, round_, {}, dict(entry["numbers"]), dict(entry["metrics"]))
    return replies, norms


def _norms(found: Any, step: Step) -> dict[str, float]:
    if not isinstance(found, Mapping) or set(found) != set(step.answers):
        raise ProtocolError("its norms are not those of the step's answers")
    norms = {group: math.inf if norm is None else norm for group, norm in found.items()}
    for group, norm in norms.items():
        if not _NORM.holds(norm):
            raise ProtocolError(f"the norm of its {group} is not a number of at least 0")
    return norms


def _lost(found: Any, others: set[str]) -> dict[str, str]:
    """Return why silos without a reply are lost; the sub-coordinator may have reported some before."""
    if not isinstance(found, Mapping):
        raise ProtocolError("its lost silos are not an object")
    if not all(isinstance(reason, str) and len(reason) <= _MAX_REASON_LENGTH for reason in found.values()):
        raise ProtocolError("its reasons for lost silos are not sentences")
    return {silo: reason for silo, reason in found.items() if silo in others}


def _sums_forms(step: Step) -> dict[str, SumsForm]:
    return {
        group: SumsForm(answer.aggregator, answer.like, answer.weighted)
        for group, answer in step.answers.items()
    }


def _largest(step: Step, silos: int) -> dict[str, Tensor]:
    """Return the tensors of a reply at their largest, by their names in a message."""
    return {
        f"{group}/{name}": tensor
        for group, form in _sums_forms(step).items()
        for name, tensor in form.tensors(silos).items()
    }


def _of_group(group: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a group of tensors, by their names in the group."""
    start = f"{group}/"
    return {name.removeprefix(start): value for name, value in values.items() if name.startswith(start)}


def _room(silos: int) -> int:
    """Return by how much a header may exceed what its tensors need: per silo as much as its own reply."""
    return min(_MAX_HEADER_BYTES, silos * HEADER_BYTES)
