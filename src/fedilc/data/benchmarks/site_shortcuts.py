"""Synthetic sites, each with a shortcut of its own: columns that tell the label there and nowhere else."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from fedilc.data.silo import Federation, Silo
from fedilc.seeds import numpy_generator

_TEST = 4000


def site_shortcuts(
    seed: int = 0,
    silos: int = 10,
    examples: int = 300,
    validation: int = 100,
    features: int = 8,
    effect: float = 0.25,
    markers: int = 6,
    marker_effect: float = 1.5,
) -> Federation:
    """Return silos whose labels can be told from common features, or more easily from a silo's own markers.

    All columns are normal with variance 1. The mean of a common feature is `effect` for the label 1 and
    minus that for the label 0, in every silo and in the test. Each silo has `markers` further columns, whose
    means differ by `marker_effect` in the same way in that silo; in all other silos and in the test they are
    noise. Both labels are equally frequent.

    >>> federation = site_shortcuts(silos=3)
    >>> federation.inputs, [len(silo) for silo in federation.silos]
    ((26,), [300, 300, 300])
    """
    name, width = "site-shortcuts", features + silos * markers

    def site(rows: int, *where: str | int) -> tuple[Tensor, Tensor]:
        random = numpy_generator(seed, name, *where)
        y = random.integers(0, 2, rows)
        means = np.zeros(width)
        means[:features] = effect
        if isinstance(where[0], int):
            first = features + where[0] * markers
            means[first : first + markers] = marker_effect
        x = random.normal(size=(rows, width)) + np.outer(2 * y - 1, means)
        return torch.from_numpy(x.astype(np.float32)), torch.from_numpy(y.astype(np.float32))

    digits = len(str(silos))
    members = [
        Silo(f"site-{n + 1:0{digits}d}", *site(examples, n, "train"), *site(validation, n, "validation"))
        for n in range(silos)
    ]
    return Federation(name, members, *site(_TEST, "test"), loss="binary")
