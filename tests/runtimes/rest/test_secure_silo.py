"""What a silo refuses in a run with secure sums, and what it remembers."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fedilc.errors import ConfigError, ProtocolError
from fedilc.federation import Reply, Request
from fedilc.federation.program import UPDATE
from fedilc.privacy.identities import Roster, make_roster, new_identity
from fedilc.privacy.secure_sums import OtherListError
from fedilc.privacy.words import COUNTS, VALUES, SumForm
from fedilc.runtimes.remote.manifest import Manifest
from fedilc.runtimes.remote.run import RemoteRun
from fedilc.runtimes.remote.wire import ReceivedRequest, read_header
from fedilc.runtimes.rest.membership import RefusedError
from fedilc.runtimes.rest.secure_silo import SecureMember, SecureSilo, SignedTotals, Total
from fedilc.runtimes.rest.task_queue import TaskQueue
from rest import remote, request_for

SILOS = ("a", "b", "c", "d", "e")


class OneSilo:
    """Answers alike to every request, and counts how often it computes."""

    def __init__(self, name: str, manifest: Manifest) -> None:
        self.silo, self.manifest, self.computed = self, manifest, 0
        self.name, self.weights = name, dict[str, Tensor]()

    def answer(self, request: Request) -> Reply:
        self.computed += 1
        step = self.manifest.program.steps[request.step]
        reply = Reply(self.name, request.step, request.round)
        for group, answer in step.answers.items():
            reply.tensors[group] = {name: torch.ones(one.shape) for name, one in answer.like.items()}
        known = {"loss": 0.5, "examples": 10, "clipped": 0, "distance": 0.25}
        reply.numbers = {name: known[name] for name in step.numbers}
        return reply


class Federation:
    """Five silos with keys, whose coordinator is the test."""

    def __init__(self, folder: Path, algorithm: str = "fedsgd", min_silos: int | None = 4) -> None:
        self.folder, self.said = folder, list[str]()
        self.identities = {name: new_identity(folder / name) for name in SILOS}
        self.roster = make_roster(f"{name}={one.public}" for name, one in self.identities.items())
        settings = remote(SILOS, secure=True, algorithm=algorithm, min_silos=min_silos)
        self.manifest = RemoteRun.of(settings, Path(), roster=self.roster.digest).manifest
        self.request = request_for(TaskQueue(self.manifest), UPDATE)
        self.clients = {name: OneSilo(name, self.manifest) for name in SILOS}
        self.silos = {name: self.silo(name) for name in SILOS}

    def silo(self, name: str) -> SecureSilo:
        member = SecureMember(self.identities[name], self.roster)

        def log(sentence: str, _kind: str = "event", /) -> None:
            self.said.append(sentence)

        return SecureSilo(self.clients[name], self.manifest, member, self.folder, log)

    def ask(self, name: str, phase: str, attempt: str = "0" * 16, **more: Any) -> dict[str, Any]:
        """A phase of the sum of values; the answer's JSON, with the words under their name."""
        request = more.pop("request", self.request)
        secure = {"phase": phase, "part": more.pop("part", VALUES), "attempt": attempt}
        sides: Tensor | None = more.pop("sides", None)
        received = ReceivedRequest(
            request, "", self.manifest.hash, "", frozenset(SILOS), secure | more, sides
        )
        body = self.silos[name].answer(received)
        _, about = read_header(body, 1 << 20)
        return about["secure"]

    def offers(self, attempt: str = "0" * 16) -> dict[str, Any]:
        return {name: self.ask(name, "offer", attempt)["offer"] for name in SILOS}

    def up_to_masks(self, attempt: str = "0" * 16) -> None:
        offers = self.offers(attempt)
        sealed = {name: self.ask(name, "share", attempt, offers=offers)["sealed"] for name in SILOS}
        for name in SILOS:
            received = {other: sealed[other][name] for other in SILOS if other != name}
            assert self.ask(name, "mask", attempt, sealed=received) == {}

    def refuses(self, sentence: str, name: str, phase: str, **more: Any) -> None:
        answer = self.ask(name, phase, **more)
        assert sentence in answer["refused"]
        assert answer.keys() <= {"refused", "earlier"}


def test_one_list_is_signed_per_attempt_and_one_cohort_per_total(tmp_path: Path) -> None:
    run = Federation(tmp_path)
    run.up_to_masks()
    first = run.ask("a", "sign", survivors=list(SILOS))["signature"]
    assert run.ask("a", "sign", survivors=list(SILOS))["signature"] == first
    run.refuses("second list", "a", "sign", survivors=list(SILOS[:4]))
    run.up_to_masks("1" * 16)
    run.refuses("second total", "a", "sign", attempt="1" * 16, survivors=list(SILOS[:4]))
    assert run.ask("a", "sign", "1" * 16, survivors=list(SILOS[:4]))["earlier"] == list(SILOS)
    assert "signature" in run.ask("a", "sign", "1" * 16, survivors=list(SILOS))
    run.silos["a"] = run.silo("a")  # restarted: it remembers what it has signed, and has no keys
    run.refuses("was restarted", "a", "sign", attempt="1" * 16, survivors=list(SILOS))
    run.up_to_masks("2" * 16)
    run.refuses("second total", "a", "sign", attempt="2" * 16, survivors=list(SILOS[:4]))


