"""A held-out site with made-up labels and predictions, and its document."""

from __future__ import annotations

import numpy as np

from fedilc.evaluation.estimates import NO_FLOORS, Floors
from fedilc.studies.study.scoring import Asked, SiteRows, score_site
from fedilc.studies.study.site_scores import SiteScores

METRICS = ("auroc", "auprc", "log_loss", "brier", "calibration_slope")
ASKED = Asked("binary", 1, METRICS, 2, (0.1, 0.3), ("sex",))


def made_rows(rows: int, each: int = 1, seed: int = 0) -> SiteRows:
    """Return a site with so many rows, and so many rows per patient."""
    random = np.random.default_rng(seed)
    z = random.normal(-0.5, 1, rows)
    y = (random.random(rows) < 1 / (1 + np.exp(-z))).astype(float)
    outputs = {
        "fedavg": [(z + random.normal(0, 0.5, rows))[:, None] for _ in range(2)],
        "geometric": [(2 * z + random.normal(0, 0.5, rows))[:, None] for _ in range(2)],
        "site alone": [(z + random.normal(0, 2, rows))[:, None] for _ in range(2)],
        "null": [np.full((rows, 1), -0.4)] * 2,
    }
    patients = None if each == 1 else random.integers(0, rows // each, rows)
    models = {"site alone": random.integers(0, 5, rows)}
    sex = np.where(random.random(rows) < 0.4, "sex = f", "sex = m")
    return SiteRows("H0", y, outputs, patients, models, {"sex": sex}, drawn=("fedavg", "geometric"))


def made_document(rows: int, each: int = 1, seed: int = 0, floors: Floors = NO_FLOORS) -> SiteScores:
    """Return its document."""
    return score_site(made_rows(rows, each, seed), ASKED, floors)
