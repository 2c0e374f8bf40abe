"""Summarise a comparison of two runs in one sentence that is made from its numbers."""

from __future__ import annotations

from collections.abc import Mapping

from fedilc.report.run_tables import History

CLEARLY = 0.05
_NEEDED = ("validation_accuracy", "test_accuracy")


def finding(histories: Mapping[str, History]) -> str | None:
    """Return how the last run does beside the first, at the silos and at the new site, in their last rounds.

    None if a run has no accuracy at one of them.

    >>> def ended(silos, site):
    ...     return [{"round": 9, "validation_accuracy": silos, "test_accuracy": site}]
    >>> finding({"fedsgd": ended(0.8, 0.3), "mine": ended(0.8, 0.7)})
    'In this run, fedsgd is right in 80 % of the cases at the silos and in 30 % at the new site, and mine ...'
    """
    reference, *_, method = histories
    last = [histories[name][-1] for name in (reference, method)]
    if any(record.get(key) is None for record in last for key in _NEEDED):
        return None
    silos, site = ([float(record[key]) for record in last] for key in _NEEDED)
    gain, cost = site[1] - site[0], silos[0] - silos[1]
    if abs(gain) <= CLEARLY:
        told = "neither is clearly better at the new site"
    elif gain < 0:
        told = f"{reference} is the better one at the new site"
    elif cost > 0:
        told = f"{reference} learnt more of what helps at the silos and misleads at the new site"
    else:
        told = f"{method} is the better one at both"
    return (
        f"In this run, {reference} is right in {silos[0]:.0%} of the cases at the silos and in {site[0]:.0%} "
        f"at the new site, and {method} in {silos[1]:.0%} and {site[1]:.0%}: {told}."
    ).replace("%", " %")
