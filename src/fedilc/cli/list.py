"""`fedilc list`: everything that can be named in an experiment, and the options of one part."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedilc.cli.console import make_console, say

if TYPE_CHECKING:
    from fedilc.algorithms.registry import Registry


def list_(
    part: Annotated[
        str | None, typer.Argument(metavar="PART", help="Show the options of this part, such as geometric.")
    ] = None,
) -> None:
    """Show algorithms, their parts, experiments and models, one line each; or the options of one part."""
    from rich.table import Table

    from fedilc import algorithms
    from fedilc.config import read_experiment, shipped_experiments

    console = make_console()
    if part is not None:
        say(console, _options(part))
        return
    groups = {
        "algorithms": {name: algorithms.get(name).summary for name in algorithms.names()},
        **{r.plural: {name: r.summary(name) for name in r.names()} for r in _registries()},
        "experiments": {name: read_experiment(name)[0].summary for name in shipped_experiments()},
    }
    for title, lines in groups.items():
        table = Table(title=title, title_justify="left", title_style="bold", show_header=False, box=None)
        for name, summary in lines.items():
            table.add_row(f"  {name}", summary)
        console.print(table)
        console.print()


def _registries() -> tuple[Registry[Any], ...]:
    """Return all registries whose entries an experiment can name."""
    from fedilc.algorithms.loss_registry import LOSSES
    from fedilc.algorithms.metric_registry import METRICS
    from fedilc.algorithms.parts import REGISTRIES
    from fedilc.config.experiment import SOURCES
    from fedilc.models.registry import NETWORKS

    return (*REGISTRIES, LOSSES, METRICS, SOURCES, NETWORKS)


def _options(part: str) -> str:
    """Return a part of any kind with its options and their defaults, in lines."""
    from fedilc.errors import ConfigError, nearest

    found = [registry for registry in _registries() if part in registry.names()]
    if not found:
        known = [name for registry in _registries() for name in registry.names()]
        raise ConfigError(f"there is no part {part!r}{nearest(part, known)}")
    lines = []
    for registry in found:
        lines.append(f"{registry.kind} {part}: {registry.summary(part)}")
        fields = registry.fields(part).items()
        lines += [
            f"  {name} = {'(required)' if f.is_required() else f.get_default(call_default_factory=True)}"
            for name, f in fields
        ]
        lines += [] if fields else ["  it has no options"]
    return "\n".join(lines)
