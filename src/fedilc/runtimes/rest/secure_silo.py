"""A silo's side of secure sums: it answers phases, and never signs a second total over other silos."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
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
from fedilc.runtimes.remote.secure_messages import (
    SecureMessage,
    SurveyMessage,
    answer_of,
    own_digests,
    survey_digests,
)
from fedilc.runtimes.remote.survey import Survey
from fedilc.runtimes.remote.wire import MASK, ReceivedRequest, pack
from fedilc.runtimes.rest.http_client import SiloLog
from fedilc.storage.files import append_line, complete_lines, json_bytes, parse_json, replace_lines

if TYPE_CHECKING:
    from fedilc.data.tables.silo_summary import SiloSummary

_ATTEMPTS_KEPT = 4


@dataclass(frozen=True)
class SecureMember:
    """A silo's key and its own copy of the roster; with them it takes part only in runs with secure sums."""

    identity: Identity
    roster: Roster

    def require_fits(self, run: Manifest | Survey, silo: str) -> None:
        """Raise if a run, or the survey before it, is not one that this silo takes part in."""
        if run.roster is None or (isinstance(run, Manifest) and not run.secure):
            raise ConfigError(
                "the run has no secure sums, and this silo takes part only with them; leave out `key`, "
                "`roster` and `require_secure` if the coordinator may see its answers"
            )
        if sorted(self.roster.keys) != sorted(run.silos):
            raise ConfigError("the silos of the run are not those of this silo's roster; agree on one roster")
        if run.roster != self.roster.digest:
            raise ConfigError(
                f"the coordinator has the roster {run.roster[:16]}, and this silo "
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


class SiloSums:
    """A silo's part in all sums: its keys of the last attempts, and what it has signed."""

    def __init__(self, member: SecureMember, name: str, folder: Path, log: SiloLog) -> None:
        self.identity, self.roster, self.name, self.log = member.identity, member.roster, name, log
        self.signed = SignedTotals(folder / f"signed-totals-{quote(name, safe='')}.jsonl")
        self._attempts: OrderedDict[str, tuple[SiloSum, dict[str, str]]] = OrderedDict()

    def answer(
        self,
        message: SecureMessage,
        context: SumContext,
        seen: Mapping[str, str],
        words: Callable[[], Words],
        same: str = "",
    ) -> tuple[dict[str, Any], Words | None]:
        """Return the answer to a phase, and the masked words if that is the phase; raise if it is refused.

        `seen` are digests of what the words are computed from; they are signed with the list of survivors.
        Totals that have `same` in common, by default the weights, are over the same silos.
        """
        if message.phase == "offer" and message.attempt not in self._attempts:
            self._attempts[message.attempt] = SiloSum(self.identity, self.roster, self.name, context), {}
            while len(self._attempts) > _ATTEMPTS_KEPT:
                self._attempts.popitem(last=False)
        if message.attempt not in self._attempts:
            raise ProtocolError(
                "this silo was restarted and has no keys of this attempt; try again with new ones"
            )
        own, kept = self._attempts[message.attempt]
        if own.context != context:
            raise ProtocolError("the coordinator uses one attempt for two sums")
        if message.phase == "offer":
            return answer_of(offer=own.offer()), None
        if message.phase == "share":
            return answer_of(sealed=own.share(message.offers)), None
        if message.phase == MASK:
            kept |= seen
            return {}, own.mask(message.sealed, words, seen)
        if message.phase == "sign":
            what = same or kept.get("weights", ""), kept.get("content", "")
            total = Total(context.run, context.round, context.what, *what)
            signature = own.sign(message.survivors, lambda silos: self.signed.permit(total, silos))
            return answer_of(signature=signature), None
        return answer_of(shares=own.unmask(message.signatures)), None

    def refused(self, error: ProtocolError | NonFiniteError) -> dict[str, Any]:
        """Return the answer to a phase that is refused."""
        if isinstance(error, OtherListError):
            return answer_of(refused=str(error)[:1000], earlier=list(error.survivors))
        self.log(f"refused: {error}", "event")
        return answer_of(refused=str(error)[:1000])


class SecureSilo:
    """One silo's answers to the phases of all secure sums of a run."""

    def __init__(
        self, client: SiloClient, manifest: Manifest, member: SecureMember, folder: Path, log: SiloLog
    ) -> None:
        self.client, self.manifest = client, manifest
        self.sums = SiloSums(member, client.silo.name, folder, log)
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
            found, words = self._answer(received, message)
            if words is not None:
                groups = {"words": {"words": torch.from_numpy(_signed_view(words))}}
                found = answer_of(state=self._state)
        except (ProtocolError, NonFiniteError) as error:
            found = self.sums.refused(error)
        return pack(groups, {"secure": found})

    def _answer(
        self, received: ReceivedRequest, message: SecureMessage
    ) -> tuple[dict[str, Any], Words | None]:
        request, form = received.request, self._form(received.request)
        context = SumContext(
            self.manifest.hash,
            self.sums.roster.digest,
            request.round,
            form.kind(message.part),
            message.attempt,
            self.manifest.fewest,
        )
        seen: dict[str, str] = {}
        if message.phase == MASK:
            self.weights = request.weights
            seen = own_digests(request, self.manifest.hash, received.sides)
        if message.phase == "sign" and form.depends_on_silos:
            _require_silos(request, message.survivors)

        def words() -> Words:
            reply = self._reply(request, seen["task"])
            if message.part == COUNTS:
                return form.counts(reply)
            bits = np.zeros(0, np.uint8) if received.sides is None else received.sides.numpy()
            return form.values(reply, np.unpackbits(bits, count=form.sides).astype(bool))

        return self.sums.answer(message, context, seen, words)

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


class SurveySilo:
    """One silo's answers to the phases of a survey in secure sums.

    Args:
        survey: what is asked.
        summary: the summary of its table, to which its owner has agreed.
        table: the digest of the table; sums of one table are over one set of silos, in all its runs.
        sums: its keys, and what it has signed.
    """

    def __init__(self, survey: Survey, summary: SiloSummary, table: str, sums: SiloSums) -> None:
        from fedilc.privacy.survey_sums import SurveyForm

        self.survey, self.summary, self.table, self.sums = survey, summary, table, sums
        self.form = SurveyForm(survey.table)
        self.form.require_declared()
        self.flags = self.form.flags(summary)

    def answer(self, values: object) -> dict[str, Any]:
        """Return the answer to a phase, as JSON."""
        message = read_received(SurveyMessage, values, "the coordinator's message")
        about = {"attempt": message.attempt, "phase": message.phase}
        try:
            run, least = self.survey.hash, self.survey.members or len(self.survey.silos)
            what = f"survey {message.part}"
            context = SumContext(run, self.sums.roster.digest, 0, what, message.attempt, least)
            seen = survey_digests(run, message.kept)
            found, masked = self.sums.answer(message, context, seen, lambda: self._words(message), self.table)
            if masked is not None:
                found = {"words": masked.astype(masked.dtype.newbyteorder("<")).tobytes().hex()}
        except ProtocolError as error:
            found = self.sums.refused(error)
        return found | about

    def _words(self, message: SurveyMessage) -> Words:
        if message.part == COUNTS:
            return self.flags.copy()
        size = 2 * len(self.form.columns)
        bits = np.frombuffer(bytes.fromhex(message.kept), np.uint8)
        if len(bits) != -(-size // 8):
            raise ProtocolError("the coordinator asks for other columns than those of the survey")
        return self.form.values(self.summary, np.unpackbits(bits, count=size).astype(bool))


def _require_silos(request: Request, survivors: Sequence[str]) -> None:
    """Raise if the list is not of the silos on whose number the answers to the request depend."""
    if sorted(survivors) != sorted(request.silos):
        raise ProtocolError("the list of survivors is not of the silos with which this step was computed")


def _signed_view(words: Words) -> Words:
    return words.view(np.int32 if words.dtype == np.uint32 else np.int64)
