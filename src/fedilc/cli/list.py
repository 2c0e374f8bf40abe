"""`fedilc list`: algorithms, experiments and models."""

from __future__ import annotations

from fedilc.cli.console import make_console


def list_() -> None:
    """Show algorithms, experiments and models, one line each."""
    from rich.table import Table

    from fedilc import algorithms
    from fedilc.config import NETWORKS, read_experiment, shipped_experiments

    groups = {
        "algorithms": {name: algorithms.get(name).summary for name in algorithms.names()},
        "experiments": {name: read_experiment(name)[0].summary for name in shipped_experiments()},
        "models": NETWORKS,
    }
    console = make_console()
    for title, lines in groups.items():
        table = Table(title=title, title_justify="left", title_style="bold", show_header=False, box=None)
        for name, summary in lines.items():
            table.add_row(f"  {name}", summary)
        console.print(table)
        console.print()
