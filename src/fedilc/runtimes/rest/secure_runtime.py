"""The coordinator's side of secure sums over HTTP: a step is one sum, or two for geometric means.

A sum is tried until it succeeds. An attempt asks all silos five times (`privacy/secure_sums.py`); a silo that
is lost before the list of survivors is signed is left out of it, if enough others remain and no earlier sum
of the round has it. Otherwise the run waits for it, and another attempt with new keys follows. A silo that is
removed for good, after the statistic of a penalty was summed, costs the round its penalty.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedilc.data.digests import tensors_digest
from fedilc.errors import ProtocolError, SilosLostError, silos_with_reasons
from fedilc.federation import Reply, Request
from fedilc.federation.program import STATE_ROUND
from fedilc.federation.protocol import TotalReply
from fedilc.federation.server import WithoutPenaltyError
from fedilc.privacy.identities import Roster
from fedilc.privacy.secure_sums import SumCollector, SumContext, threshold
from fedilc.privacy.words import VALUES, SumForm
from fedilc.runtimes.remote.manifest import Manifest, read_received
from fedilc.runtimes.remote.open_request import OpenRequest
from fedilc.runtimes.remote.secure_messages import (
    ANSWERS,
    SecureAnswer,
    Take,
    run_attempt,
    seen_digests,
    words_like,
)
from fedilc.runtimes.remote.wire import (
    MASK,
    TensorSchema,
    header_room,
    pack_request,
    read_header,
    unpack,
)
from fedilc.runtimes.rest.coordinator import RestRuntime
from fedilc.runtimes.rest.task_queue import TaskQueue
from fedilc.storage.files import byte_size

_HEADER_ROOM = 1 << 20
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 10.0
_POLL_SECONDS = 0.5
_MOST_REFUSALS = 8


class PhaseReply(Reply):
    """A silo's answer in one phase of a secure sum."""

    answer: SecureAnswer
    words: NDArray[Any] | None = None


class OpenPhase(OpenRequest):
    """One phase of a secure sum, as a request that silos can reply to; each silo gets its own message."""

    def __init__(
        self,
        request: Request,
        manifest: Manifest,
        message: Mapping[str, str],
        own: Mapping[str, Mapping[str, Any]],
        weights_digest: str,
        words: Tensor,
        sides: Tensor | None,
    ) -> None:
        super().__init__(request, manifest, weights_digest, own)
        self.name, self.phase = f"{message['attempt']}-{message['phase']}", message["phase"]
        self._message, self._own, self._sides = message, own, sides
        self._like = {"words/words": TensorSchema(words)} if self.phase == MASK else {}

    def body(self, weights_digest: str, _to_sub_coordinator: bool = False, silo: str = "") -> bytes | None:
        """Return the message for a silo whose weights have this digest; None once it is closed."""
        with self._lock:
            if self._closed or silo not in self._own:
                return None
            return pack_request(
                self.request,
                self.manifest,
                self.weights_digest,
                weights_digest != self.weights_digest,
                secure={**self._message, **self._own[silo]},
                sides=self._sides if self.phase == MASK else None,
                task=self.name,
            )

    def packed_body(
        self, _weights_digest: str, _to_sub_coordinator: bool = False, _silo: str = ""
    ) -> bytes | None:
        """Return None: each silo's message is packed for it."""
        return None

    @property
    def max_bytes(self) -> int:
        """Return how large a reply may be, in bytes."""
        tensors = [schema.like for schema in self._like.values()]
        return byte_size(tensors) + header_room(self._like) + _HEADER_ROOM

    def read(self, body: bytes, silo: str) -> PhaseReply:
        """Return a silo's answer; raise if it is not valid."""
        _, about = read_header(body, header_room(self._like) + _HEADER_ROOM)
        answer = read_received(SecureAnswer, about.get("secure"), "its answer")
        found = {key for key in ANSWERS.values() if getattr(answer, key) is not None}
        reply = PhaseReply(silo, self.request.step, self.request.round, checked=True)
        reply.answer = answer
        if answer.refused is None and answer.earlier is None:
            if found - {ANSWERS.get(self.phase)} or (self.phase != MASK and not found):
                raise ProtocolError(f"its answer is not one to the phase {self.phase!r}")
            if self.phase == MASK and (answer.state is None) == (STATE_ROUND in self.step.numbers):
                raise ProtocolError(
                    "its masked words must say the round of its control variate, if it has one"
                )
            tensors, _ = unpack(body, self._like, _HEADER_ROOM)
            reply.words = _as_words(tensors["words"]["words"]) if self.phase == MASK else None
        return reply


