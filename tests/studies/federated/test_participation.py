"""Who takes part in a study since when, and who has left."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedilc.errors import ConfigError
from fedilc.studies.federated.participation import FILE, Participation


def test_the_first_time_counts_and_what_was_kept_is_read_again(tmp_path: Path) -> None:
    known = Participation.read(tmp_path)
    known.note({"north": 0.0})
    known.note({"north": 60.0, "south": 120.0})
    known.leave("south", "did not answer in time", 180.0)
    again = Participation.read(tmp_path)
    assert again.parts["north"].joined == "1970-01-01T00:00:00+00:00"
    assert again.left == {"south": "did not answer in time"}
    assert again.parts["south"].left == "1970-01-01T00:03:00+00:00"


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    (tmp_path / FILE).write_text("{")
    with pytest.raises(ConfigError, match="cannot be read"):
        Participation.read(tmp_path)
