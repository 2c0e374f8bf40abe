"""Small runs of the command: their settings and files, and the comparisons that it prints."""

from __future__ import annotations

import json
from itertools import takewhile
from pathlib import Path
from typing import Any

SMALL = ("--set", "model.hidden=[8]")
PNG = b"\x89PNG\r\n\x1a\n"
GOOD = "age,dose,label\n" + "".join(f"{row % 7},{row / 2},{row % 2}\n" for row in range(20))
OTHER = GOOD.replace(".", ".1")
Rows = dict[tuple[str, str], list[str]]


def records(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "history.jsonl").read_text().splitlines()]


def experiment(folder: Path, second: str, third: str = "loss = 'binary'") -> Path:
    """An experiment of two CSV silos, of which the first is good."""
    folder.joinpath("a.csv").write_text(GOOD)
    folder.joinpath("b.csv").write_text(second)
    path = folder / "mine.toml"
    lines = ["rounds = 1", "learning_rate = 0.1", "[data]", "source = 'files'", "silos = '[ab].csv'", third]
    path.write_text("\n".join([*lines, "[model]", "hidden = [4]"]))
    return path


def tables(printed: str) -> list[Rows]:
    """The rows of each comparison that was printed, by criterion and run."""
    lines = printed.splitlines()
    rules = [number for number, line in enumerate(lines) if line.strip() and set(line.strip()) == {"─"}]
    found = []
    for rule in rules:
        rows: Rows = {}
        criterion = ""
        body = takewhile(lambda line: not line.startswith("On the "), lines[rule + 1 :])
        for cells in filter(None, map(str.split, body)):
            if len(cells) == 1:
                criterion = cells[0]
            else:
                rows[criterion, cells[0]] = cells[1:]
        found.append(rows)
    return found


def table(printed: str) -> Rows:
    """The rows of the one comparison that was printed."""
    (found,) = tables(printed)
    return found


def names(rows: Rows) -> list[str]:
    """The runs of a comparison, in order."""
    return list(dict.fromkeys(name for _, name in rows))
