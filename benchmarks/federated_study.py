"""What a study over silos costs beside the same study of the same tables at one place.

    python -m benchmarks.federated_study [--silos 12] [--rows 11000] [--rounds 100] [--seeds 3]

Tables are synthetic: numbers, a category, gaps. Silos and coordinator are processes of one thread each, on
loopback; the study at one place has one worker per core. Both are without comparators, of which some need
pooled data. Wall time depends on what else the machine does, so its load is shown; processor time is that of
all processes.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from benchmarks.processes import finish, started, url_of

TABLE = ["--label", "died", "--categorical", "ward"]
PATIENCE = 3600.0


def write_tables(folder: Path, silos: int, rows: int) -> list[str]:
    """Write a table per silo, of sizes that differ; return their names."""
    names = [f"site{number}" for number in range(1, silos + 1)]
    shares = np.linspace(0.5, 1.5, silos) / silos
    for number, (name, share) in enumerate(zip(names, shares, strict=True)):
        random, count = np.random.default_rng(number), round(share * rows)
        numbers = {f"x{place}": random.normal(0, 1, count).round(3) for place in range(12)}
        risk = sum(numbers[f"x{place}"] / (place + 1) for place in range(12)) + random.normal(0, 1.5, count)
        gaps = np.where(random.random(count) < 0.2, "", numbers["x3"].astype(str))
        columns = {
            **numbers,
            "x3": gaps,
            "ward": random.integers(1, 5, count),
            "died": (risk > 1).astype(int),
        }
        pl.DataFrame(columns).write_csv(folder / f"{name}.csv")
    return names


def over_http(folder: Path, names: Sequence[str], rounds: int, seeds: int) -> None:
    """Do the study over silos as processes."""
    (folder / "study.toml").write_text(
        f"[study]\nrounds = {rounds}\nseeds = {seeds}\nreferences = false\n[data]\n"
        f'source = "remote-tables"\nsilos = {json.dumps(list(names))}\n'
        'label = "died"\ncategorical = ["ward"]\n'
    )
    with ExitStack() as stack:
        serving = ("serve", folder / "study.toml", "--insecure", "--port", 0, "--out", folder / "rest")
        coordinator = stack.enter_context(started("fedilc", *serving))
        url = url_of(coordinator)
        for name in names:
            own = (
                "--data",
                folder / f"{name}.csv",
                "--state",
                folder / name,
                "--page",
                folder / f"{name}.html",
            )
            joining = ("join", url, "--silo", name, "--yes", *own)
            stack.enter_context(started("fedilc", *joining, output=subprocess.DEVNULL))
        finish(coordinator, PATIENCE)


def at_one_place(folder: Path, names: Sequence[str], rounds: int, seeds: int) -> None:
    """Do the same study of the tables together."""
    tables = [folder / f"{name}.csv" for name in names]
    how = ("--rounds", rounds, "--seeds", seeds, "--no-references", "--min-cell", 10)
    with started("fedilc", "study", *tables, *TABLE, *how, "--out", folder / "local") as process:
        finish(process, PATIENCE)


def measured(do: Callable[..., None], *arguments: Any) -> tuple[float, float]:
    """Return the wall time and the processor time of all processes that something starts."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    do(*arguments)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    processor = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return time.perf_counter() - began, processor


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name, value in (("silos", 12), ("rows", 11_000), ("rounds", 100), ("seeds", 3)):
        parser.add_argument(f"--{name}", type=int, default=value)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        names = write_tables(folder, given.silos, given.rows)
        own = (folder, names, given.rounds, given.seeds)
        load = os.getloadavg()[0]
        local = measured(at_one_place, *own)
        remote = measured(over_http, *own)
    sys.stdout.write(f"load when it began: {load:.1f} on {os.cpu_count()} cores\n")
    for name, (wall, processor) in (("at one place", local), ("over HTTP", remote)):
        sys.stdout.write(f"{name}: {wall:.0f} s, processor {processor:.0f} s\n")
    ratio = remote[0] / local[0], remote[1] / local[1]
    sys.stdout.write(f"over HTTP / at one place: {ratio[0]:.2f} (wall), {ratio[1]:.2f} (processor)\n")


if __name__ == "__main__":
    main()
