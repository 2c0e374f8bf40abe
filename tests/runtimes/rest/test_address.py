"""A secret that everybody can read is noted."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedilc.errors import FedILCWarning
from fedilc.runtimes.rest.address import warn_if_public


@pytest.mark.parametrize("mode", [0o644, 0o604, 0o602, 0o640, 0o600])
def test_a_secret_that_everybody_can_read_is_noted(mode: int, tmp_path: Path) -> None:
    file = tmp_path / "key.pem"
    file.write_text("secret")
    file.chmod(mode)
    if mode & 0o006:
        with pytest.warns(FedILCWarning, match="chmod 600"):
            warn_if_public(file, "a key")
    else:
        warn_if_public(file, "a key")
