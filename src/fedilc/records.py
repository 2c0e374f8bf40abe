"""What a round leaves: the server's record, brought into the shape of a history."""

from __future__ import annotations

from fedilc.evaluation import fairness
from fedilc.federation import Record

_METRICS = ("loss", "accuracy", "auroc", "auprc")


def flatten(record: Record) -> Record:
    """Means on top; below them each silo's numbers and the fairness over silos."""
    validation = record.pop("validation", {})
    test = record.pop("test", {})
    silos = record.pop("silos")
    flat = dict(record)
    for key in _METRICS:
        values = [numbers[key] for numbers in validation.values() if numbers[key] is not None]
        if values:
            flat[f"validation_{key}"] = sum(values) / len(values)
        if key in test:
            flat[f"test_{key}"] = test[key]
    if validation:
        flat["fairness"] = fairness({silo: numbers["accuracy"] for silo, numbers in validation.items()})
    for silo, numbers in validation.items():
        silos.setdefault(silo, {}).update({f"validation_{key}": v for key, v in numbers.items()})
    flat["silos"] = silos
    return flat
