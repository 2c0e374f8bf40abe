"""Turn the server's record of a round into a record of the history."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median
from typing import Any

from fedilc.algorithms.metric_name import METRICS
from fedilc.evaluation import fairness
from fedilc.federation import Record
from fedilc.federation.steps import DOMAINS

NAMED_SILOS = 100
_DOMAIN_METRICS = ("accuracy", "loss", "rmse", "examples")

Metrics = Mapping[str, Any]


def flatten(record: Record) -> Record:
    """Return means at the top, and below them each silo's numbers (per sub-domain too) and the fairness.

    Of more than `NAMED_SILOS` silos only a summary stays, so that a history does not grow with them.
    """
    validation: dict[str, Metrics] = record.pop("validation", {})
    test = record.pop("test", {})
    silos = record.pop("silos")
    flat = dict(record)
    for key in METRICS.names():
        values = [value for numbers in validation.values() if (value := numbers.get(key)) is not None]
        if values:
            flat[f"validation_{key}"] = sum(values) / len(values)
    flat |= {f"test_{key}": value for key, value in test.items() if key != "examples"}
    classes = any("accuracy" in numbers for numbers in validation.values())
    if classes:
        flat["fairness"] = fairness(
            {silo: numbers["accuracy"] or 0.0 for silo, numbers in validation.items()}
        )
    by_domain: dict[str, float] = {}
    for silo, numbers in validation.items():
        entry = silos.setdefault(silo, {})
        entry.update({f"validation_{key}": value for key, value in numbers.items() if key != DOMAINS})
        domains = {
            name: {key: value for key, value in found.items() if key in _DOMAIN_METRICS}
            for name, found in numbers.get(DOMAINS, {}).items()
        }
        if domains:
            entry["validation_domains"] = domains
        if classes:
            by_domain |= {f"{silo} {name}": found["accuracy"] or 0.0 for name, found in domains.items()}
    if by_domain:
        flat["domain_fairness"] = fairness(by_domain)
    if len(silos) > NAMED_SILOS:
        flat["silos_summary"] = silos_summary(silos)
    else:
        flat["silos"] = silos
    return flat


def silos_summary(silos: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return how many silos there are, and the minimum, median and maximum of each of their numbers.

    >>> silos_summary({"a": {"train_loss": 0.5}, "b": {"train_loss": 0.25}, "c": {"train_loss": None}})
    {'count': 3, 'train_loss': {'least': 0.25, 'median': 0.375, 'greatest': 0.5}}
    """
    columns: dict[str, list[float]] = {}
    for numbers in silos.values():
        for key, value in numbers.items():
            if isinstance(value, int | float):
                columns.setdefault(key, []).append(value)
    spread = {
        key: {"least": min(values), "median": median(values), "greatest": max(values)}
        for key, values in columns.items()
    }
    return {"count": len(silos), **spread}
