"""The folder with the real data sets, for tests that need one of them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fedilc.data.download import find_data_set

_NAMED = os.environ.get("FEDILC_DATA")  # read once, since tests set the variable to folders of their own


def real_data(*names: str) -> Path:
    """The data folder; skips where it has nothing of one of these data sets."""
    for name in names:
        if not _NAMED or not find_data_set(name).found(Path(_NAMED)).share(Path(_NAMED)):
            pytest.skip(
                f"needs the data set {name}: get it with `fedilc data fetch {name} --data-dir FOLDER`, "
                "and name that folder in the environment variable FEDILC_DATA"
            )
    return Path(_NAMED or "")
