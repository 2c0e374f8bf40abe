"""An open request: the bytes that silos receive, the limit on their replies, and how replies are read."""

from __future__ import annotations

import threading
from collections.abc import Collection

from fedilc.data.digest import tensors_digest
from fedilc.federation import AggregatedReply, Reply, Request
from fedilc.federation.silo_weights import SiloWeights, make_weights
from fedilc.federation.steps import check_metrics, check_numbers
from fedilc.federation.tensor_files import byte_size
from fedilc.runtimes.remote.aggregated_reply import max_aggregated_bytes, read_aggregated_reply
from fedilc.runtimes.remote.manifest import Manifest
from fedilc.runtimes.remote.wire import header_room, pack_request, reply_schemas, task_name, unpack


def request_weights(request: Request, manifest: Manifest) -> SiloWeights:
    """Return the weights of silos, as the server has learnt them when it makes a request."""
    steps = manifest.weights_step, manifest.weights_power
    weights = make_weights(manifest.choices.silo_weights, manifest.silos, *steps)
    weights.restore(request.silo_weights)
    return weights


class OpenRequest:
    """A request that silos can reply to.

    Its weights are the server's own tensors, not a copy: they are packed when the first silo needs them, and
    never after `close`, because the server may change them then. `asked` are the silos that must reply, by
    default all of the request: a sub-coordinator may still wait for only some of them.
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

    def body(self, weights_digest: str, to_sub_coordinator: bool = False) -> bytes | None:
        """Return the task for a silo whose weights have this digest; None once it is closed.

        The task for a sub-coordinator differs only if there are adaptive weights of silos, or if not all of
        the request's silos are asked.
        """
        kind = self._kind(weights_digest, to_sub_coordinator)
        with self._lock:
            if self._closed:
                return None
            if kind not in self._bodies:
                with_weights, to_sub = kind
                asked = self.asked if to_sub else None
                packed = pack_request(self.request, self.manifest, self.weights_digest, with_weights, asked)
                self._bodies[kind] = packed
            return self._bodies[kind]

    def packed_body(self, weights_digest: str, to_sub_coordinator: bool = False) -> bytes | None:
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
        return Reply(silo, self.request.step, self.request.round, tensors, numbers, metrics)

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
