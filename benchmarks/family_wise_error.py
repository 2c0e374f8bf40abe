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
from collections.abc import Mapping, Sequence
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

    def facts(self) -> Row:
        """Return the setting as cells of a table."""
        return {
            "shared columns": self.shared,
            "own columns": self.own,
            "units": f"1:{self.units}",
            "patients": "60 to 1500" if self.patients is None else self.patients,
        }


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


@dataclass(frozen=True)
class Studies:
    """Simulated studies; arrays are by study, site and method.

    Attributes:
        areas: the AUROC at each held-out site.
        variances: of the AUROC, over the patients of the site.
        apart: of its difference from that of the first method.
        following: the true AUROC of the models of all sites, at new sites.
    """

    areas: Floats
    variances: Floats
    apart: Floats
    following: Floats


def simulate(
    setting: Setting, sites: int, studies: int, seed: int, following: int = 0, tau: float | Floats = TAU
) -> Studies:
    """Return studies of so many sites, with so many new sites each; `tau` may be one number per study."""
    generator = numpy_generator(seed, "family-wise error", f"{setting} {sites}")
    each = setting.shared + setting.own
    units = np.geomspace(1, setting.units, each)[numpy_generator(0, "units", str(each)).permutation(each)]
    units /= np.sqrt(np.mean(units**2))
    # Columns in a row: the shared ones, then those of each method.
    places = np.r_[: setting.shared, np.tile(np.arange(setting.shared, each), METHODS)]
    owner = np.repeat([-1, *range(METHODS)], [setting.shared, *[setting.own] * METHODS])
    uses = (owner == -1) | (owner == np.arange(METHODS)[:, None])
    deviation = units[places]
    middle = np.sqrt(2) * norm.ppf(AUROC) / np.sqrt(each)
    between = np.asarray(tau)[..., None] * np.sqrt(2) / norm.pdf(norm.ppf(AUROC))
    sizes = setting.sizes(sites)
    sampling = 1 / (sizes * PREVALENCE) + 1 / (sizes * (1 - PREVALENCE))

    def drawn(noise: Floats) -> Floats:
        found: Floats = generator.normal(size=(studies, noise.shape[-1], len(places)))
        return middle + np.sqrt(noise)[..., None] * deviation * found

    def directions(weights: Floats) -> Floats:
        found = np.stack([weights * use for use in uses], 2)
        found /= np.linalg.norm(found * deviation, axis=3, keepdims=True)
        return found

    measured = drawn(between**2 + sampling)
    parts = measured * (sizes / sizes.sum())[:, None]
    total = parts.sum(1, keepdims=True)
    ours = directions(total - parts)
    scores = np.einsum("abmc,abc->abm", ours, measured) / np.sqrt(2)
    ours *= deviation
    alike = np.einsum("abmc,abc->abm", ours, ours[:, :, 0])
    density = norm.pdf(scores)
    first = density[..., :1]
    new = drawn(between**2 + np.zeros(following))
    return Studies(
        norm.cdf(scores),
        sampling[:, None] / 2 * density**2,
        sampling[:, None] / 2 * (density**2 + first**2 - 2 * density * first * alike),
        norm.cdf(np.einsum("amc,abc->abm", directions(total)[:, 0], new) / np.sqrt(2)),
    )


def differences(setting: Setting, sites: int, studies: int, seed: int) -> tuple[Floats, Floats]:
    """Return per study, site and method its AUROC minus that of the first, and the variance over patients."""
    found = simulate(setting, sites, studies, seed)
    return (found.areas - found.areas[..., :1])[..., 1:], found.apart[..., 1:]


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
        **setting.facts(),
        "correlation": round(float((sites * of_mean / of_one - 1) / (sites - 1)), 3),
        "plain t-test": round(any_rejected(p_values(found, np.zeros_like(found), 1 / sites)), 4),
        "corrected": round(any_rejected(p_values(found, variance, overlap_factor(sites, sites - 1))), 4),
    }


def markdown(rows: Sequence[Row]) -> str:
    """Return rows as a table in Markdown."""
    lines = [f"| {' | '.join(rows[0])} |", "|" + "--:|" * len(rows[0])]
    return "\n".join([*lines, *(f"| {' | '.join(map(str, one.values()))} |" for one in rows)]) + "\n"


def write(folder: Path, name: str, rows: Sequence[Row], text: str) -> None:
    """Print a text, and write it beside the rows as CSV."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / f"{name}.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, rows[0].keys())
        writer.writeheader()
        writer.writerows(rows)
    (folder / f"{name}.md").write_text(text, encoding="utf-8")
    print(text)


def main() -> None:
    """Simulate every setting, print the table, and write it."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.family_wise_error", description=__doc__)
    parser.add_argument("--studies", type=int, default=10_000, help=f"a multiple of {AT_ONCE}")
    parser.add_argument("--out", type=Path, default=Path("results/coverage"))
    arguments = parser.parse_args()
    found = [row(setting, sites, arguments.studies) for sites, setting in product(SITES, SETTINGS)]
    text = (
        f"Share of {arguments.studies:,} studies of {METHODS} equally good methods in which a difference is "
        f"found at the 5 % level (Holm).\n\n{markdown(found)}"
    )
    write(arguments.out, "family-wise-error", found, text)


if __name__ == "__main__":
    main()
