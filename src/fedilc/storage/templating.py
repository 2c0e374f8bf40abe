"""Jinja2 templates: each package that writes pages or files keeps its own in a folder `templates`."""

from __future__ import annotations

from collections.abc import Hashable
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jinja2 import Environment


@cache
def templates(package: str, *, html: bool = False, **shared: Hashable) -> Environment:
    """Return the templates in a package's folder `templates`.

    A template that uses a name without a value raises an error.

    Args:
        package: full name of the package.
        html: whether every value is escaped for HTML.
        shared: values and functions that all these templates, and their macros, may use.

    >>> templates("fedilc.report.html", html=True).from_string("<p>{{ text }}</p>").render(text="a < b")
    '<p>a &lt; b</p>'
    """
    # Imported here, because most commands render nothing, and Jinja2 takes time to load.
    from jinja2 import Environment, PackageLoader, StrictUndefined

    found = Environment(
        loader=PackageLoader(package),
        autoescape=html,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    found.globals |= shared
    return found
