"""Masks that hide words modulo 2^64 or 2^32 and cancel when all silos' words are added.

Silo u sends y_u = x_u + PRG(b_u) + sum_(v > u) PRG(k_uv) - sum_(v < u) PRG(k_uv), word by word, where b_u is
its own seed and k_uv = k_vu is agreed with silo v (X25519, then HKDF-SHA256). PRG is the key stream of
ChaCha20. In the sum over all silos the pairwise masks cancel, and self masks are subtracted once their seeds
are known.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from numpy.typing import NDArray

from fedilc.errors import ProtocolError

Words: TypeAlias = NDArray[Any]  # of uint64 or uint32
KEY_BYTES = 32
_NONCE_BYTES = 12
_AT_ONCE = 1 << 20  # bytes of a key stream, so that masks need little memory beside the words


def new_key() -> X25519PrivateKey:
    """Return an ephemeral key, for one attempt of one sum."""
    return X25519PrivateKey.generate()


def public_bytes(key: X25519PrivateKey) -> bytes:
    """Return the public key that is offered to others."""
    return key.public_key().public_bytes_raw()


def agreed_key(own: X25519PrivateKey, other: bytes, context: bytes, purpose: str) -> bytes:
    """Return the key that two silos agree on for one purpose; both get the same.

    `context` is a hash of everything that the key is for: run, round, step, attempt and all offers.
    """
    try:
        shared = own.exchange(X25519PublicKey.from_public_bytes(other))
    except ValueError as error:  # not 32 bytes, or a point of low order, which would give 0 for every key
        raise ProtocolError("a silo offers a key that is not one of X25519") from error
    ends = b"".join(sorted((public_bytes(own), other)))
    return HKDF(SHA256(), KEY_BYTES, salt=context, info=purpose.encode() + b"\0" + ends).derive(shared)


def seed_key(seed: bytes, context: bytes) -> bytes:
    """Return the key of a self mask from its seed."""
    return HKDF(SHA256(), KEY_BYTES, salt=context, info=b"self mask").derive(seed)


def add_mask(words: Words, key: bytes, negative: bool = False) -> None:
    """Add the key stream of ChaCha20 to words, or subtract it, in place and modulo the size of a word.

    A key is used for one stream only, so that the nonce may be 0 (RFC 8439: counter, then nonce).
    """
    stream = Cipher(ChaCha20(key, bytes(16)), mode=None).encryptor()
    step = _AT_ONCE // words.itemsize
    zeros, kind = bytes(_AT_ONCE), words.dtype.newbyteorder("<")
    for start in range(0, len(words), step):
        part = words[start : start + step]
        mask = np.frombuffer(stream.update(zeros[: part.nbytes]), kind)
        if negative:
            part -= mask
        else:
            part += mask


def add_masks(words: Words, silo: str, seed: bytes, pairwise: Mapping[str, bytes]) -> None:
    """Add a silo's masks to its words in place: its own by the key `seed`, and one per other silo.

    >>> one, two = np.arange(3, dtype=np.uint64), np.full(3, 10, np.uint64)
    >>> add_masks(one, "a", bytes(32), {"b": bytes([7] * 32)})
    >>> add_masks(two, "b", bytes([1] * 32), {"a": bytes([7] * 32)})
    >>> total = one + two
    >>> add_mask(total, bytes(32), negative=True)
    >>> add_mask(total, bytes([1] * 32), negative=True)
    >>> total.tolist()
    [10, 11, 12]
    """
    add_mask(words, seed)
    for other, key in pairwise.items():
        add_mask(words, key, negative=other < silo)


def seal(key: bytes, content: bytes, about: bytes) -> bytes:
    """Return content encrypted for another silo, bound to what it is `about`."""
    nonce = secrets.token_bytes(_NONCE_BYTES)
    return nonce + ChaCha20Poly1305(key).encrypt(nonce, content, about)


def unseal(key: bytes, sealed: bytes, about: bytes, sender: str) -> bytes:
    """Return what another silo has sealed; raise if anybody has changed it."""
    try:
        return ChaCha20Poly1305(key).decrypt(sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:], about)
    except (InvalidTag, ValueError) as error:
        raise ProtocolError(f"the shares of silo {sender!r} were changed on the way") from error
