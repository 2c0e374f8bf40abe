"""One secure sum: what it gives, what its transcript hides, and what silos refuse."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from hypothesis import given, settings
from hypothesis import strategies as st

from fedilc.errors import ProtocolError
from fedilc.privacy import secure_sums
from fedilc.privacy.identities import Identity, Roster
from fedilc.privacy.masks import Words
from fedilc.privacy.secure_sums import Offer, OtherListError, SiloSum, SumCollector, SumContext, threshold

SEEN = {"weights": "0" * 64}
NAMES = ("a", "b", "c", "d", "e")
IDENTITIES = {name: Identity(Ed25519PrivateKey.generate()) for name in (*NAMES, "f", "g")}


def roster_of(names: Iterable[str]) -> Roster:
    return Roster({name: IDENTITIES[name].public for name in names})


def context_of(roster: Roster, attempt: str = "01", round_: int = 1) -> SumContext:
    return SumContext("run", roster.digest, round_, "update", attempt)


def agree(_survivors: Sequence[str]) -> None:
    """A silo that has signed nothing before."""


class Attempt:
    """All messages of one attempt, each phase a method, so that a test can change what is between them."""

    def __init__(self, words: Mapping[str, Words], attempt: str = "01") -> None:
        self.words, self.roster = words, roster_of(words)
        self.context = context_of(self.roster, attempt)
        self.silos = {n: SiloSum(IDENTITIES[n], self.roster, n, self.context) for n in words}
        self.collector = SumCollector(self.context, self.roster)
        self.masked: dict[str, Words] = {}

    def offer(self) -> Attempt:
        for name, silo in self.silos.items():
            self.collector.add_offer(name, silo.offer())
        return self

    def share(self, lost: Iterable[str] = ()) -> Attempt:
        for name in self.silos.keys() - set(lost):
            self.collector.add_sealed(name, self.silos[name].share(self.collector.offers))
        return self

    def mask(self, lost: Iterable[str] = (), order: Sequence[str] | None = None) -> Attempt:
        for name in order or sorted(self.collector.sealed):
            sealed = self.collector.sealed_for(name)
            self.masked[name] = self.silos[name].mask(sealed, self.words[name].copy, SEEN)
            if name not in lost:
                self.collector.add_words(name, self.masked[name])
        return self

    def sign(self, lost: Iterable[str] = ()) -> Attempt:
        for name in set(self.collector.survivors) - set(lost):
            signature = self.silos[name].sign(self.collector.survivors, agree)
            self.collector.add_signature(name, signature, SEEN)
        return self

    def unmask(self, lost: Iterable[str] = ()) -> Words:
        for name in self.collector.signatures.keys() - set(lost):
            self.collector.add_shares(name, self.silos[name].unmask(self.collector.signatures))
        return self.collector.total()


def words_of(names: Iterable[str], size: int = 8, seed: int = 0, kind: type = np.uint64) -> dict[str, Words]:
    draw = np.random.default_rng(seed)
    return {name: draw.integers(0, np.iinfo(kind).max, size, kind, endpoint=True) for name in names}


def plain_sum(words: Mapping[str, Words], names: Iterable[str]) -> Words:
    total = np.zeros_like(next(iter(words.values())))
    for name in names:
        total += words[name]
    return total


def test_all_replies_give_the_plain_sum_in_any_order() -> None:
    words = words_of(NAMES)
    for order in (NAMES, NAMES[::-1]):
        total = Attempt(words).offer().share().mask(order=order).sign().unmask()
        assert np.array_equal(total, plain_sum(words, NAMES))


@given(st.sampled_from(NAMES), st.sampled_from(["share", "mask", "sign", "unmask"]), st.integers(0, 1000))
@settings(max_examples=25, deadline=None)
def test_a_silo_lost_at_any_step_is_left_out_or_still_counted(name: str, where: str, seed: int) -> None:
    words = words_of(NAMES, seed=seed, kind=np.uint32)
    lost = {step: [name] if step == where else [] for step in ("share", "mask", "sign", "unmask")}
    attempt = Attempt(words).offer().share(lost["share"]).mask(lost["mask"]).sign(lost["sign"])
    total = attempt.unmask(lost["unmask"])
    remain = [other for other in NAMES if other != name or where in ("sign", "unmask")]
    assert np.array_equal(total, plain_sum(words, remain))


@pytest.fixture
def seeded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys and seeds of silos from a fixed seed, so that a statistical test has one outcome."""
    draw = random.Random(20220901)
    monkeypatch.setattr(
        secure_sums, "new_key", lambda: X25519PrivateKey.from_private_bytes(draw.randbytes(32))
    )
    monkeypatch.setattr(secure_sums.secrets, "token_bytes", draw.randbytes)


