"""A task that is up: the bytes that silos get, and what their answers must be."""

from __future__ import annotations

import threading
from collections.abc import Collection

from fedilc.federation import Carried, Reply, Request
from fedilc.federation.steps import check_metrics, check_numbers
from fedilc.runtimes.remote.carried import most_carried_bytes, read_carried
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
        self._bodies: dict[tuple[bool, bool], bytes] = {}
        self._packing = threading.Lock()
        self._closed = False

    def body(self, have: str, to_carrier: bool = False) -> bytes | None:
        """The task for a silo that has the weights of this name; None once the task is down.

        That for a sub-coordinator is the same, unless silos have weights that the server has learnt.
        """
        kind = self._kind(have, to_carrier)
        with self._packing:
            if self._closed:
                return None
            if kind not in self._bodies:
                self._bodies[kind] = pack_request(self.request, self.manifest, self.weights, *kind)
            return self._bodies[kind]

    def at_hand(self, have: str, to_carrier: bool = False) -> bytes | None:
        """The same where it is packed already, without waiting for it."""
        return self._bodies.get(self._kind(have, to_carrier))

    def _kind(self, have: str, to_carrier: bool) -> tuple[bool, bool]:
        return have != self.weights, to_carrier and bool(self.request.silo_weights)

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

    def most_carried_bytes(self, silos: int) -> int:
        """How large a sub-coordinator's answer for so many silos may be."""
        return most_carried_bytes(self.step, silos)

    def read(self, body: bytes, silo: str) -> Reply:
        """Return a silo's answer, or raise an error that says what is wrong with it."""
        tensors, about = unpack(body, self.expected)
        numbers, metrics = about.get("numbers", {}), about.get("metrics", {})
        check_numbers(numbers, self.step.numbers)
        check_metrics(metrics, self.step.metrics)
        return Reply(silo, self.request.step, self.request.round, tensors, numbers, metrics)

    def read_carried(
        self, body: bytes, carrier: str, silos: Collection[str], wanted: Collection[str]
    ) -> Carried:
        """Return a sub-coordinator's answer for some of its silos, or raise an error as `read` does."""
        return read_carried(body, self.step, self.request.round, carrier, silos, wanted)


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
