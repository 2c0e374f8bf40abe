"""The identity of a silo: an Ed25519 key made at the silo, and the roster of all silos' public keys.

The private key never leaves the file in which `fedilc key new` wrote it. The roster is agreed on outside of
this package, and every silo names its own copy, so that the coordinator cannot exchange a key.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

from fedilc.errors import ConfigError, ProtocolError, writing
from fedilc.storage.files import json_bytes, json_digest, parse_json, write_atomically

MAX_SILOS = 100
LEAST_SILOS, USUAL_SILOS = 3, 5
_KIND = "ed25519"
_MAX_FILE_BYTES = 1 << 16


@dataclass(frozen=True)
class Identity:
    """The private key with which a silo signs; its text never contains the key."""

    key: Ed25519PrivateKey

    def __repr__(self) -> str:
        return f"Identity({self.public})"

    @property
    def public(self) -> str:
        """Return the public key as it is written in a roster."""
        return f"{_KIND}:{self.key.public_key().public_bytes_raw().hex()}"

    def sign(self, statement: Mapping[str, Any]) -> str:
        """Return the signature of a statement, in hexadecimal digits."""
        return self.key.sign(_signed_bytes(statement)).hex()


def new_identity(path: Path) -> Identity:
    """Make a key and write it to a new file that only its owner can read."""
    identity = Identity(Ed25519PrivateKey.generate())
    content = identity.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    with writing(path):
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:
            raise ConfigError(
                f"{path} exists already; a new key would end this silo's part in its rosters, so choose "
                "another file"
            ) from None
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
    return identity


def read_identity(path: Path) -> Identity:
    """Return the key in a file; raise if others than its owner can read it, or it holds no such key."""
    try:
        mode, content = path.stat().st_mode, path.read_bytes()
    except OSError as error:
        raise ConfigError(f"the key {path} cannot be read: {error.strerror}") from error
    if os.name == "posix" and mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise ConfigError(f"others than its owner can read or change the key {path}; run chmod 600 on it")
    try:
        key = load_pem_private_key(content, None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, Ed25519PrivateKey):
        raise ConfigError(f"{path} holds no key of `fedilc key new`; make one, or name another file")
    return Identity(key)


@dataclass(frozen=True)
class Roster:
    """The public keys of all silos of a run, by name."""

    keys: Mapping[str, str]

    def __post_init__(self) -> None:
        if not LEAST_SILOS <= len(self.keys) <= MAX_SILOS:
            raise ConfigError(
                f"a roster names {LEAST_SILOS} to {MAX_SILOS} silos, and this one names {len(self.keys)}"
            )
        for name, key in self.keys.items():
            _public_key(name, key)
        if len(set(self.keys.values())) < len(self.keys):
            raise ConfigError("two silos of the roster have the same key; each silo makes its own")

    @property
    def digest(self) -> str:
        """Return the SHA-256 of the roster, which silos compare outside of the run."""
        return json_digest(dict(self.keys))

    def require_signed(self, silo: str, statement: Mapping[str, Any], signature: str) -> None:
        """Raise if a silo of the roster has not signed this statement."""
        if silo not in self.keys:
            raise ProtocolError(f"silo {silo[:100]!r} is not in the roster")
        try:
            key = _public_key(silo, self.keys[silo])
            key.verify(bytes.fromhex(signature), _signed_bytes(statement))
        except (InvalidSignature, ValueError) as error:
            raise ProtocolError(
                f"the signature of silo {silo!r} does not fit what it is said to sign"
            ) from error

    def write(self, path: Path) -> None:
        """Write the roster to a file."""
        with writing(path):
            write_atomically(path, json_bytes({"silos": dict(self.keys)}, indent=2))


def read_roster(path: Path) -> Roster:
    """Return the roster in a file; raise if it is none."""
    try:
        content = path.read_bytes()[:_MAX_FILE_BYTES]
        silos = parse_json(content)["silos"]
        if not isinstance(silos, dict) or not all(isinstance(key, str) for key in silos.values()):
            raise ValueError("its silos are not names with keys")
    except OSError as error:
        raise ConfigError(f"the roster {path} cannot be read: {error.strerror}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{path} is not a roster of `fedilc key roster`: {error}") from error
    return Roster(dict(sorted(silos.items())))


def make_roster(entries: Iterable[str]) -> Roster:
    """Return the roster of entries like "north=ed25519:07f3...".

    >>> make_roster(["a=ed25519:00"])
    Traceback (most recent call last):
    fedilc.errors.ConfigError: the key of 'a' is not one that `fedilc key show` prints: 'ed25519:00'
    """
    found: dict[str, str] = {}
    for entry in entries:
        name, equals, key = entry.partition("=")
        if not equals or not name:
            raise ConfigError(f"{entry!r} is not NAME=KEY, with the key that `fedilc key show` prints")
        if name in found:
            raise ConfigError(f"the roster names {name!r} twice; give each silo one key")
        _public_key(name, key)
        found[name] = key
    return Roster(dict(sorted(found.items())))


def _signed_bytes(statement: Mapping[str, Any]) -> bytes:
    """Return the bytes that are signed: a prefix, so that they mean nothing elsewhere, and a digest."""
    return f"fedilc secure sums 1: {json_digest(statement)}".encode()


def _public_key(name: str, key: str) -> Ed25519PublicKey:
    kind, _, digits = key.partition(":")
    try:
        if kind != _KIND or digits != digits.lower():
            raise ValueError
        return Ed25519PublicKey.from_public_bytes(bytes.fromhex(digits))
    except ValueError:
        raise ConfigError(
            f"the key of {name!r} is not one that `fedilc key show` prints: {key[:100]!r}"
        ) from None