def test_a_run_that_needs_all_silos_never_leaves_one_out(tmp_path: Path) -> None:
    """A coordinator that drops a silo at will, and compares, is refused by all others."""
    run = Federation(tmp_path, min_silos=None)
    offers = run.offers()
    run.refuses("it needs 5 of", "a", "share", offers={name: offers[name] for name in SILOS[:4]})
    run.up_to_masks("1" * 16)
    run.refuses("it needs 5 of", "a", "sign", attempt="1" * 16, survivors=list(SILOS[:4]))


def test_a_second_total_of_a_round_is_refused_also_after_a_restart(tmp_path: Path) -> None:
    run = Federation(tmp_path, "geometric")

    def signs(attempt: str, request: Request, kept: bool) -> dict[str, Any]:
        form = SumForm(run.manifest.program, run.manifest.program.steps[UPDATE], 5)
        sides = torch.from_numpy(np.packbits(np.full(form.sides, kept)))
        about = {"request": request, "attempt": attempt}
        offers = {name: run.ask(name, "offer", **about)["offer"] for name in SILOS}
        sealed = {name: run.ask(name, "share", **about, offers=offers)["sealed"] for name in SILOS}
        received = {other: sealed[other]["a"] for other in SILOS if other != "a"}
        assert run.ask("a", "mask", **about, sealed=received, sides=sides) == {}
        return run.ask("a", "sign", **about, survivors=list(SILOS))

    assert "signature" in signs("0" * 16, run.request, True)
    assert "signature" in signs(
        "1" * 16, run.request, True
    )  # the same total, after the coordinator's restart
    run.silos["a"] = run.silo("a")
    assert "signs one per round" in signs("2" * 16, run.request, False)["refused"]
    moved = {name: weight + 2.0**-20 for name, weight in run.request.weights.items()}
    assert "signs one per round" in signs("3" * 16, replace(run.request, weights=moved), True)["refused"]
    assert "signature" in signs("4" * 16, replace(run.request, round=2, weights=moved), True)


def test_shares_are_given_for_a_signed_list_only(tmp_path: Path) -> None:
    run = Federation(tmp_path)
    run.refuses("was restarted", "a", "unmask", signatures={})
    run.up_to_masks()
    run.refuses("before a list", "a", "unmask", signatures={})
    signatures = {name: run.ask(name, "sign", survivors=list(SILOS))["signature"] for name in SILOS}
    run.refuses("must sign", "a", "unmask", signatures={name: signatures[name] for name in "abc"})
    run.refuses("not signed the same", "a", "unmask", signatures={**signatures, "b": signatures["c"]})
    shares = run.ask("a", "unmask", signatures=signatures)["shares"]
    assert shares["keys"] == {}
    assert shares["seeds"].keys() == set(SILOS)


def test_an_attempt_is_of_one_sum_and_a_message_of_one_form(tmp_path: Path) -> None:
    run = Federation(tmp_path)
    offers = run.offers()
    other = Request(UPDATE, 2, 1, SILOS, run.request.weights)
    run.refuses("one attempt for two sums", "a", "share", offers=offers, request=other)
    run.refuses("cannot be read", "a", "guess")
    run.refuses("cannot be read", "a", "share", offers={"b": {"mask": "zz"}})
    run.refuses("cannot be read", "a", "share", attempt="no hex")
    run.refuses("does not fit", "a", "share", offers={**offers, "b": offers["c"]})
    plain = ReceivedRequest(run.request, "", run.manifest.hash, "", frozenset(SILOS))
    assert b"plain answer in a run with secure sums" in run.silos["a"].answer(plain)
    assert run.clients["a"].computed == 0
    assert any(sentence.startswith("refused: ") for sentence in run.said)
    run.up_to_masks("3" * 16)  # the run is unharmed
    assert run.clients["a"].computed == 1


def test_different_weights_for_one_silo_keep_the_sum_masked(tmp_path: Path) -> None:
    run = Federation(tmp_path)
    offers = run.offers()
    sealed = {name: run.ask(name, "share", offers=offers)["sealed"] for name in SILOS}
    other = Request(UPDATE, 1, 0, SILOS, {n: w + 1 for n, w in run.request.weights.items()})
    for name in SILOS:
        received = {sender: sealed[sender][name] for sender in SILOS if sender != name}
        run.ask(name, "mask", sealed=received, request=other if name == "e" else run.request)
    signatures = {name: run.ask(name, "sign", survivors=list(SILOS))["signature"] for name in SILOS}
    for name in SILOS:
        run.refuses("other weights", name, "unmask", signatures=signatures)


