"""A silo's side of secure sums: it answers phases, and never signs a second total over other silos."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

import numpy as np
import torch

from fedilc.errors import ConfigError, NonFiniteError, ProtocolError, writing
from fedilc.federation import Reply, Request
from fedilc.federation.client import SiloClient
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
    """What a silo needs for secure sums: its key, its copy of the roster, and whether it insists on them."""

    identity: Identity | None = None
    roster: Roster | None = None
    required: bool = False

    def require_fits(self, manifest: Manifest, silo: str) -> None:
        """Raise if the run is not one that this silo takes part in."""
        if not manifest.secure:
            if self.required:
                raise ConfigError(
                    "the run has no secure sums, and this silo takes part only with them (`require_secure`)"
                )
            return
        if self.identity is None or self.roster is None:
            raise ConfigError(
                "the run has secure sums: name this silo's `key`, which `fedilc key new` makes, and the "
                "`roster` of all silos' keys"
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


@dataclass
class SignedTotals:
    """Over which silos each total was signed, by its kind and the digest of the weights, also on disk."""

    path: Path | None = None
    known: dict[str, list[str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.path is not None and self.path.exists():
            lines = complete_lines(self.path)
            replace_lines(self.path, lines)  # a line that a crash cut off was not signed yet
            for line in lines:
                try:
                    found = parse_json(line)
                    self.known[str(found["total"])] = [str(name) for name in found["silos"]]
                except (ValueError, KeyError, TypeError) as error:
                    raise ConfigError(
                        f"{self.path} with what this silo has signed cannot be read: {error}; restore it"
                    ) from error

    def permit(self, total: str, survivors: Sequence[str]) -> None:
        """Store the silos of a total that is about to be signed; raise if it was signed over others."""
        before = self.known.get(total)
        if before is not None and before != list(survivors):
            raise OtherListError(before)
        if before is None:
            self.known[total] = list(survivors)
            if self.path is not None:
                with writing(self.path):
                    self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                    append_line(self.path, json_bytes({"total": total, "silos": list(survivors)}))


class SecureSilo:
    """The phases of all secure sums of one silo in one run."""

    def __init__(
        self, client: SiloClient, manifest: Manifest, member: SecureMember, folder: Path, log: SiloLog
    ) -> None:
        assert member.identity is not None
        assert member.roster is not None
        self.client, self.manifest, self.log = client, manifest, log
        self.identity, self.roster, self.name = member.identity, member.roster, client.silo.name
        file = f"signed-totals-{quote(self.name, safe='')}-{manifest.hash[:16]}.jsonl"
        self.signed = SignedTotals(folder / file)
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
                found = answer_of()
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
                )
                self._attempts[message.attempt] = SiloSum(self.identity, self.roster, self.name, context), {}
                while len(self._attempts) > _ATTEMPTS_KEPT:
                    self._attempts.popitem(last=False)
            return answer_of(offer=self._sum(request, message)[0].offer())
        own, seen = self._sum(request, message)
        if message.phase == "share":
            return answer_of(sealed=own.share(message.offers))
        if message.phase == "sign":
            # One total of a kind per weights: the difference of two would be what one silo sent.
            total = f"{own.context.what} {seen.get('weights', '')}"
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
