"""What a person sees of runs: tables, pictures, progress."""

from __future__ import annotations

from fedilc.errors import require_extra


def require_report(what: str) -> None:
    """Raise if the packages that draw pictures and compute p-values are not installed."""
    require_extra("report", what, "matplotlib", "PIL", "scipy")
