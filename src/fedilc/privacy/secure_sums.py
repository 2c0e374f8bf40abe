"""One secure sum: Bonawitz et al. (2017) in the variant for a malicious server, over all silos of a roster.

A silo (`SiloSum`) answers five times, and the coordinator (`SumCollector`) passes messages on:

1. offer: public keys for masks and for shares, made for this attempt and signed with the silo's identity.
2. share: shares of its mask key and of its seed, one of each sealed for every silo that offered keys.
3. mask: its words plus its masks.
4. sign: the survivors, whose masked words arrived, with digests of what all silos must have been sent.
5. unmask: given the same list signed by at least the threshold, shares of the seeds of the survivors, and of
   the mask keys of silos that were lost after step 2; never both of one silo.

The threshold is more than two thirds of the roster. Two lists for one attempt would need more than a third of
the silos to sign both, which an honest silo never does.
"""

from __future__ import annotations

import contextlib
import hashlib
import secrets
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from pydantic import Field

from fedilc.errors import ProtocolError, listed
from fedilc.privacy.identities import LEAST_SILOS, Identity, Roster
from fedilc.privacy.masks import (
    Words,
    add_mask,
    add_masks,
    agreed_key,
    new_key,
    public_bytes,
    seal,
    seed_key,
    unseal,
)
from fedilc.privacy.shamir import SECRET_BYTES, SHARE_BYTES, join_shares, split_secret
from fedilc.section import Section
from fedilc.storage.files import json_digest

Hex = Annotated[str, Field(pattern="^([0-9a-f]{2})*$", max_length=1024)]
Permit = Callable[[Sequence[str]], None]


class OtherListError(ProtocolError):
    """The silo has signed another list of survivors for the same sum; `survivors` are on that list."""

    def __init__(self, survivors: Sequence[str]) -> None:
        super().__init__(
            f"this total was agreed over {listed(list(survivors))} before, and a second total over other "
            "silos would reveal the difference"
        )
        self.survivors = tuple(survivors)


class Offer(Section):
    """The public keys that a silo offers for one attempt, and its signature."""

    mask: Hex
    share: Hex
    signature: Hex


class Shares(Section):
    """Shares of seeds of survivors, and of mask keys of lost silos, by silo."""

    seeds: dict[str, Hex]
    keys: dict[str, Hex]


@dataclass(frozen=True)
class SumContext:
    """What one attempt of one sum is: everything that is signed holds it.

    Args:
        run: the manifest's hash.
        roster: the roster's digest.
        round: the round.
        what: what is summed; totals of the same kind at the same weights are never made over other silos.
        attempt: a random name; a sum that fails is tried again with other keys.
        least: how many silos a sum of the run needs, as its manifest says.
    """

    run: str
    roster: str
    round: int
    what: str
    attempt: str
    least: int = LEAST_SILOS

    def statement(self, about: str, **more: Any) -> dict[str, Any]:
        """Return a statement on this attempt, to be signed."""
        return {"about": about, **vars(self), **more}


def threshold(silos: int) -> int:
    """Return how many of a roster's silos must sign and unmask: more than two thirds.

    >>> [threshold(silos) for silos in (3, 4, 5, 6, 9, 100)]
    [3, 3, 4, 5, 7, 67]
    """
    return 2 * silos // 3 + 1


def least_members(silos: int, least: int) -> int:
    """Return how many silos a sum needs: as many as the run says, but never fewer than the threshold.

    >>> least_members(5, least=1), least_members(5, least=5)
    (4, 5)
    """
    return max(LEAST_SILOS, threshold(silos), least)


def require_enough(silos: Collection[str], roster: Roster, context: SumContext) -> None:
    """Raise if these are too few silos to make a sum of."""
    needed = least_members(len(roster.keys), context.least)
    if len(silos) < needed or not set(silos) <= roster.keys.keys():
        raise ProtocolError(
            f"a sum over {listed(sorted(silos))} is refused: it needs {needed} of the roster's "
            f"{len(roster.keys)} silos"
        )