@pytest.mark.usefixtures("seeded")
@pytest.mark.parametrize("kind", [np.uint32, np.uint64])
def test_every_strict_subset_of_replies_is_noise(kind: type) -> None:
    """Each byte of a word is uniform over the ring: chi-squared over 256 values, 255 degrees of freedom.

    All replies together without self masks are the plain sum, which is as far from noise as can be.
    """
    zeros = {name: np.zeros(20_000, kind) for name in NAMES}
    attempt = Attempt(zeros).offer().share().mask()
    for size in range(1, len(NAMES) + 1):
        for chosen in combinations(NAMES, size):
            by_place = plain_sum(attempt.masked, chosen).view(np.uint8).reshape(-1, np.dtype(kind).itemsize)
            for place in by_place.T:
                counts = np.bincount(place, minlength=256)
                expected = counts.sum() / 256
                assert 150 < ((counts - expected) ** 2 / expected).sum() < 400  # p < 1e-7 at each end
    assert not attempt.sign().unmask().any()


def test_the_transcripts_of_two_data_sets_cannot_be_told_apart() -> None:
    """For fixed masks, what the coordinator sees is the data moved by them: it hides which data they were."""
    one, two = words_of(NAMES, seed=1), words_of(NAMES, seed=2)
    two["e"] += plain_sum(one, NAMES) - plain_sum(
        two, NAMES
    )  # the totals agree, as the coordinator learns them
    means = []
    for words in (one, two):
        seen = [Attempt(words).offer().share().mask().masked["a"] for _ in range(200)]
        bits = np.unpackbits(np.stack(seen).view(np.uint8), axis=1)
        means.append(bits.mean(0))
    for mean in means:
        assert np.abs(mean - 0.5).max() < 6 * 0.5 / np.sqrt(200)


def test_the_share_of_a_lost_silo_is_of_its_key_and_that_of_a_survivor_of_its_seed() -> None:
    attempt = Attempt(words_of(NAMES)).offer().share().mask(lost=["e"]).sign()
    shares = attempt.silos["a"].unmask(attempt.collector.signatures)
    assert shares.seeds.keys() == {"a", "b", "c", "d"}
    assert shares.keys.keys() == {"e"}


def test_a_late_reply_stays_masked_by_its_own_seed() -> None:
    """With single masks the late words could be unmasked with the pairwise keys that the shares reveal."""
    words = words_of(NAMES)
    attempt = Attempt(words).offer().share().mask(lost=["e"]).sign()
    total = attempt.unmask()
    assert np.array_equal(total, plain_sum(words, "abcd"))
    with pytest.raises(ProtocolError, match="second list"):
        attempt.silos["a"].sign(NAMES, agree)


def refused(sentence: str, call: Callable[[], object]) -> None:
    with pytest.raises(ProtocolError, match=sentence):
        call()


def test_a_changed_replayed_or_unsigned_offer_is_refused() -> None:
    attempt = Attempt(words_of(NAMES)).offer()
    offers = attempt.collector.offers
    silo = attempt.silos["a"]
    other = Attempt(words_of(NAMES), attempt="02").offer().collector.offers
    forged = Offer(mask=other["b"].mask, share=offers["b"].share, signature=offers["b"].signature)
    refused("does not fit", lambda: silo.share({**offers, "b": forged}))
    refused("does not fit", lambda: silo.share({**offers, "b": other["b"]}))
    refused(
        "does not fit", lambda: silo.share({**offers, "b": offers["b"].model_copy(update={"signature": ""})})
    )
    refused("does not fit", lambda: silo.share({**offers, "b": offers["c"]}))
    refused("it needs 4 of", lambda: silo.share({name: offers[name] for name in "abc"}))
    refused("it needs 4 of", lambda: silo.share({**offers, "z": offers["b"]}))
    refused("has replaced", lambda: silo.share({name: offers[name] for name in "bcde"}))
    assert silo.share(offers).keys() == {"b", "c", "d", "e"}  # the run is unharmed
    refused("second set of offers", lambda: silo.share({name: offers[name] for name in "abcd"}))


def test_shares_that_were_changed_or_are_of_another_attempt_are_refused() -> None:
    words = words_of(NAMES)
    attempt = Attempt(words).offer().share()
    other = Attempt(words, attempt="02").offer().share().collector.sealed_for("a")
    silo, sealed = attempt.silos["a"], attempt.collector.sealed_for("a")
    take = words["a"].copy
    refused("changed on the way", lambda: silo.mask({**sealed, "b": other["b"]}, take, SEEN))
    refused("changed on the way", lambda: silo.mask({**sealed, "b": sealed["c"]}, take, SEEN))
    refused("it needs 4 of", lambda: silo.mask({"b": sealed["b"]}, take, SEEN))
    masked = silo.mask(sealed, take, SEEN)
    assert np.array_equal(silo.mask(sealed, take, SEEN), masked)
    refused("twice", lambda: silo.mask(sealed, take, {"weights": "1" * 64}))


