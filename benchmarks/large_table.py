"""A large table of several sites, made of random numbers: for measures of time and memory."""

from __future__ import annotations

import argparse
import contextlib
import subprocess
import tempfile
import time
from pathlib import Path

import numpy as np
import polars as pl

from benchmarks.processes import MIB, started
from benchmarks.timing import Row, at_most
from fedilc.seeds import numpy_generator

SITES, NAMES = 4, 5


def large_table(rows: int, columns: int = 50) -> pl.DataFrame:
    """Return rows of `SITES` sites: numbers, some of them missing, and a few columns of names.

    Of the columns, `NAMES` hold one of six names each. The label depends on ten numbers and two names.
    """
    random = numpy_generator(0, "large table", rows, columns)
    site = np.sort(random.integers(0, SITES, rows))
    numbers = random.normal(size=(rows, columns - NAMES)) * random.uniform(0.5, 20, columns - NAMES)
    numbers += random.normal(size=(SITES, columns - NAMES))[site]
    names = random.integers(0, 6, size=(rows, NAMES))
    scaled = numbers[:, :10] / numbers[:, :10].std(0)
    logits = scaled @ random.normal(size=10) / 3 + (names[:, 0] == 1) - (names[:, 1] == 2) - 1.5
    label = (random.random(rows) < 1 / (1 + np.exp(-logits))).astype(int)
    held = {f"number {place}": pl.Series(numbers[:, place].round(3)) for place in range(numbers.shape[1])}
    for place in range(0, len(held), 9):
        name = f"number {place}"
        held[name] = held[name].set(pl.Series(random.random(rows) < 0.1), None)
    words = np.array(["red", "green", "blue", "black", "white", "grey"])
    held |= {f"name {place}": pl.Series(words[names[:, place]]) for place in range(NAMES)}
    sites = pl.Series(np.array([f"site {number}" for number in range(SITES)])[site])
    return pl.DataFrame({"site": sites, **held, "outcome": label})


def rows(quick: bool) -> list[Row]:
    """Return the most memory of a study of a large table, in this process and its workers together.

    Pages that processes share count once (proportional set size). Rounds are few: memory does not depend on
    them.
    """
    size = 10_000 if quick else 100_000
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        large_table(size).write_csv(folder / "large.csv")
        words = [folder / "large.csv", "--label", "outcome", "--silo-column", "site", "--out", folder / "out"]
        few = ["--rounds", 2, "--seeds", 1, "-a", "fedsgd", "-a", "geometric", "--learning-rates", 0.01]
        began, most = time.perf_counter(), 0
        with started("fedilc", "study", *words, *few, output=subprocess.DEVNULL) as process:
            while process.poll() is None:
                most = max(most, _shared_out(process.pid))
                time.sleep(0.5)
            if process.returncode:
                raise RuntimeError(f"{process.args} ended with {process.returncode}")
    detail = f"{most / MIB:.0f} MiB / 1,024 MiB, {time.perf_counter() - began:.0f} s"
    what = f"study of {size:,} x 50 rows, parent and workers, most memory"
    return [at_most("large table", what, "1 GiB", most / 2**30, 1, detail)]


def _shared_out(pid: int) -> int:
    """Return the bytes of a process and its children, each shared page divided among those that share it."""
    import psutil

    total = 0
    with contextlib.suppress(psutil.NoSuchProcess):
        first = psutil.Process(pid)
        for one in (first, *first.children(recursive=True)):
            with contextlib.suppress(psutil.NoSuchProcess):
                total += one.memory_full_info().pss
    return total


def main() -> None:
    """Write a table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.large_table", description=__doc__)
    parser.add_argument("path", type=Path, help="of the CSV file")
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--columns", type=int, default=50)
    arguments = parser.parse_args()
    large_table(arguments.rows, arguments.columns).write_csv(arguments.path)


if __name__ == "__main__":
    main()
