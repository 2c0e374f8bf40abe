"""Fairness of a model over silos, from their accuracies."""

from __future__ import annotations

import math
from collections.abc import Mapping


def fairness(accuracies: Mapping[str, float]) -> dict[str, float | str]:
    """Return the variance and entropy of accuracies, their KL divergence to uniform, and the worst silo.

    The variance is over silos (1/n). The entropy, in nats, is that of the accuracies divided by their sum;
    the divergence of that distribution from the uniform one is log(n) minus the entropy.

    >>> even = fairness({"a": 0.5, "b": 0.5})
    >>> even["variance"], round(even["entropy"], 4), even["divergence"]
    (0.0, 0.6931, 0.0)
    >>> fairness({"a": 0.9, "b": 0.5})["worst_silo"]
    'b'
    """
    values = list(accuracies.values())
    mean = sum(values) / len(values)
    total = sum(values)
    shares = [value / total for value in values] if total else [1 / len(values)] * len(values)
    entropy = -sum(share * math.log(share) for share in shares if share > 0)
    worst = min(accuracies, key=lambda silo: accuracies[silo])
    return {
        "variance": sum((value - mean) ** 2 for value in values) / len(values),
        "entropy": max(0.0, entropy),
        "divergence": max(0.0, math.log(len(values)) - entropy),
        "worst_silo": worst,
        "worst_accuracy": accuracies[worst],
    }