def test_weights_are_kept_also_if_the_phase_that_brought_them_is_refused(tmp_path: Path) -> None:
    """The coordinator believes that the silo has them; one that was restarted refuses its first phase."""
    run = Federation(tmp_path)
    run.refuses("was restarted", "a", "mask", sealed={})
    for name, tensor in run.request.weights.items():
        assert torch.equal(run.silos["a"].weights[name], tensor)


def test_counts_and_values_of_a_step_are_computed_once(tmp_path: Path) -> None:
    run = Federation(tmp_path, "geometric")
    offers = {name: run.ask(name, "offer", part=COUNTS)["offer"] for name in SILOS}
    sealed = {name: run.ask(name, "share", part=COUNTS, offers=offers)["sealed"] for name in SILOS}
    received = {other: sealed[other]["a"] for other in SILOS if other != "a"}
    assert run.ask("a", "mask", part=COUNTS, sealed=received) == {}
    offers = run.offers("1" * 16)
    sealed = {name: run.ask(name, "share", "1" * 16, offers=offers)["sealed"] for name in SILOS}
    received = {other: sealed[other]["a"] for other in SILOS if other != "a"}
    form = SumForm(run.manifest.program, run.manifest.program.steps[UPDATE], 5)
    sides = torch.from_numpy(np.packbits(np.ones(form.sides, bool)))
    assert run.ask("a", "mask", "1" * 16, sealed=received, sides=sides) == {}
    assert run.clients["a"].computed == 1


def test_a_silo_takes_part_only_in_the_run_of_its_roster(tmp_path: Path) -> None:
    run = Federation(tmp_path)
    own, roster = run.identities["a"], run.roster
    SecureMember(own, roster).require_fits(run.manifest, "a")
    stranger = new_identity(tmp_path / "stranger")
    other = Roster({**roster.keys, "b": stranger.public})
    fewer = Roster({name: roster.keys[name] for name in "abcd"})
    for member, sentence in (
        (SecureMember(own, fewer), "not those of this silo's roster"),
        (SecureMember(own, other), "compare the rosters"),
        (SecureMember(stranger, roster), "another key for silo 'a'"),
    ):
        with pytest.raises(ConfigError, match=sentence):
            member.require_fits(run.manifest, "a")
    plain = RemoteRun.of(remote(SILOS), Path()).manifest
    with pytest.raises(ConfigError, match="only with them"):
        SecureMember(own, roster).require_fits(plain, "a")


def test_what_was_signed_is_remembered_on_disk(tmp_path: Path) -> None:
    path = tmp_path / "signed.jsonl"
    one = Total("run", 1, "update", "w1", "t")
    SignedTotals(path).permit(one, ["a", "b", "c"])
    again = SignedTotals(path)
    again.permit(one, ["a", "b", "c"])
    again.permit(replace(one, round=2, weights="w2"), ["a", "b"])
    with pytest.raises(OtherListError):
        again.permit(one, ["a", "b"])
    assert [json.loads(line)["total"] for line in path.read_text().splitlines()] == ["update w1", "update w2"]
    path.write_bytes(path.read_bytes() + b'{"total": "upd')  # cut off by a crash
    SignedTotals(path).permit(replace(one, round=3, weights="w3"), ["a", "b", "c"])
    with pytest.raises(OtherListError):
        SignedTotals(path).permit(replace(one, round=4, weights="w3"), ["a", "b"])
    path.write_text('{"total": 1}\n')
    with pytest.raises(ConfigError, match="restore it"):
        SignedTotals(path)


@pytest.mark.parametrize("change", [{"weights": "w2"}, {"task": "other"}])
def test_a_round_has_one_total_of_a_kind(tmp_path: Path, change: dict[str, str]) -> None:
    """Otherwise the coordinator could ask at slightly other weights, again and again within a round."""
    one, everybody = Total("run", 1, "update", "w1", "t"), ["a", "b", "c"]
    SignedTotals(tmp_path / "signed").permit(one, everybody)
    signed = SignedTotals(tmp_path / "signed")
    with pytest.raises(ProtocolError, match="signs one per round"):
        signed.permit(replace(one, **change), everybody)
    signed.permit(replace(one, round=2, **change), everybody)
    signed.permit(replace(one, what="statistics"), everybody)


def test_what_was_signed_counts_in_every_run_of_the_silo(tmp_path: Path) -> None:
    """A run that begins at the same weights, with one silo fewer, would give that silo's part."""
    first, second = SignedTotals(tmp_path / "signed"), SignedTotals(tmp_path / "signed")
    first.permit(Total("one", 1, "update", "w", "t"), ["a", "b", "c", "d"])
    with pytest.raises(OtherListError):
        second.permit(Total("two", 1, "update", "w", "t"), ["a", "b", "c"])


def test_no_sub_coordinator_joins_a_run_with_secure_sums() -> None:
    queue = TaskQueue(RemoteRun.of(remote(SILOS, secure=True), Path()).manifest)
    with pytest.raises(RefusedError, match="join this coordinator themselves"):
        queue.join_sub_coordinator("region", {"a": 10}, {})
