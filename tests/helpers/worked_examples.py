"""The worked examples of the page on algorithms, executed: an algorithm and a penalty of one's own, by name.

`OTHERS` are the algorithms that every runtime must run as the local one does, beside the paper's six: entries
of the catalogue with local steps, silo state, adaptive weights and other penalties, and both worked examples.
"""

from __future__ import annotations

import doctest
from pathlib import Path

from fedilc import Algorithm, algorithms

DOCS = Path(__file__).parents[2] / "docs" / "reference" / "algorithms.md"
OWN_ALGORITHM, OWN_PENALTY = "coral-geo", "mean-logit"
OTHERS = (
    "fedavg",
    "scaffold",
    "fishr-inter-geo-local",
    "vrex",
    "iga",
    "irm",
    "group-dro",
    "afl",
    OWN_ALGORITHM,
    OWN_PENALTY,
)


def _execute() -> None:
    """Run every example of the page, and give the penalty an algorithm of its own."""
    page = doctest.DocTestParser().get_doctest(DOCS.read_text(), {}, DOCS.name, str(DOCS), 0)
    outcome = doctest.DocTestRunner().run(page, clear_globs=False)
    assert outcome.attempted > 0
    assert outcome.failed == 0
    algorithms.register(OWN_PENALTY, Algorithm(penalty=OWN_PENALTY))


if OWN_ALGORITHM not in algorithms.names():
    _execute()
