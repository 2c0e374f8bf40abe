"""A study of a table that no other test has, beside code of its own: scikit-learn, and formulas in numpy.

Nothing here calls fedilc but the command: preprocessing, models, scores, variances and random effects are
written again, and every number is looked up in study.json.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import polars as pl
import pytest
from command import fedilc
from scipy.optimize import brentq, minimize_scalar
from scipy.special import expit, logit
from scipy.stats import norm, t
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import brier_score_loss, log_loss, roc_auc_score

SIZES = {"Basel": 90, "Gdansk": 240, "Leuven": 150, "Porto": 120, "Turku": 310}
RIDGE, THRESHOLDS = 0.003, (0.15, 0.4)
METHOD = "pooled logistic"
pytestmark = pytest.mark.slow
Floats = np.ndarray[Any, np.dtype[np.float64]]


def wards() -> pl.DataFrame:
    random, parts = np.random.default_rng(20261118), []
    for site, rows in SIZES.items():
        shift = random.normal(0, 0.6, 3)
        lactate, age = random.gamma(2, 1, rows).round(3), random.normal(62 + 5 * shift[0], 14, rows).round(1)
        ward = random.choice(["medical", "surgical", "icu"], rows)
        risk = (
            -1 + (0.7 + shift[1] / 2) * (lactate - 2) + 0.03 * (age - 62) + 0.9 * (ward == "icu") + shift[2]
        )
        columns = {"lactate": lactate, "age": age, "ward": ward}
        parts.append(
            pl.DataFrame({"site": [site] * rows, **columns, "died": (random.random(rows) < expit(risk)) * 1})
        )
    return pl.concat(parts)


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("wards")
    wards().write_csv(folder / "wards.csv")
    words = ("--silo-column", "site", "--label", "died", "-a", "fedavg", "-a", "logistic", "--seeds", 1)
    words += (
        "--rounds",
        2,
        "--learning-rates",
        0.1,
        "--weight-decays",
        RIDGE,
        "--jobs",
        1,
        "--scalings",
        "moments",
    )
    words += ("--thresholds", ",".join(map(str, THRESHOLDS)), "--out", folder / "out")
    fedilc("study", folder / "wards.csv", *words)
    found: dict[str, Any] = json.loads((folder / "out/study.json").read_text())
    found["predictions"] = pl.read_parquet(folder / "out/predictions.parquet")
    return found


@pytest.fixture(scope="module")
def own() -> dict[str, tuple[Floats, Floats]]:
    """Labels and logits of ridge logistic regression trained on all sites but one, by that site."""
    frame, found = wards(), {}
    for site in SIZES:
        train, test = frame.filter(pl.col("site") != site), frame.filter(site=site)
        numbers = [(train[name].mean(), train[name].to_numpy().std()) for name in ("lactate", "age")]

        def inputs(rows: pl.DataFrame, numbers: list[Any] = numbers) -> Floats:
            scaled = [
                (rows[n].to_numpy() - m) / s for n, (m, s) in zip(("lactate", "age"), numbers, strict=True)
            ]
            levels = [(rows["ward"] == one).to_numpy() * 1.0 for one in ("icu", "medical", "surgical")]
            return np.stack([*scaled, *levels], 1)

        model = LogisticRegression(C=1 / (RIDGE * len(train)), solver="newton-cholesky", tol=1e-12)
        model.fit(inputs(train), train["died"].to_numpy())
        found[site] = (test["died"].to_numpy().astype(float), model.decision_function(inputs(test)))
    return found


def delong(y: Floats, z: Floats) -> tuple[float, float]:
    """The area and its variance, by counting every pair."""
    psi = (z[y == 1][:, None] > z[y == 0]) + 0.5 * (z[y == 1][:, None] == z[y == 0])
    m, n = psi.shape
    return psi.mean(), psi.mean(1).var(ddof=1) / m + psi.mean(0).var(ddof=1) / n


def line(y: Floats, z: Floats) -> tuple[float, float]:
    """Calibration slope, and the intercept with slope 1."""
    slope = LogisticRegression(C=np.inf, solver="newton-cholesky", tol=1e-12).fit(z[:, None], y).coef_.item()
    return slope, brentq(lambda a: expit(a + z).sum() - y.sum(), -20, 20, xtol=1e-13)


def test_scores_per_site_are_those_of_scikit_learn(
    study: dict[str, Any], own: dict[str, tuple[Floats, Floats]]
) -> None:
    for site, (y, z) in own.items():
        found = study["sites"][site][METHOD]
        slope, intercept = line(y, z)
        expected = {
            "auroc": roc_auc_score(y, z),
            "log_loss": log_loss(y, expit(z)),
            "log_loss_refitted": log_loss(y, expit(z + intercept)),
            "brier": brier_score_loss(y, expit(z)),
            "accuracy": ((z > 0) == y).mean(),
            "calibration_slope": slope,
            "calibration_intercept": intercept,
        }
        for name, value in expected.items():
            assert found[name]["value"] == pytest.approx(value, abs=1e-6), (site, name)
        area, variance = delong(y, z)
        reach = norm.ppf(0.975) * variance**0.5 / (area * (1 - area))
        ends = expit([logit(area) - reach, logit(area) + reach])
        assert (found["auroc"]["low"], found["auroc"]["high"]) == pytest.approx(tuple(ends), abs=1e-6)
        ratio = study["calibration"][site][METHOD]["oe_ratio"]["value"]
        assert ratio == pytest.approx(y.sum() / expit(z).sum(), abs=1e-6)
        for place, p in enumerate(THRESHOLDS):
            treated = expit(z) >= p
            worth = (treated & (y == 1)).mean() - (treated & (y == 0)).mean() * p / (1 - p)
            given = study["net_benefit"]["sites"][site][METHOD][place]["value"]
            assert given == pytest.approx(worth, abs=1e-6)


def test_federated_logistic_regression_predicts_what_scikit_learn_predicts(
    study: dict[str, Any], own: dict[str, tuple[Floats, Floats]]
) -> None:
    for site, (_, z) in own.items():
        for method in ("logistic", METHOD):
            made = study["predictions"].filter(site=site, method=method, seed=0).sort("row")["output"]
            assert made.to_numpy() == pytest.approx(z, abs=1e-6)


def random_effects(y: Floats, v: Floats) -> dict[str, float]:
    """REML by maximising the restricted likelihood, Hartung-Knapp, and the prediction interval."""
    k = len(y)

    def minus_likelihood(tau: float) -> float:
        w = 1 / (v + tau**2)
        mean = (w @ y) / w.sum()
        return float(-np.log(w).sum() + np.log(w.sum()) + w @ (y - mean) ** 2)

    grid = np.linspace(0, 3, 3001)
    near = grid[np.argmin([minus_likelihood(tau) for tau in grid])]
    bounds = (max(0, near - 0.002), near + 0.002)
    tau = minimize_scalar(minus_likelihood, bounds=bounds, method="bounded", options={"xatol": 1e-12}).x
    tau = 0.0 if minus_likelihood(0.0) <= minus_likelihood(tau) else tau
    w = 1 / (v + tau**2)
    mean = (w @ y) / w.sum()
    se = np.sqrt(w @ (y - mean) ** 2 / (k - 1) / w.sum())
    reach, further = t.ppf(0.975, k - 1) * se, t.ppf(0.975, k - 2) * np.sqrt(tau**2 + se**2)
    return {
        "tau": tau,
        "mean": mean,
        "hk_low": mean - reach,
        "hk_high": mean + reach,
        "reml_low": mean - further,
        "reml_high": mean + further,
    }


def test_estimates_and_random_effects_are_those_of_plain_formulas(
    study: dict[str, Any], own: dict[str, tuple[Floats, Floats]]
) -> None:
    auroc, ratio, slopes = [], [], []
    for y, z in own.values():
        area, variance = delong(y, z)
        auroc.append((logit(area), variance / (area * (1 - area)) ** 2))
        events = y.sum()
        ratio.append((np.log(events / expit(z).sum()), (1 - y.mean()) / events))
        slope, _ = line(y, z)
        p = expit(brentq(lambda a, y=y, z=z, s=slope: expit(a + s * z).sum() - y.sum(), -20, 20) + slope * z)
        x = np.stack([np.ones_like(z), z], 1)
        slopes.append((slope, np.linalg.inv(x.T @ (x * (p * (1 - p))[:, None]))[1, 1]))
    for score, pairs, back in (
        ("auroc", auroc, expit),
        ("oe_ratio", ratio, np.exp),
        ("calibration_slope", slopes, float),
    ):
        values, variances = np.array(pairs).T
        for site, value, variance in zip(SIZES, values, variances, strict=True):
            one = study["estimates"][METHOD][score][site]
            assert (one["estimate"], one["variance"]) == pytest.approx((value, variance), abs=1e-6)
        found, expected = study["next_site"][METHOD][score], random_effects(values, variances)
        assert found["tau"] == pytest.approx(expected.pop("tau"), abs=2e-5)
        for name, value in expected.items():
            assert found[name] == pytest.approx(back(value), abs=1e-5), (score, name)
