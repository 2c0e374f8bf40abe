"""Files with secrets: who else can read them."""

from __future__ import annotations

import stat
import warnings
from pathlib import Path

from fedilc.errors import FedILCWarning


def warn_if_public(path: Path | None, what: str) -> None:
    """Warn if every user of this machine can read a file that holds a secret."""
    if path is None or not path.exists():
        return
    if path.stat().st_mode & (stat.S_IROTH | stat.S_IWOTH):
        warnings.warn(
            f"every user of this machine can read or change {path}, {what}; chmod 600 it",
            FedILCWarning,
            stacklevel=2,
        )
