"""`fedilc token`: make and revoke the tokens of silos and viewers."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from fedilc.cli.options import refuse_given
from fedilc.errors import ConfigError


def token(
    name: Annotated[str, typer.Argument(help="The name of a silo or viewer, or `revoke NAME`.")],
    revoked: Annotated[str | None, typer.Argument(metavar="[NAME]", hidden=True)] = None,
    tokens: Annotated[Path, typer.Option(help="The token file; it is created if it does not exist.")] = Path(
        "tokens.json"
    ),
    viewer: Annotated[
        bool, typer.Option("--viewer", help="Make a viewer's token, which only gives access to the page.")
    ] = False,
    replace: Annotated[
        bool, typer.Option("--replace", help="Replace the token that the name already has.")
    ] = False,
    days: Annotated[
        float | None, typer.Option(min=0, help="The number of days until it expires. (default: never)")
    ] = None,
    carries: Annotated[
        list[str] | None,
        typer.Option(metavar="SILO", help="A silo for which this sub-coordinator may reply; may repeat."),
    ] = None,
) -> None:
    """Make a token for a silo or a viewer, and show it once; the token file stores its hash.

    `fedilc token revoke NAME` revokes one. A running coordinator notices both at once.
    """
    from fedilc.runtimes.rest.auth import add_token, revoke_token

    role = "viewer" if viewer else "silo"
    if revoked is not None:
        if name != "revoke":
            raise ConfigError(f"give one name, or `fedilc token revoke NAME`; {name!r} is not `revoke`")
        given = {"--replace": replace or None, "--days": days, "--carries": carries or None}
        refuse_given("`fedilc token revoke` makes no token", given)
        revoke_token(tokens, revoked, "viewers" if viewer else "silos")
        sys.stderr.write(f"the token of {role} {revoked!r} is revoked\n")
        return
    if viewer:
        refuse_given("a viewer replies for no silo", {"--carries": carries or None})
    made = add_token(tokens, name, "viewers" if viewer else "silos", replace, days, carries or ())
    sys.stdout.write(f"{made}\n")
    expires = "" if days is None else f"; it expires in {days:g} days"
    sys.stderr.write(
        f"this is the token of {role} {name!r}, which is shown only now ({tokens} stores its hash){expires}\n"
    )
