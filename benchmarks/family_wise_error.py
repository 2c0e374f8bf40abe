"""How often a study finds a difference between methods that are equally good, in simulated studies.

Five methods learn from columns of their own, or from columns that they share and some of their own, all of
the same kind: none is better at the next site, and every difference found is an error. Columns are normal;
their means for events and non-events differ, on average over sites by what gives a perfect method an AUROC of
.75, and from site to site by what gives the AUROC a standard deviation of .055. A method weights its columns
by the mean difference at the training sites and is scored at the site left out, by the AUROC of normal scores
with the differences measured there. A quarter of the patients have the event.

If the deviations of columns differ ("units", up to 1:5 and 1:30), these weights are far from the best ones.
The last is meant to be hard: a few columns rule all weights.

    python -m benchmarks.family_wise_error --out results/coverage          # half a minute of one core
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import numpy as np
from scipy.stats import norm, t

from fedilc.evaluation.calibration import Floats
from fedilc.evaluation.significance import LEVEL, overlap_factor
from fedilc.seeds import numpy_generator

SITES, METHODS, AT_ONCE = (4, 8, 20), 5, 500
AUROC, TAU, PREVALENCE = 0.75, 0.055, 0.25
Row = Mapping[str, object]


@dataclass(frozen=True)
class Setting:
    """Columns that methods share and that each has alone, the range of their units, and patients per site.

    None stands for sites of 60 to 1,500 patients.
    """

    shared: int
    own: int
    units: int
    patients: int | None

    def sizes(self, sites: int) -> Floats:
        """Return the patients of each site."""
        return (
            np.geomspace(60, 1500, sites) if self.patients is None else np.full(sites, float(self.patients))
        )


SETTINGS = (
    Setting(0, 10, 1, 300),
    Setting(0, 10, 1, 60),
    Setting(8, 2, 1, 300),
    Setting(5, 5, 1, None),
    Setting(0, 40, 1, 60),
    Setting(0, 40, 1, None),
    Setting(0, 10, 5, None),
    Setting(0, 10, 30, 300),
)


def differences(setting: Setting, sites: int, studies: int, seed: int) -> tuple[Floats, Floats]:
    """Return per study, site and method its AUROC minus that of the first, and the variance over patients."""
    generator = numpy_generator(seed, "family-wise error", f"{setting} {sites}")
    each = setting.shared + setting.own
    units = np.geomspace(1, setting.units, each)[numpy_generator(0, "units", str(each)).permutation(each)]
    units /= np.sqrt(np.mean(units**2))
    # Columns in a row: the shared ones, then those of each method.
    places = np.r_[: setting.shared, np.tile(np.arange(setting.shared, each), METHODS)]
    owner = np.repeat([-1, *range(METHODS)], [setting.shared, *[setting.own] * METHODS])
    uses = (owner == -1) | (owner == np.arange(METHODS)[:, None])
    deviation = units[places]
    apart, between = np.sqrt(2) * norm.ppf(AUROC), TAU * np.sqrt(2) / norm.pdf(norm.ppf(AUROC))
    sizes = setting.sizes(sites)
    sampling = 1 / (sizes * PREVALENCE) + 1 / (sizes * (1 - PREVALENCE))
    noise = np.sqrt(between**2 + sampling)[:, None] * deviation
    measured = apart / np.sqrt(each) + noise * generator.normal(size=(studies, sites, len(places)))
    parts = measured * (sizes / sizes.sum())[:, None]
    weights = parts.sum(1, keepdims=True) - parts
    directions = np.stack([weights * use for use in uses], 2)
    directions /= np.linalg.norm(directions * deviation, axis=3, keepdims=True)
    scores = np.einsum("abmc,abc->abm", directions, measured) / np.sqrt(2)
    scaled = directions * deviation
    alike = np.einsum("abmc,abc->abm", scaled, scaled[:, :, 0])
    density = norm.pdf(scores)
    first = density[..., :1]
    variance = sampling[:, None] / 2 * (density**2 + first**2 - 2 * density * first * alike)
    areas = norm.cdf(scores)
    return (areas - areas[..., :1])[..., 1:], variance[..., 1:]


def p_values(found: Floats, variance: Floats, factor: float) -> Floats:
    """Return p per study and method, as `fedilc.evaluation.significance.mean_difference` has it."""
    sites = found.shape[1]
    error = np.sqrt(variance.sum(1)) / sites
    se = np.maximum(found.std(1, ddof=1) * np.sqrt(factor), error)
    p: Floats = 2 * t.sf(np.abs(found.mean(1)) / se, sites - 1)
    return p


def any_rejected(p: Floats) -> float:
    """Return the share of studies in which Holm's method rejects anything: its first step decides."""
    return float(np.mean(p.min(1) < LEVEL / p.shape[1]))


def row(setting: Setting, sites: int, studies: int) -> Row:
    """Return the errors of the test at one setting and number of sites."""
    parts = [differences(setting, sites, AT_ONCE, seed) for seed in range(studies // AT_ONCE)]
    found, variance = (np.concatenate(part) for part in zip(*parts, strict=True))
    # The variance of a mean of k numbers of correlation r is (1 + (k - 1) r) / k of that of one.
    of_one, of_mean = found.var(0).mean(), found.mean(1).var(0).mean()
    return {
        "sites": sites,
        "shared columns": setting.shared,
        "own columns": setting.own,
        "units": f"1:{setting.units}",
        "patients": "60 to 1500" if setting.patients is None else setting.patients,
        "correlation": round(float((sites * of_mean / of_one - 1) / (sites - 1)), 3),
        "plain t-test": round(any_rejected(p_values(found, np.zeros_like(found), 1 / sites)), 4),
        "corrected": round(any_rejected(p_values(found, variance, overlap_factor(sites, sites - 1))), 4),
    }


def main() -> None:
    """Simulate every setting, print the table, and write it."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.family_wise_error", description=__doc__)
    parser.add_argument("--studies", type=int, default=10_000, help=f"a multiple of {AT_ONCE}")
    parser.add_argument("--out", type=Path, default=Path("results/coverage"))
    arguments = parser.parse_args()
    rows = [row(setting, sites, arguments.studies) for sites, setting in product(SITES, SETTINGS)]
    arguments.out.mkdir(parents=True, exist_ok=True)
    with (arguments.out / "family-wise-error.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, rows[0].keys())
        writer.writeheader()
        writer.writerows(rows)
    lines = [f"| {' | '.join(rows[0])} |", "|" + "--:|" * len(rows[0])]
    lines += [f"| {' | '.join(map(str, one.values()))} |" for one in rows]
    text = (
        f"Share of {arguments.studies:,} studies of {METHODS} equally good methods in which a difference is "
        "found at the 5 % level (Holm).\n\n" + "\n".join(lines) + "\n"
    )
    (arguments.out / "family-wise-error.md").write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
