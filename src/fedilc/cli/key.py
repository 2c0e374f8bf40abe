"""`fedilc key`: a silo's identity for secure sums, and the roster of all silos."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from fedilc.errors import require_extra

key_app = typer.Typer(
    name="key", help="Make a silo's key for secure sums, and the roster of all keys.", no_args_is_help=True
)

KeyFile = Annotated[Path, typer.Argument(help="The file of the silo's private key.")]


def _require_cryptography() -> None:
    require_extra("secure", "`fedilc key`", "cryptography")


@key_app.command()
def new(file: KeyFile) -> None:
    """Make a private key, which never leaves this file, and print its public key."""
    _require_cryptography()
    from fedilc.privacy.identities import new_identity

    sys.stdout.write(f"{new_identity(file).public}\n")
    sys.stderr.write(f"{file} holds the private key: keep it at this silo; the line above is public\n")


@key_app.command()
def show(file: KeyFile) -> None:
    """Print the public key of a private key."""
    _require_cryptography()
    from fedilc.privacy.identities import read_identity

    sys.stdout.write(f"{read_identity(file).public}\n")


@key_app.command()
def roster(
    file: Annotated[Path, typer.Argument(help="The roster; it is written if keys are given.")],
    keys: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[NAME=KEY]...", help="Each silo's name with its public key.", show_default=False
        ),
    ] = None,
) -> None:
    """Write the roster of all silos' public keys, or show one, with the digest that silos compare."""
    _require_cryptography()
    from fedilc.privacy.identities import make_roster, read_roster

    if keys:
        make_roster(keys).write(file)
    found = read_roster(file)
    for name, public in found.keys.items():
        sys.stdout.write(f"{name} {public}\n")
    sys.stdout.write(f"roster {found.digest}\n")