def _offer_statement(context: SumContext, silo: str, mask: str, share: str) -> dict[str, Any]:
    return context.statement("offer", silo=silo, mask=mask, share=share)


def _attempt_digest(context: SumContext, offers: Mapping[str, Offer]) -> bytes:
    """Return a hash of the attempt and of all its offers, to which every key and share is bound."""
    found = {silo: offer.model_dump() for silo, offer in sorted(offers.items())}
    return bytes.fromhex(json_digest(context.statement("offers", offers=found)))


def _survivors_statement(
    context: SumContext,
    offers: bytes,
    members: Collection[str],
    survivors: Collection[str],
    seen: Mapping[str, str],
) -> dict[str, Any]:
    return context.statement(
        "survivors",
        offers=offers.hex(),
        members=sorted(members),
        survivors=sorted(survivors),
        seen=dict(seen),
    )


def check_offers(context: SumContext, roster: Roster, offers: Mapping[str, Offer]) -> None:
    """Raise if an offer is not signed by its silo for this attempt, or there are too few."""
    require_enough(offers, roster, context)
    for silo, offer in offers.items():
        roster.require_signed(silo, _offer_statement(context, silo, offer.mask, offer.share), offer.signature)
    keys = [key for offer in offers.values() for key in (offer.mask, offer.share)]
    if len(set(keys)) < len(keys):
        raise ProtocolError("two keys of the offers are the same, so that masks would be known to others")