def test_no_second_list_is_signed_and_no_list_of_too_few() -> None:
    attempt = Attempt(words_of(NAMES)).offer().share().mask()
    silo = attempt.silos["a"]
    refused("it needs 4 of", lambda: silo.sign(["a", "b", "c"], agree))
    refused("does not fit what", lambda: silo.sign(["b", "c", "d", "e"], agree))
    first = silo.sign(NAMES, agree)
    assert silo.sign(NAMES[::-1], agree) == first
    refused("second list", lambda: silo.sign(["a", "b", "c", "d"], agree))


def test_a_list_is_not_signed_if_another_was_for_the_same_total() -> None:
    attempt = Attempt(words_of(NAMES)).offer().share().mask(lost=["e"])

    def signed_before(_survivors: Sequence[str]) -> None:
        raise OtherListError(NAMES)

    with pytest.raises(OtherListError, match="second total"):
        attempt.silos["a"].sign(attempt.collector.survivors, signed_before)
    refused("before a list", lambda: attempt.silos["a"].unmask({}))


def test_shares_need_the_signatures_of_more_than_two_thirds() -> None:
    attempt = Attempt(words_of(NAMES)).offer().share().mask().sign()
    silo, signatures = attempt.silos["a"], attempt.collector.signatures
    few = {name: signatures[name] for name in "abc"}
    refused("signed by 3", lambda: silo.unmask(few))
    refused("has not signed the same", lambda: silo.unmask({**few, "d": signatures["e"]}))
    refused("must sign", lambda: silo.unmask({**few, "z": signatures["d"]}))
    assert silo.unmask(signatures).seeds.keys() == set(NAMES)


def test_silos_that_were_sent_different_weights_reveal_nothing() -> None:
    attempt = Attempt(words_of(NAMES)).offer().share()
    signatures = {}
    for name, silo in attempt.silos.items():
        seen = {"weights": ("1" if name == "a" else "0") * 64}
        silo.mask(attempt.collector.sealed_for(name), attempt.words[name].copy, seen)
        signatures[name] = silo.sign(NAMES, agree)
    for silo in attempt.silos.values():
        refused("may have sent it other weights", lambda silo=silo: silo.unmask(signatures))


def test_another_roster_makes_every_offer_invalid() -> None:
    attempt = Attempt(words_of(NAMES)).offer()
    wrong = Roster({**attempt.roster.keys, "b": IDENTITIES["f"].public})
    silo = SiloSum(IDENTITIES["a"], wrong, "a", replace(attempt.context, roster=wrong.digest))
    offers = {**attempt.collector.offers, "a": silo.offer()}
    refused("does not fit", lambda: silo.share(offers))


def test_a_wrong_share_is_left_out_and_its_silo_named_or_ends_the_attempt() -> None:
    words = words_of(NAMES)
    attempt = Attempt(words).offer().share().mask().sign()
    shares = {name: attempt.silos[name].unmask(attempt.collector.signatures) for name in NAMES}
    shares["b"] = shares["b"].model_copy(update={"seeds": shares["c"].seeds})
    for name in NAMES:
        attempt.collector.add_shares(name, shares[name])
    assert np.array_equal(attempt.collector.total(), plain_sum(words, NAMES))
    assert attempt.collector.liars == {"b"}
    del attempt.collector.shares["a"]  # four remain, as few as are needed: nobody can tell which one is wrong
    refused("at least one of them sent a wrong one", attempt.collector.total)


def test_a_sum_needs_as_many_silos_as_the_run_says() -> None:
    attempt = Attempt(words_of(NAMES))
    for silo in attempt.silos.values():
        silo.context = replace(attempt.context, least=5)
    offers = {name: silo.offer() for name, silo in attempt.silos.items()}
    refused("it needs 5 of", lambda: attempt.silos["a"].share({name: offers[name] for name in "abcd"}))
    assert attempt.silos["a"].share(offers).keys() == {"b", "c", "d", "e"}


def test_the_coordinator_refuses_what_no_honest_silo_sends() -> None:
    attempt = Attempt(words_of(NAMES)).offer()
    collector, offers = attempt.collector, attempt.collector.offers
    refused("does not fit", lambda: collector.add_offer("a", offers["b"]))
    refused("not for all", lambda: collector.add_sealed("a", {}))
    attempt.share().mask()
    refused("does not fit", lambda: collector.add_signature("a", "00" * 64, SEEN))
    attempt.sign()
    shares = attempt.silos["a"].unmask(collector.signatures)
    refused("not those", lambda: collector.add_shares("a", shares.model_copy(update={"seeds": {}})))


def test_no_secret_is_in_the_text_of_an_attempt() -> None:
    attempt = Attempt(words_of(NAMES)).offer().share().mask().sign()
    texts = " ".join(map(repr, attempt.silos.values()))
    shares = attempt.silos["a"].unmask(attempt.collector.signatures)
    assert not any(share in texts for share in shares.seeds.values())
    assert IDENTITIES["a"].key.private_bytes_raw().hex() not in texts


def test_the_threshold_is_above_two_thirds() -> None:
    for silos in range(3, 101):
        assert 3 * threshold(silos) > 2 * silos >= 3 * (threshold(silos) - 1)
