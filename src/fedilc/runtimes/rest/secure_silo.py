"""A silo's side of secure sums: it answers phases, and never signs a second total over other silos."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import torch

from fedilc.errors import ConfigError, NonFiniteError, ProtocolError, writing
from fedilc.federation import Reply, Request
from fedilc.federation.client import SiloClient
from fedilc.federation.program import STATE_ROUND
from fedilc.privacy.identities import Identity, Roster
from fedilc.privacy.masks import Words
from fedilc.privacy.secure_sums import OtherListError, SiloSum, SumContext
from fedilc.privacy.words import COUNTS, SumForm
from fedilc.runtimes.remote.manifest import Manifest, read_received
from fedilc.runtimes.remote.secure_messages import SecureMessage, answer_of, own_digests
from fedilc.runtimes.remote.wire import MASK, ReceivedRequest, pack
from fedilc.runtimes.rest.http_client import SiloLog
from fedilc.storage.files import append_line, complete_lines, json_bytes, parse_json, replace_lines

_ATTEMPTS_KEPT = 4


@dataclass(frozen=True)
class SecureMember:
    """A silo's key and its own copy of the roster; with them it takes part only in runs with secure sums."""

    identity: Identity
    roster: Roster

    def require_fits(self, manifest: Manifest, silo: str) -> None:
        """Raise if the run is not one that this silo takes part in."""
        if not manifest.secure:
            raise ConfigError(
                "the run has no secure sums, and this silo takes part only with them; leave out `key`, "
                "`roster` and `require_secure` if the coordinator may see its answers"
            )
        if sorted(self.roster.keys) != sorted(manifest.silos):
            raise ConfigError("the silos of the run are not those of this silo's roster; agree on one roster")
        if manifest.roster != self.roster.digest:
            raise ConfigError(
                f"the coordinator has the roster {str(manifest.roster)[:16]}, and this silo "
                f"{self.roster.digest[:16]}; compare the rosters with the other silos before anybody joins"
            )
        if self.roster.keys[silo] != self.identity.public:
            raise ConfigError(f"the roster has another key for silo {silo!r} than the one in its key file")


@dataclass(frozen=True)
class Total:
    """A total that a silo is asked to sign: of what, and what it is computed from.

    Args:
        run: the manifest's hash.
        round: the round.
        what: the kind of the total; both kinds of update step add up the same gradients.
        weights: the digest of the weights.
        task: the digest of everything else that an answer depends on.
    """

    run: str
    round: int
    what: str
    weights: str
    task: str

    @property
    def name(self) -> str:
        """Return what may be known over one set of silos only, in whichever round or run."""
        return f"{self.what} {self.weights}"

    @property
    def place(self) -> str:
        """Return what a run may ask for once."""
        return f"{self.run[:16]} {self.round} {self.what}"


