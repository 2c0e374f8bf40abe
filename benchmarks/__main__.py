"""`make bench`: one table of ratios, and the same as JSON."""

from __future__ import annotations

import argparse
import json
import platform
import signal
import time
from pathlib import Path

import torch
from rich import box
from rich.console import Console
from rich.table import Table

from benchmarks import (
    aggregation,
    attacks,
    estimators,
    growth,
    large_table,
    nvflare,
    per_example,
    ranks,
    rest,
    rounds,
    secure,
    startup,
    tree,
)
from benchmarks.timing import Row

GROUPS = {
    "aggregation": aggregation.rows,
    "per-example": per_example.rows,
    "rounds": rounds.rows,
    "estimators": estimators.rows,
    "growth": growth.rows,
    "rest": rest.rows,
    "tree": tree.rows,
    "secure": secure.rows,
    "attacks": attacks.rows,
    "ranks": ranks.rows,
    "nvflare": nvflare.rows,
    "startup": startup.rows,
    "large-table": large_table.rows,
}


def main() -> None:
    """Measure the groups asked for, print them, and write them."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("groups", nargs="*", choices=[*GROUPS, []], help="default: all")
    parser.add_argument("--quick", action="store_true", help="smaller sizes, under two minutes")
    parser.add_argument("--json", type=Path, default=Path("benchmarks.json"), help="where to write the rows")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # processes that were started end as well
    console = Console(width=max(120, Console().width))
    found: list[Row] = []
    started = time.perf_counter()
    for name in arguments.groups or GROUPS:
        console.print(f"measuring {name} ...", style="dim")
        found += GROUPS[name](arguments.quick)
    console.print(_table(found))
    facts = {
        "machine": platform.processor() or platform.machine(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "seconds": round(time.perf_counter() - started, 1),
        "quick": arguments.quick,
    }
    arguments.json.write_text(json.dumps({**facts, "rows": [row.plain() for row in found]}, indent=2) + "\n")
    console.print(
        f"{facts['threads']} threads, torch {facts['torch']}, {facts['seconds']} s; {arguments.json}"
    )


def _table(found: list[Row]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, header_style="")
    for heading in ("group", "what", "against"):
        table.add_column(heading)
    for heading in ("ratio", "goal"):
        table.add_column(heading, justify="right")
    table.add_column("")
    table.add_column("detail")
    for row in found:
        mark = "[green]met[/]" if row.met else "[red]missed[/]"
        table.add_row(row.group, row.what, row.against, f"{row.ratio:.2f}", row.goal, mark, row.detail)
    return table


if __name__ == "__main__":
    main()
