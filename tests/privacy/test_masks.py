"""The primitives are those of the RFCs as they are used here, and masks cancel."""

from __future__ import annotations

import hashlib
import hmac

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from hypothesis import given, settings
from hypothesis import strategies as st

from fedilc.errors import ProtocolError
from fedilc.privacy.masks import add_mask, add_masks, agreed_key, new_key, public_bytes, seal, unseal

# RFC 7748, section 6.1
BOB = bytes.fromhex("5dab087e624a8a4b79e17f8b83800ee66f3bb1292618b6fd1c2f8b27ff88e0eb")


def hkdf(secret: bytes, salt: bytes, info: bytes) -> bytes:
    """RFC 5869 for one block, from the definition."""
    return hmac.digest(hmac.digest(salt, secret, "sha256"), info + b"\x01", "sha256")


def test_the_oracle_of_hkdf_is_that_of_rfc_5869() -> None:
    salt, info = bytes(range(13)), bytes(range(0xF0, 0xFA))
    found = hkdf(b"\x0b" * 22, salt, info)
    assert found.hex() == "3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf"


def test_agreed_keys_are_x25519_and_then_hkdf() -> None:
    bob = X25519PrivateKey.from_private_bytes(BOB)
    assert public_bytes(bob).hex() == "de9edb7d7b7dc1b4d35b61c2ece435373f8343c85b78674dadfc7e146f882b4f"
    alice = bytes.fromhex("8520f0098930a754748b7ddcb43ef75a0dbf3a0d26381af4eba4a98eaa9b4e6a")
    shared = bytes.fromhex("4a5d9d5ba4ce2de1728e3bf480350f25e07e21c947d19e3376f09b3c1e161742")
    ends = b"".join(sorted((alice, public_bytes(bob))))
    assert agreed_key(bob, alice, b"context", "mask") == hkdf(shared, b"context", b"mask\0" + ends)


def test_masks_are_the_key_stream_of_rfc_8439() -> None:
    """Appendix A.1, test vector 1: the key, the nonce and the counter are 0."""
    stream = bytes.fromhex(
        "76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7"
        "da41597c5157488d7724e03fb8d84a376a43b8f41518a11cc387b669b2ee6586"
    )
    for kind in (np.uint32, np.uint64):
        words = np.zeros(64 // np.dtype(kind).itemsize, kind)
        add_mask(words, bytes(32))
        assert words.astype(words.dtype.newbyteorder("<")).tobytes() == stream
        add_mask(words, bytes(32), negative=True)
        assert not words.any()


def test_a_long_mask_is_one_stream() -> None:
    long, part = np.zeros(400_000, np.uint64), np.zeros(300_000, np.uint64)
    add_mask(long, bytes(32))
    add_mask(part, bytes(32))
    assert np.array_equal(long[:300_000], part)
    assert len(np.unique(long)) == len(long)


def test_sealing_is_the_aead_of_rfc_8439() -> None:
    """Section 2.8.2."""
    key, nonce = bytes(range(0x80, 0xA0)), bytes.fromhex("070000004041424344454647")
    about, tag = bytes.fromhex("50515253c0c1c2c3c4c5c6c7"), "1ae10b594f09e26a7e902ecbd0600691"
    text = (
        b"Ladies and Gentlemen of the class of '99: If I could offer you only one tip for the future, "
        b"sunscreen would be it."
    )
    sealed = ChaCha20Poly1305(key).encrypt(nonce, text, about)
    assert sealed[-16:].hex() == tag
    assert unseal(key, nonce + sealed, about, "a") == text


def test_what_was_sealed_is_for_one_purpose_and_cannot_be_changed() -> None:
    sealed = seal(bytes(32), b"shares", b"a to b")
    assert unseal(bytes(32), sealed, b"a to b", "a") == b"shares"
    changed = sealed[:-1] + bytes([sealed[-1] ^ 1])
    for key, content, about in (
        (bytes(32), sealed, b"a to c"),
        (bytes([1] * 32), sealed, b"a to b"),
        (bytes(32), changed, b"a to b"),
        (bytes(32), b"short", b"a to b"),
    ):
        with pytest.raises(ProtocolError, match="changed on the way"):
            unseal(key, content, about, "a")


def test_signatures_are_those_of_rfc_8032() -> None:
    """Section 7.1, test 1."""
    key = Ed25519PrivateKey.from_private_bytes(
        bytes.fromhex("9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60")
    )
    assert key.sign(b"").hex() == (
        "e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e065224901555fb8821590a33bacc61e39701cf9b46b"
        "d25bf5f0595bbe24655141438e7a100b"
    )


def test_a_key_of_low_order_is_refused() -> None:
    for other in (bytes(32), bytes(31), bytes([1, *bytes(31)])):
        with pytest.raises(ProtocolError, match="not one of X25519"):
            agreed_key(new_key(), other, b"", "mask")


KINDS = st.sampled_from([np.uint32, np.uint64])


@given(st.integers(3, 6), st.integers(0, 40), KINDS, st.integers(0, 2**32 - 1), st.randoms())
@settings(max_examples=30, deadline=None)
def test_masks_cancel_in_every_order(
    count: int, size: int, kind: type[np.uint64], seed: int, random: object
) -> None:
    names = [f"silo-{number}" for number in range(count)]
    keys = {name: new_key() for name in names}
    draw = np.random.default_rng(seed)
    limit = np.iinfo(kind).max
    plain = {name: draw.integers(0, limit, size, kind, endpoint=True) for name in names}
    own = {name: hashlib.sha256(name.encode()).digest() for name in names}
    masked = {}
    for name in names:
        masked[name] = plain[name].copy()
        others = {
            other: agreed_key(keys[name], public_bytes(keys[other]), b"context", "mask")
            for other in names
            if other != name
        }
        add_masks(masked[name], name, own[name], others)
    random.shuffle(names)
    total, expected = np.zeros(size, kind), np.zeros(size, kind)
    for name in names:
        total += masked[name]
        expected += plain[name]
        add_mask(total, own[name], negative=True)
    assert np.array_equal(total, expected)
