"""A task that is up: the bytes that silos get, and what their answers must be."""

from __future__ import annotations

import threading

from fedilc.federation import Reply, Request
from fedilc.federation.steps import check_metrics, check_numbers
from fedilc.runtimes.remote.manifest import Manifest, tensors_digest
from fedilc.runtimes.remote.wire import answer_forms, header_room, pack_request, task_name, unpack


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
        self.step = manifest.program.steps[request.step]
        self.expected = answer_forms(self.step, manifest.wire)
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
                    self.request, self.manifest, self.weights, with_weights
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
        tensors = sum(form.like.numel() * form.like.element_size() for form in self.expected.values())
        return tensors + header_room(self.expected) + 8

    def read(self, body: bytes, silo: str) -> Reply:
        """Return a silo's answer, or raise an error that says what is wrong with it."""
        tensors, about = unpack(body, self.expected)
        numbers, metrics = about.get("numbers", {}), about.get("metrics", {})
        check_numbers(numbers, self.step.numbers)
        check_metrics(metrics, self.step.metrics)
        return Reply(silo, self.request.step, self.request.round, tensors, numbers, metrics)


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
