"""What the runs of an experiment show at the new site, in one sentence that follows from their numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from fedilc.algorithms import Algorithm
from fedilc.report.run_tables import BOTH, History

CLEARLY = 0.05  # the least difference of accuracies that counts
_PARTS = ("intra", "inter", "penalty")
_CALLED = {"geometric": "the weighted geometric mean", "fishr": "the Fishr penalty"}


def finding(histories: Mapping[str, History], parts: Mapping[str, Algorithm]) -> str | None:
    """Return what the last rounds of these runs show at the new site.

    The first run is the reference and the last one the method. If the others are the method without one of
    its parts each, the sentence names the part that does the work. Otherwise it compares the two.

    Args:
        histories: the records of each run, by name.
        parts: the algorithm of each run, by name.

    Returns:
        None if a run has no accuracy at the silos or at the new site.
    """
    last = {name: history[-1] for name, history in histories.items()}
    if any(record.get(key) is None for record in last.values() for key in BOTH):
        return None
    silos, site = ({name: float(record[key]) for name, record in last.items()} for key in BOTH)
    effects = _effects(site, parts)
    return _ablation(next(iter(site)), effects) if effects else _comparison(silos, site)


@dataclass(frozen=True)
class _Effect:
    """How much a part changes the accuracy at the new site: without the other part, and with it."""

    part: str
    alone: float
    added: float

    @property
    def helps(self) -> bool:
        return min(self.alone, self.added) > CLEARLY

    @property
    def is_idle(self) -> bool:
        return max(self.alone, self.added) <= CLEARLY


def _effects(site: Mapping[str, float], parts: Mapping[str, Algorithm]) -> list[_Effect]:
    """Return the effects of the method's two parts if the runs are with and without each; otherwise none."""
    found = [(replace(parts[name], summary="", defaults={}), value) for name, value in site.items()]
    (reference, base), *_, (method, both) = found
    changed = [key for key in _PARTS if getattr(reference, key) != getattr(method, key)]
    bare = replace(method, **{key: getattr(reference, key) for key in changed})
    if len(changed) != 2 or bare != reference:
        return []
    alone = {}
    for key in changed:
        with_it = replace(reference, **{key: getattr(method, key)})
        values = [value for algorithm, value in found if algorithm == with_it]
        if not values:
            return []
        alone[key] = values[0]
    effects = []
    for key, other in (changed, changed[::-1]):
        choice = getattr(method, key)
        name = _CALLED.get(str(choice), f"{key}={choice}")
        effects.append(_Effect(name, alone[key] - base, both - alone[other]))
    return effects


def _ablation(reference: str, effects: list[_Effect]) -> str:
    one, other = sorted(effects, key=lambda effect: -effect.alone)
    if one.helps and other.is_idle:
        told = f"here {one.part} does the work, and {other.part} does not"
    elif one.helps and other.helps:
        told = "here both help"
    elif one.is_idle and other.is_idle:
        told = "here neither helps clearly"
    else:
        told = "here the effect of one depends on the other"
    return (
        f"In this run, compared with {reference}, the accuracy at the new site changes by "
        f"{_points(one.alone)} points with {one.part}, by {_points(other.alone)} points with "
        f"{other.part}, and by {_points(one.alone + other.added)} points with both: {told}."
    )


def _points(change: float) -> str:
    """Return a change of accuracy in percentage points, with its sign.

    >>> _points(0.104), _points(-0.001)
    ('+10', '+0')
    """
    return f"{round(100 * change):+d}"


def _comparison(silos: Mapping[str, float], site: Mapping[str, float]) -> str:
    reference, *_, method = site
    gain, cost = site[method] - site[reference], silos[reference] - silos[method]
    if abs(gain) <= CLEARLY:
        told = "neither is clearly better at the new site"
    elif gain < 0:
        told = f"{reference} is the better one at the new site"
    elif cost > 0:
        told = f"{reference} learnt more of what helps at the silos and misleads at the new site"
    else:
        told = f"{method} is the better one at both"
    return (
        f"In this run, {reference} is right in {silos[reference]:.0%} of the cases at the silos and in "
        f"{site[reference]:.0%} at the new site, and {method} in {silos[method]:.0%} and {site[method]:.0%}: "
        f"{told}."
    ).replace("%", " %")
