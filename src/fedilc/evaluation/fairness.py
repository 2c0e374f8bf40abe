"""How evenly a model serves the silos, from their accuracies."""

from __future__ import annotations

import math
from collections.abc import Mapping


def fairness(accuracies: Mapping[str, float]) -> dict[str, float | str]:
    """Variance, entropy, KL divergence to uniform, and the worst silo.

    The variance is over silos (1/n). The entropy is of the accuracies normalised to sum to one, in
    nats; the divergence of that distribution from the uniform one is log(n) minus it.

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