class SignedTotals:
    """The totals that a silo has signed, in all its runs and also on disk.

    Two totals of one kind at the same weights, over S and over S without e, subtract to the answer of e. So
    the first one decides over which silos such totals are. A round of a run has one total of a kind: the
    coordinator learns no more totals than the run has rounds and steps.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.path = path
        self._silos: dict[str, list[str]] = {}
        self._tasks: dict[str, str] = {}
        self._size = 0
        if path is not None and path.exists():
            replace_lines(path, complete_lines(path))  # a line that a crash cut off was not signed yet
        self._read()

    def permit(self, total: Total, survivors: Sequence[str]) -> None:
        """Store a total that is about to be signed; raise if it contradicts one that was signed before."""
        self._read()
        before, task = self._silos.get(total.name), f"{total.weights} {total.task}"
        if before is not None and before != list(survivors):
            raise OtherListError(before)
        if self._tasks.get(total.place, task) != task:
            raise ProtocolError(
                f"this silo has signed another {total.what} of round {total.round}, and signs one per round"
            )
        if before is not None and total.place in self._tasks:
            return
        line = {"total": total.name, "place": total.place, "task": task, "silos": list(survivors)}
        self._add(line)
        if self.path is not None:
            with writing(self.path):
                self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                append_line(self.path, json_bytes(line))
                self._size = self.path.stat().st_size

    def _add(self, line: Mapping[str, Any]) -> None:
        self._silos[str(line["total"])] = [str(name) for name in line["silos"]]
        self._tasks[str(line["place"])] = str(line["task"])

    def _read(self) -> None:
        """Read the file if it has changed: another run of this silo may sign too."""
        if self.path is None or not self.path.exists() or self.path.stat().st_size == self._size:
            return
        try:
            for line in complete_lines(self.path):
                self._add(parse_json(line))
        except (ValueError, KeyError, TypeError) as error:
            raise ConfigError(
                f"{self.path} with what this silo has signed cannot be read: {error}; restore it"
            ) from error
        self._size = self.path.stat().st_size


class SecureSilo:
    """The phases of all secure sums of one silo in one run."""

    def __init__(
        self, client: SiloClient, manifest: Manifest, member: SecureMember, folder: Path, log: SiloLog
    ) -> None:
        self.client, self.manifest, self.log = client, manifest, log
        self.identity, self.roster, self.name = member.identity, member.roster, client.silo.name
        self.signed = SignedTotals(folder / f"signed-totals-{quote(self.name, safe='')}.jsonl")
        self._attempts: OrderedDict[str, tuple[SiloSum, dict[str, str]]] = OrderedDict()
        self._computed: tuple[str, Reply] | None = None
        # Kept also if a phase is refused: the coordinator then leaves them out of the next message.
        self.weights: Mapping[str, torch.Tensor] = client.weights

    def answer(self, received: ReceivedRequest) -> bytes:
        """Return the silo's answer to a phase; a phase that it refuses is answered with the reason."""
        groups: dict[str, dict[str, torch.Tensor]] = {}
        try:
            if received.secure is None:
                raise ProtocolError("the coordinator asks for a plain answer in a run with secure sums")
            message = read_received(SecureMessage, received.secure, "the coordinator's message")
            if message.phase == MASK:
                self.weights = received.request.weights
                words = self._mask(received, message)
                groups = {"words": {"words": torch.from_numpy(_signed_view(words))}}
                found = answer_of(state=self._state)
            else:
                found = self._answer(received.request, message)
        except OtherListError as error:
            found = answer_of(refused=str(error)[:1000], earlier=list(error.survivors))
        except (ProtocolError, NonFiniteError) as error:
            self.log(f"refused: {error}", "event")
            found = answer_of(refused=str(error)[:1000])
        return pack(groups, {"secure": found})

    def _answer(self, request: Request, message: SecureMessage) -> dict[str, object]:
        if message.phase == "offer":
            if message.attempt not in self._attempts:
                form = self._form(request)
                context = SumContext(
                    self.manifest.hash,
                    self.roster.digest,
                    request.round,
                    form.kind(message.part),
                    message.attempt,
                    self.manifest.fewest,
                )
                self._attempts[message.attempt] = SiloSum(self.identity, self.roster, self.name, context), {}
                while len(self._attempts) > _ATTEMPTS_KEPT:
                    self._attempts.popitem(last=False)
            return answer_of(offer=self._sum(request, message)[0].offer())
        own, seen = self._sum(request, message)
        if message.phase == "share":
            return answer_of(sealed=own.share(message.offers))
        if message.phase == "sign":
            self._require_silos(request, message.survivors)
            total = Total(
                self.manifest.hash,
                request.round,
                own.context.what,
                seen.get("weights", ""),
                seen.get("content", ""),
            )
            return answer_of(
                signature=own.sign(message.survivors, lambda silos: self.signed.permit(total, silos))
            )
        return answer_of(shares=own.unmask(message.signatures))

    def _mask(self, received: ReceivedRequest, message: SecureMessage) -> Words:
        request = received.request
        own, seen = self._sum(request, message)
        form = self._form(request)
        seen |= own_digests(request, self.manifest.hash, received.sides)

        def words() -> Words:
            reply = self._reply(request, seen["task"])
            if message.part == COUNTS:
                return form.counts(reply)
            bits = np.zeros(0, np.uint8) if received.sides is None else received.sides.numpy()
            return form.values(reply, np.unpackbits(bits, count=form.sides).astype(bool))

        return own.mask(message.sealed, words, seen)

    def _sum(self, request: Request, message: SecureMessage) -> tuple[SiloSum, dict[str, str]]:
        """Return the attempt of a message; raise if it is unknown here, or of another round or sum."""
        if message.attempt not in self._attempts:
            raise ProtocolError(
                "this silo was restarted and has no keys of this attempt; try again with new ones"
            )
        own, seen = self._attempts[message.attempt]
        if (own.context.round, own.context.what) != (request.round, self._form(request).kind(message.part)):
            raise ProtocolError("the coordinator uses one attempt for two sums")
        return own, seen

    def _require_silos(self, request: Request, survivors: Sequence[str]) -> None:
        """Raise if answers depend on the number of silos, and the list is not of those silos."""
        form = self._form(request)
        if form.depends_on_silos and sorted(survivors) != sorted(request.silos):
            raise ProtocolError("the list of survivors is not of the silos with which this step was computed")

    @property
    def _state(self) -> int | None:
        """Return the round of the control variate of the last reply; None without control variates."""
        assert self._computed is not None
        found = self._computed[1].numbers.get(STATE_ROUND)
        return None if found is None else int(found)

    def _form(self, request: Request) -> SumForm:
        program = self.manifest.program
        return SumForm(program, program.steps[request.step], len(self.manifest.silos))

    def _reply(self, request: Request, task: str) -> Reply:
        """Return the reply to a task, which its two sums share."""
        if self._computed is None or self._computed[0] != task:
            self._computed = task, self.client.answer(request)
        return self._computed[1]


def _signed_view(words: Words) -> Words:
    return words.view(np.int32 if words.dtype == np.uint32 else np.int64)