@dataclass(frozen=True)
class _Sum:
    """One sum of a step: what is asked, and the sides of geometric means that are added up."""

    request: Request
    form: SumForm
    part: str
    weights_digest: str
    exactly: bool
    kept: NDArray[np.bool_] | None = None
    check_states: Callable[[Mapping[str, int]], None] = lambda _states: None

    @property
    def sides(self) -> Tensor | None:
        if self.kept is None or not len(self.kept):
            return None
        return torch.from_numpy(np.packbits(self.kept))


class _TryAgainError(Exception):
    """An attempt cannot be completed; `over` are the silos that the next one must be over, if known."""

    def __init__(self, over: Sequence[str] = ()) -> None:
        super().__init__()
        self.over = tuple(over)


class _RemovedError(SilosLostError):
    """A sum needs a silo that never comes back; `silos` are the others."""

    def __init__(self, sentence: str, silos: Sequence[str]) -> None:
        super().__init__(sentence)
        self.silos = tuple(silos)


class SecureRuntime(RestRuntime):
    """A runtime over silos that join by HTTP and whose replies the coordinator sees in sums only."""

    sums_only = True

    def __init__(
        self,
        queue: TaskQueue,
        min_silos: int,
        round_timeout: float,
        roster: Roster,
        admits: Callable[[str], bool] = lambda _silo: True,
    ) -> None:
        self.roster, self._admits = roster, admits
        self._refusals: dict[str, tuple[str, int]] = {}
        self._measured: NDArray[np.bool_] | None = None
        super().__init__(queue, max(min_silos, threshold(len(roster.keys))), round_timeout)

    def total(
        self,
        request: Request,
        like: Mapping[str, Mapping[str, Tensor]],
        exactly: bool,
        check_states: Callable[[Mapping[str, int]], None],
    ) -> TotalReply:
        """Return the sums of a step over all silos asked, or over those that were not lost."""
        step = self.queue.manifest.program.steps[request.step]
        form = SumForm(self.queue.manifest.program, step, len(self.queue.silos))
        digest = tensors_digest(request.weights)
        if step.metrics and self._measured is not None:
            words, silos = self._repeat(
                _Sum(request, form, VALUES, digest, False, self._measured), request.silos
            )
            return form.total(silos, like, words, None, self._measured)
        first = _Sum(request, form, form.parts[0], digest, exactly or form.depends_on_silos)
        first = replace(first, check_states=check_states)
        try:
            found, silos = self._repeat(first, request.silos)
        except _RemovedError as removed:
            if not step.sends or len(removed.silos) < self.min_silos:
                raise
            raise WithoutPenaltyError(removed.silos, str(removed)) from None
        try:
            if first.part == VALUES:
                return form.total(silos, like, found, None, np.zeros(0, bool))
            kept = form.kept(found)
            if step.metrics:  # which silos have a metric follows from their validation sets
                self._measured = kept
            values, silos = self._repeat(_Sum(request, form, VALUES, digest, True, kept), silos)
            return form.total(silos, like, values, found, kept)
        except ProtocolError as error:
            raise SilosLostError(f"round {request.round}: {error}") from error

    def _repeat(self, what: _Sum, silos: Sequence[str]) -> tuple[NDArray[Any], tuple[str, ...]]:
        """Return the total of a sum, and the silos it is over, after as many attempts as it takes."""
        pause, exactly = _FIRST_PAUSE, what.exactly
        while True:
            request = replace(what.request, silos=tuple(silos))
            try:
                found = self._attempt(replace(what, request=request), exactly)
                self._refusals.clear()
                return found
            except _TryAgainError as again:
                if again.over:
                    silos, exactly = again.over, True
                silos = self._without_removed(what, silos, exactly)
                time.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE)

    def _without_removed(self, what: _Sum, silos: Sequence[str], exactly: bool) -> list[str]:
        """Return the silos without those that never come back; raise if the sum needs one of them."""
        revoked = [name for name in silos if not self._admits(name)]
        self.queue.leave_out_of_run(dict.fromkeys(revoked, "its token was revoked"))
        aside = [name for name in silos if self.queue.silos[name].state == "set aside"]
        left = [name for name in silos if name not in aside]
        if aside and (exactly or len(left) < self.min_silos):
            reasons = silos_with_reasons(self.queue.reasons(aside))
            raise _RemovedError(
                f"round {what.request.round} needs {reasons}: a sum without it would reveal its part of "
                "another; correct the problem there and resume",
                left,
            )
        return left

    def _attempt(self, what: _Sum, exactly: bool) -> tuple[NDArray[Any], tuple[str, ...]]:
        manifest, request = self.queue.manifest, what.request
        silos, kind, attempt = request.silos, what.form.kind(what.part), secrets.token_hex(8)
        context = SumContext(manifest.hash, self.roster.digest, request.round, kind, attempt, manifest.fewest)
        collector = SumCollector(context, self.roster)
        seen = seen_digests(request, manifest.hash, what.weights_digest, what.sides)

        like, needed = words_like(what.form, what.part, what.kept), len(silos) if exactly else self.min_silos
        enough = {"sign": threshold(len(self.roster.keys)), "unmask": threshold(len(self.roster.keys))}

        def ask(phase: str, own: Mapping[str, Mapping[str, Any]], take: Take) -> None:
            message = {"phase": phase, "part": what.part, "attempt": attempt}
            opened = OpenPhase(request, manifest, message, own, what.weights_digest, like, what.sides)
            self._collect(opened, enough.get(phase, needed), take)

        try:
            total = run_attempt(collector, silos, seen, ask, what.check_states)
        except ProtocolError as error:
            self._refused("", str(error))
            raise _TryAgainError from error
        for liar in collector.liars:
            self.queue.strike(liar, "it sent a wrong share of a secret")
        return total, tuple(name for name in silos if name in collector.survivors)

    def _collect(self, opened: OpenPhase, needed: int, take: Take) -> None:
        """Take the answers of a phase until all silos have answered, or `needed` have and the time is up."""
        self.queue.open(opened)
        waiting, taken, on_time = set(opened.asked), 0, True
        deadline = time.monotonic() + self.round_timeout
        try:
            while waiting and taken + len(waiting) >= needed:
                spooled = self.queue.take_reply(_POLL_SECONDS)
                if spooled is not None:
                    (silo,) = spooled.silos
                    waiting.discard(silo)
                    taken += self._take(silo, spooled.reply(), take)
                    continue
                late = time.monotonic() >= deadline or self.queue.all_gone(waiting)
                revoked = not all(self._admits(name) for name in waiting)
                if self.queue.is_settled() or revoked or (late and taken >= needed):
                    break
                if late and on_time:
                    on_time = False
                    self.queue.mark_late(waiting)
        finally:
            self.queue.close(tuple(sorted(waiting)))
        if taken < needed:
            raise _TryAgainError

    def _take(self, silo: str, reply: object, take: Take) -> bool:
        """Take one answer; return False if the silo cannot go on with this attempt."""
        assert isinstance(reply, PhaseReply)
        if reply.answer.earlier is not None and self._is_possible(reply.answer.earlier):
            raise _TryAgainError(reply.answer.earlier)
        if reply.answer.refused is not None:
            self._refused(silo, reply.answer.refused)
            return False
        try:
            take(silo, reply)
        except ProtocolError as error:
            self.queue.strike(silo, str(error))
            return False
        return True

    def _is_possible(self, silos: Sequence[str]) -> bool:
        """Return whether a total over these silos, as one of them says, may have been signed."""
        return set(silos) <= set(self.silos) and len(set(silos)) >= threshold(len(self.roster.keys))

    def _refused(self, silo: str, reason: str) -> None:
        """Show why a silo refuses a phase; raise if it refuses again and again for the same reason."""
        if silo:
            self.queue.note(silo, reason)
        before, times = self._refusals.get(silo, ("", 0))
        self._refusals[silo] = reason, times + 1 if before == reason else 1
        if self._refusals[silo][1] >= _MOST_REFUSALS:
            who = f"silo {silo!r} refuses: " if silo else ""
            raise SilosLostError(f"{who}{reason}; correct the problem and resume")


def _as_words(words: Tensor) -> NDArray[Any]:
    return words.numpy().view(np.uint32 if words.dtype == torch.int32 else np.uint64)
