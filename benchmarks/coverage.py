"""How often the interval for the next site holds the AUROC of the next site, in simulated studies.

A site's AUROC has the logit mu + u with u of variance tau^2; scores of events and non-events are normal, of
the same variance, as far apart as that AUROC demands. Estimates and variances are those of a study. Every
repetition is compared with 100 next sites. The mean AUROC is .75, a quarter of the patients have the event;
sites have 300 patients each, or from 60 to 1,500. tau is given on the scale of the AUROC; "prior" draws it
anew for each repetition from the empirical prior (`fedilc.evaluation.next_site`).

There the sites' scores are independent. In a second table they are of models that share training sites, as in
a study, and the next sites are those of the model of all sites (`benchmarks.family_wise_error` says how they
are drawn): for the AUROC of a method, and for its difference from an equally good one. The headline allows
for shared training sites in both tables, as a study does; so it is wider than need be in the first. Its last
column, "all sites", is how much higher the mean AUROC of the model of all sites is at next sites than that of
the models with one site less at their held-out sites.

    python -m benchmarks.coverage --out results/coverage          # about ten minutes of one core
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from itertools import product
from pathlib import Path

import numpy as np
from scipy.special import expit, logit
from scipy.stats import norm

from benchmarks.family_wise_error import SETTINGS, TAU, Setting, markdown, simulate, write
from fedilc.evaluation.calibration import Floats
from fedilc.evaluation.estimates import SCALES, Estimate, estimate
from fedilc.evaluation.next_site import MOST_WITH_PRIOR, PRIOR_SD, PRIOR_TAU, NextSite, next_site
from fedilc.seeds import numpy_generator

SITES, TAUS = (3, 4, 8, 20), (0.03, 0.055, 0.085, None)
MEAN, PREVALENCE, NEXT, REPETITIONS = 0.75, 0.25, 100, 500
INTERVALS = {
    "headline": ("low", "high"),
    "REML": ("reml_low", "reml_high"),
    "prior": ("prior_low", "prior_high"),
}
ALONE = {"these sites alone": ("jeffreys_low", "jeffreys_high")}  # the headline with five sites or more
OVERLAPPING: list[tuple[Setting, float | None]] = [
    (SETTINGS[place], tau) for tau in (TAU, None) for place in (0, 2, 3, 4, 5, 6)
]
OVERLAPPING += [(SETTINGS[3], tau) for tau in TAUS if tau not in (TAU, None)]
Row = Mapping[str, object]


def site(generator: np.random.Generator, patients: int, auroc: float) -> Estimate:
    """Return the estimate of a site with this many patients, of whom at least 10 have the event."""
    events = max(10, generator.binomial(patients, PREVALENCE))
    y = np.repeat([1.0, 0.0], [events, patients - events])
    scores = generator.normal(size=patients) + np.sqrt(2) * norm.ppf(auroc) * y
    found = estimate("binary", "auroc", y, [scores])
    assert found is not None
    return found


def rows(sites: int, unequal: bool, tau: float | None, repetitions: int) -> Iterator[Row]:
    """Yield the coverage of each interval at one number of sites, their sizes and tau."""
    sizes = np.geomspace(60, 1500, sites).astype(int) if unequal else np.full(sites, 300)
    slope = 1 / (MEAN * (1 - MEAN))
    held: dict[str, list[float]] = {name: [] for name in INTERVALS}
    widths: dict[str, list[float]] = {name: [] for name in INTERVALS}
    for repetition in range(repetitions):
        generator = numpy_generator(repetition, "coverage", f"{sites} {unequal} {tau}")
        spread = abs(generator.normal(PRIOR_TAU, PRIOR_SD)) if tau is None else tau
        true = expit(logit(MEAN) + spread * slope * generator.normal(size=sites + NEXT))
        found = next_site(
            [site(generator, n, a) for n, a in zip(sizes, true, strict=False)], "auroc", sites - 1
        )
        for name, ends in INTERVALS.items():
            low, high = (getattr(found, end) for end in ends)
            held[name].append(float(np.mean((low <= true[sites:]) & (true[sites:] <= high))))
            widths[name].append(high - low)
    for name, shares in held.items():
        yield {
            "sites": sites,
            "sizes": "60 to 1,500" if unequal else "300 each",
            "tau": "prior" if tau is None else tau,
            "interval": name,
            "coverage": round(float(np.mean(shares)), 4),
            "standard error": round(float(np.std(shares) / np.sqrt(repetitions)), 4),
            "width": round(float(np.mean(widths[name])), 4),
        }


def overlap_rows(setting: Setting, tau: float | None, sites: int, studies: int) -> Iterator[Row]:
    """Yield the coverage of the intervals of a study whose models share training sites."""
    generator = numpy_generator(0, "coverage", f"prior {setting} {sites}")
    spread = abs(generator.normal(PRIOR_TAU, PRIOR_SD, size=studies)) if tau is None else tau
    drawn, scale = simulate(setting, sites, studies, 0, NEXT, spread), SCALES["auroc"]
    gain = float(drawn.following.mean() - drawn.areas.mean())
    held: dict[tuple[str, str], list[tuple[float, float]]] = {}

    def keep(of: str, found: NextSite, true: Floats) -> None:
        alone = ALONE if of == "AUROC" and sites <= MOST_WITH_PRIOR else {}
        for name, ends in ({name: INTERVALS[name] for name in ("headline", "REML")} | alone).items():
            low, high = (getattr(found, end) for end in ends)
            held.setdefault((of, name), []).append(
                (float(np.mean((low <= true) & (true <= high))), high - low)
            )

    for study in range(studies):
        areas, following = drawn.areas[study], drawn.following[study]
        found = [
            Estimate(scale.to(a), np.array([scale.slope(a) * v**0.5]))
            for a, v in zip(areas[:, 0], drawn.variances[study, :, 0], strict=True)
        ]
        keep("AUROC", next_site(found, "auroc", sites - 1), following[:, 0])
        apart = zip(areas[:, 1] - areas[:, 0], drawn.apart[study, :, 1], strict=True)
        keep(
            "difference",
            next_site([Estimate(float(d), np.array([v**0.5])) for d, v in apart], None, sites - 1),
            following[:, 1] - following[:, 0],
        )
    for (of, name), pairs in held.items():
        shares, widths = np.array(pairs).T
        yield {
            "sites": sites,
            **setting.facts(),
            "tau": "prior" if tau is None else tau,
            "of": of,
            "interval": name,
            "coverage": round(float(shares.mean()), 3),
            "standard error": round(float(shares.std() / np.sqrt(studies)), 3),
            "width": round(float(widths.mean()), 3),
            "all sites": round(gain, 4),
        }


def table(found: list[Row]) -> str:
    """Return coverage and mean width as a table in Markdown: a row per setting, a column per interval."""
    lines = [
        f"| sites | patients | tau | {' | '.join(INTERVALS)} |",
        "|--:|---|--:|" + "--:|" * len(INTERVALS),
    ]
    for place in range(0, len(found), len(INTERVALS)):
        group = found[place : place + len(INTERVALS)]
        cells = [f"{row['coverage']:.3f} ({row['width']:.2f})" for row in group]
        first = group[0]
        lines.append(f"| {first['sites']} | {first['sizes']} | {first['tau']} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Simulate every setting, print the table, and write it."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.coverage", description=__doc__)
    parser.add_argument("--repetitions", type=int, default=REPETITIONS)
    parser.add_argument("--out", type=Path, default=Path("results/coverage"))
    arguments = parser.parse_args()
    settings = product(SITES, (False, True), TAUS)
    found = [row for setting in settings for row in rows(*setting, arguments.repetitions)]
    text = f"Share of next sites inside the 95 % interval, and its mean width.\n\n{table(found)}"
    write(arguments.out, "next-site", found, text)
    pairs = product(SITES, OVERLAPPING)
    shared = [one for sites, each in pairs for one in overlap_rows(*each, sites, arguments.repetitions)]
    text = (
        "The same if models share training sites; tau is on the scale of the AUROC, or drawn from the "
        "empirical prior.\n\n"
    )
    write(arguments.out, "next-site-overlap", shared, text + markdown(shared))


if __name__ == "__main__":
    main()
