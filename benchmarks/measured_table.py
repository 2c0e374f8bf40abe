"""`python -m benchmarks.measured_table`: write results/benchmarks.json into docs/explanation/speed.md.

`python -m benchmarks rounds --json results/benchmarks.json` measures them. A test holds the page to it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results" / "benchmarks.json"
PAGE = ROOT / "docs" / "explanation" / "speed.md"
BEGIN, END = "<!-- measured: begin -->\n", "<!-- measured: end -->\n"
GROUPS = {"MLP round": "MLP", "CNN round": "CNN"}


def table(found: dict[str, Any]) -> str:
    """Return the Markdown table of the groups that the page shows."""
    lines = ["| what | compared with | ratio | measured |", "|---|---|--:|---|"]
    for row in found["rows"]:
        if (group := GROUPS.get(row["group"])) is not None:
            what = f"{group}: {row['what']}"
            lines.append(f"| {what} | {row['against']} | {row['ratio']:.2f} | {row['detail']} |")
    return "\n".join(lines) + "\n"


def filled(page: str, found: dict[str, Any]) -> str:
    """Return the page with the table of these figures between its marks."""
    before, rest = page.split(BEGIN)
    return before + BEGIN + table(found) + END + rest.split(END)[1]


def main() -> None:
    """Write the page again."""
    PAGE.write_text(filled(PAGE.read_text(), json.loads(RESULTS.read_text())))


if __name__ == "__main__":
    main()