class SiloSum:
    """The part of one silo in one attempt. Messages may arrive again, and are then answered in the same way.

    Args:
        identity: the silo's private key.
        roster: the silo's own copy of all public keys.
        silo: its name.
        context: the attempt.
    """

    def __init__(self, identity: Identity, roster: Roster, silo: str, context: SumContext) -> None:
        self.identity, self.roster, self.silo, self.context = identity, roster, silo, context
        self._mask_key, self._share_key = new_key(), new_key()
        self._seed = secrets.token_bytes(SECRET_BYTES)
        self._offers: dict[str, Offer] = {}
        self._digest = b""  # of all offers
        self._sealing: dict[str, bytes] = {}
        self._sealed: dict[str, str] = {}
        self._received: dict[str, tuple[bytes, bytes]] = {}
        self._masked: Words | None = None
        self._signed: dict[str, Any] | None = None
        self._seen: dict[str, str] = {}
        self._place = {name: place for place, name in enumerate(sorted(roster.keys), 1)}

    def __repr__(self) -> str:
        return f"SiloSum({self.silo!r}, {self.context})"

    def offer(self) -> Offer:
        """Return the silo's offer."""
        mask, share = public_bytes(self._mask_key).hex(), public_bytes(self._share_key).hex()
        statement = _offer_statement(self.context, self.silo, mask, share)
        return Offer(mask=mask, share=share, signature=self.identity.sign(statement))

    def share(self, offers: Mapping[str, Offer]) -> dict[str, str]:
        """Return the shares sealed for every other silo that has offered keys."""
        if self._offers and self._offers != dict(offers):
            raise ProtocolError("the coordinator sends a second set of offers for one attempt")
        if not self._offers:
            check_offers(self.context, self.roster, offers)
            if offers.get(self.silo) != self.offer():
                raise ProtocolError("the coordinator has replaced the keys that this silo offered")
            self._offers, self._digest = dict(offers), _attempt_digest(self.context, offers)
            self._sealing = {
                other: agreed_key(self._share_key, bytes.fromhex(offer.share), self._digest, "share")
                for other, offer in offers.items()
                if other != self.silo
            }
            count = len(self.roster.keys)
            keys = split_secret(self._mask_key.private_bytes_raw(), count, threshold(count))
            seeds = split_secret(self._seed, count, threshold(count))
            for other in sorted(offers):
                place = self._place[other]
                if other == self.silo:
                    self._received[other] = seeds[place], keys[place]
                else:
                    about = self._about(self.silo, other)
                    sealed = seal(self._sealing[other], seeds[place] + keys[place], about)
                    self._sealed[other] = sealed.hex()
        return dict(self._sealed)

    def mask(self, sealed: Mapping[str, str], words: Callable[[], Words], seen: Mapping[str, str]) -> Words:
        """Return the silo's words with all masks; `seen` are digests of what they were computed from."""
        if self._masked is None:
            if not self._offers:
                raise ProtocolError("masked words are asked for before shares")
            members = {self.silo, *sealed}
            require_enough(members, self.roster, self.context)
            if self.silo in sealed or not members <= self._offers.keys():
                raise ProtocolError("the coordinator sends shares of a silo that offered no keys")
            for other, text in sealed.items():
                about = self._about(other, self.silo)
                content = unseal(self._sealing[other], bytes.fromhex(text), about, other)
                if len(content) != 2 * SHARE_BYTES:
                    raise ProtocolError(f"the shares of silo {other!r} have another length")
                self._received[other] = content[:SHARE_BYTES], content[SHARE_BYTES:]
            masked, digest = words(), self._digest
            pairwise = {
                other: agreed_key(self._mask_key, bytes.fromhex(self._offers[other].mask), digest, "mask")
                for other in sealed
            }
            add_masks(masked, self.silo, seed_key(self._seed, digest), pairwise)
            self._masked, self._seen = masked, dict(seen)
        elif {self.silo, *sealed} != self._received.keys() or dict(seen) != self._seen:
            raise ProtocolError(
                "the coordinator asks twice for masked words of one attempt, with another task"
            )
        return self._masked

    def sign(self, survivors: Sequence[str], permit: Permit) -> str:
        """Return the silo's signature of a list of survivors; `permit` raises if another list was signed."""
        if self._masked is None or self.silo not in survivors or not set(survivors) <= self._received.keys():
            raise ProtocolError("the list of survivors does not fit what this silo has sent and received")
        require_enough(survivors, self.roster, self.context)
        statement = _survivors_statement(
            self.context, self._digest, self._received.keys(), survivors, self._seen
        )
        if self._signed not in (None, statement):
            raise ProtocolError("the coordinator sends a second list of survivors for one attempt")
        permit(sorted(survivors))
        self._signed = statement
        return self.identity.sign(statement)

    def unmask(self, signatures: Mapping[str, str]) -> Shares:
        """Return the shares that unmask the sum, given the list signed by at least the threshold."""
        if self._signed is None:
            raise ProtocolError("shares are asked for before a list of survivors was signed")
        survivors = set(self._signed["survivors"])
        if len(signatures) < threshold(len(self.roster.keys)) or not signatures.keys() <= survivors:
            raise ProtocolError(
                f"the list of survivors is signed by {len(signatures)} of its silos, and "
                f"{threshold(len(self.roster.keys))} must sign it"
            )
        for silo, signature in signatures.items():
            try:
                self.roster.require_signed(silo, self._signed, signature)
            except ProtocolError as error:
                raise ProtocolError(
                    f"silo {silo!r} has not signed the same list: the coordinator may have sent it other "
                    "weights, other silos or another task"
                ) from error
        return Shares(
            seeds={silo: self._received[silo][0].hex() for silo in sorted(survivors)},
            keys={
                silo: key.hex() for silo, (_, key) in sorted(self._received.items()) if silo not in survivors
            },
        )

    def _about(self, sender: str, receiver: str) -> bytes:
        return self._digest + f"{sender}\0{receiver}".encode()


