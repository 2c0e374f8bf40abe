"""`fedilc token`: make and revoke the tokens of silos and viewers."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from fedilc.errors import ConfigError


def token(
    name: Annotated[str, typer.Argument(help="The silo's name, or the viewer's; `revoke NAME` ends one.")],
    revoked: Annotated[str | None, typer.Argument(metavar="[NAME]", hidden=True)] = None,
    tokens: Annotated[Path, typer.Option(help="The token file; it is made if it does not exist.")] = Path(
        "tokens.json"
    ),
    viewer: Annotated[bool, typer.Option("--viewer", help="May watch, and nothing else.")] = False,
    replace: Annotated[bool, typer.Option("--replace", help="Make a new one in place of the old.")] = False,
    days: Annotated[
        float | None, typer.Option(min=0, help="After how many days it ends (default: never)")
    ] = None,
    carries: Annotated[
        list[str] | None, typer.Option(metavar="SILO", help="A silo behind a sub-coordinator; may repeat.")
    ] = None,
) -> None:
    """Make a token for a silo or a viewer, and show it once; the file keeps its hash.

    `fedilc token revoke NAME` ends one. A coordinator that runs notices both at once.
    """
    from fedilc.runtimes.rest.tokens import add_token, revoke_token

    role = "viewer" if viewer else "silo"
    if revoked is not None:
        if name != "revoke":
            raise ConfigError(f"{name!r} is no command of `fedilc token`; write `fedilc token revoke NAME`")
        revoke_token(tokens, revoked, "viewers" if viewer else "silos")
        sys.stderr.write(f"the token of {role} {revoked!r} is revoked\n")
        return
    made = add_token(tokens, name, "viewers" if viewer else "silos", replace, days, carries or ())
    sys.stdout.write(f"{made}\n")
    ends = "" if days is None else f" and ends in {days:g} days"
    sys.stderr.write(
        f"this is the token of {role} {name!r}; it is shown only now{ends} ({tokens} keeps its hash)\n"
    )
