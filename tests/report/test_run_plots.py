"""Pictures of runs are real PNG files."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from pathlib import Path

import pytest
from histories import FULL, NO_TEST, OTHER, TRAIN_ONLY, History

from fedilc.errors import ConfigError
from fedilc.report.plots import comparison_picture, loss_picture


def size(path: Path) -> tuple[int, int]:
    """Width and height of a PNG, from its header."""
    content = path.read_bytes()
    assert content[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = struct.unpack(">II", content[16:24])
    return width, height


@pytest.mark.parametrize("history", [FULL, NO_TEST, TRAIN_ONLY], ids=["full", "no test", "train only"])
def test_the_picture_of_a_run_is_a_png(tmp_path: Path, history: History) -> None:
    loss_picture(tmp_path / "loss.png", "demo", history)
    assert min(size(tmp_path / "loss.png")) > 400


@pytest.mark.parametrize(
    ("histories", "panels"),
    [
        ({"a": FULL, "b": OTHER}, 3),
        ({"a": NO_TEST, "b": NO_TEST}, 2),
        ({"a": TRAIN_ONLY}, 1),
        ({"a": TRAIN_ONLY, "b": FULL}, 3),
    ],
    ids=["all", "no test", "train only", "mixed"],
)
def test_the_picture_of_several_runs_has_a_panel_for_each_loss_that_any_has(
    tmp_path: Path, histories: Mapping[str, History], panels: int
) -> None:
    comparison_picture(tmp_path / "loss.png", "demo", histories)
    assert size(tmp_path / "loss.png")[0] == panels * 650


def test_a_picture_makes_the_folder_it_goes_to(tmp_path: Path) -> None:
    loss_picture(tmp_path / "deep" / "er" / "loss.png", "demo", FULL)
    assert min(size(tmp_path / "deep" / "er" / "loss.png")) > 400


@pytest.mark.parametrize("name", ["loss.xyz", "file/loss.png"], ids=["format", "folder"])
def test_a_picture_that_cannot_be_written_is_named_in_one_sentence(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=f"the picture .*{name} cannot be written: ") as refused:
        comparison_picture(tmp_path / name, "demo", {"a": FULL})
    assert "\n" not in str(refused.value)