@dataclass
class SumCollector:
    """The coordinator's part in one attempt: it checks messages, adds masked words and takes off the masks.

    Attributes:
        offers: what the silos offered.
        sealed: sealed shares, by sender and receiver.
        survivors: the silos whose masked words are in the total.
        liars: silos whose shares were wrong; the total is right without them.
    """

    context: SumContext
    roster: Roster
    offers: dict[str, Offer] = field(default_factory=dict)
    sealed: dict[str, dict[str, str]] = field(default_factory=dict)
    survivors: list[str] = field(default_factory=list)
    signatures: dict[str, str] = field(default_factory=dict)
    shares: dict[str, Shares] = field(default_factory=dict)
    liars: set[str] = field(default_factory=set)
    _total: Words | None = None

    def add_offer(self, silo: str, offer: Offer) -> None:
        """Add the offer of a silo."""
        statement = _offer_statement(self.context, silo, offer.mask, offer.share)
        self.roster.require_signed(silo, statement, offer.signature)
        self.offers[silo] = offer

    def add_sealed(self, silo: str, sealed: Mapping[str, str]) -> None:
        """Add a silo's shares for the others."""
        if sealed.keys() != self.offers.keys() - {silo}:
            raise ProtocolError("its shares are not for all silos that offered keys")
        self.sealed[silo] = dict(sealed)

    def sealed_for(self, silo: str) -> dict[str, str]:
        """Return the shares for a silo, by sender."""
        return {sender: by[silo] for sender, by in sorted(self.sealed.items()) if sender != silo}

    def add_words(self, silo: str, words: Words) -> None:
        """Add the masked words of a silo."""
        if self._total is None:
            self._total = words.copy()
        else:
            self._total += words
        self.survivors.append(silo)

    def add_signature(self, silo: str, signature: str, seen: Mapping[str, str]) -> None:
        """Add a silo's signature of the list of survivors; `seen` is what every silo should have seen."""
        digest = _attempt_digest(self.context, self.offers)
        statement = _survivors_statement(self.context, digest, self.sealed, self.survivors, seen)
        self.roster.require_signed(silo, statement, signature)
        self.signatures[silo] = signature

    def add_shares(self, silo: str, shares: Shares) -> None:
        """Add the shares that a silo reveals."""
        lost = self.sealed.keys() - set(self.survivors)
        if shares.seeds.keys() != set(self.survivors) or shares.keys.keys() != lost:
            raise ProtocolError(
                "its shares are not those of the seeds of survivors and of the keys of lost silos"
            )
        self.shares[silo] = shares

    def total(self) -> Words:
        """Return the sum of the survivors' words, without masks."""
        assert self._total is not None
        total, digest = self._total.copy(), _attempt_digest(self.context, self.offers)
        for silo in self.survivors:
            seed = self._secret({sharer: found.seeds[silo] for sharer, found in self.shares.items()})
            add_mask(total, seed_key(seed, digest), negative=True)
        for lost in sorted(self.sealed.keys() - set(self.survivors)):
            secret = self._secret({sharer: found.keys[lost] for sharer, found in self.shares.items()})
            key = X25519PrivateKey.from_private_bytes(secret)
            if public_bytes(key).hex() != self.offers[lost].mask:
                raise ProtocolError(f"the shares do not give the key that silo {lost!r} offered")
            for silo in self.survivors:
                agreed = agreed_key(key, bytes.fromhex(self.offers[silo].mask), digest, "mask")
                add_mask(total, agreed, negative=silo < lost)
        return total

    def _secret(self, shares: Mapping[str, str]) -> bytes:
        """Return the secret of these shares; one that is wrong is left out if enough others remain."""
        place = {name: number for number, name in enumerate(sorted(self.roster.keys), 1)}
        points = {silo: bytes.fromhex(share) for silo, share in shares.items()}
        spare = len(points) > threshold(len(place))
        for liar in (None, *(sorted(points) if spare else ())):
            # A wrong share makes a secret of 521 random bits, of which 32 bytes hold one in 2^265.
            with contextlib.suppress(ValueError):
                secret = join_shares({place[silo]: share for silo, share in points.items() if silo != liar})
                self.liars |= set() if liar is None else {liar}
                return secret
        raise ProtocolError(
            f"the shares of {listed(sorted(points))} do not fit together: at least one of them sent a wrong "
            "one"
        )


def words_digest(words: Any) -> str:
    """Return the SHA-256 of whole numbers that all silos must have been sent alike."""
    return hashlib.sha256(np.ascontiguousarray(words).tobytes()).hexdigest()
