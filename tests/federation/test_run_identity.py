"""A run is resumed with its own settings and data; the error names the first difference."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedilc.errors import CheckpointError
from fedilc.federation.run_identity import require_same

RUN = {
    "seed": 0,
    "rounds": 3,
    "silos": {"a": 1, "b": 2},
    "test": "x",
    "model": {"hidden": [8], "weights": "w"},
}


def test_what_does_not_change_weights_may_differ() -> None:
    require_same(Path("run"), RUN, RUN | {"rounds": 9, "device": "cpu", "machines": [1], "outlier_factor": 5})


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"seed": 1}, r"seed was 0 there and is 1 here"),
        ({"silos": {"a": 1, "b": 3}}, r"the data of silo 'b' differ"),
        ({"test": "y"}, r"the data of the test set differ"),
        ({"model": {"hidden": [8], "weights": "v"}}, r"model\.weights was 'w' there"),
        ({"seed": 1, "silos": {}}, r"seed was 0"),
        ({"zeros": "strict"}, r"zeros was None there"),
    ],
)
def test_the_first_difference_is_named(change: dict[str, object], words: str) -> None:
    with pytest.raises(CheckpointError, match=words):
        require_same(Path("run"), RUN, RUN | change)
