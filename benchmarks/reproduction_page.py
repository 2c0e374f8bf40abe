"""docs/research/reproduction.md: what the committed results say.

`python -m benchmarks.reproduction_page` replaces the text between the page's markers by what
`results/*/summary.json` says. A sentence on which algorithm is better stands beside its condition: if that
fails, nothing is written and the sentence is named.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable
from pathlib import Path

from benchmarks.findings import ROOT, Findings, losses_under_each_choice, p_alone, seeds_in_words, span
from benchmarks.lambda_findings import lambdas
from fedilc.evaluation.inconsistency import INCONSISTENCY
from fedilc.evaluation.significance import LEVEL
from fedilc.paper.campaign import same_choices
from fedilc.paper.claims import SECTION_4, claims_of, in_paper_order, paper_numbers

PAGE = ROOT / "docs" / "research" / "reproduction.md"
_BLOCK = re.compile(r"(<!-- results: ([\w-]+) -->\n).*?(<!-- end of results -->)", re.DOTALL)


def color_mnist(results: Path) -> list[str]:
    """Return the lines on Color-MNIST."""
    f = Findings("color-mnist", results)
    last = max(f.rounds("last"))
    f.table(
        [
            ("OOD loss at its lowest (oracle)", "oracle", "test_loss"),
            (f"at round {last}", "last", "test_loss"),
            ("OOD accuracy (oracle)", "oracle", "test_accuracy"),
            (f"at round {last}", "last", "test_accuracy"),
        ],
        paper=("test_loss", "test_accuracy"),
    )
    chosen = f.rounds("validation")
    f.say(
        set(chosen) == {last} and same_choices(f.campaign) == [("validation", "last")],
        f"The lowest validation loss is that of round {last} in all {len(chosen)} runs: `validation` and "
        "`last` are the same test here.",
    )
    paper = paper_numbers("color-mnist", "test_loss")
    f.say(
        all(f.mean(name, "oracle") < paper[name].mean for name in f.names),
        "At the oracle's round every algorithm's mean loss is below the paper's.",
    )
    _claims(f)
    f.lines += ["", "In particular:", ""]
    _color_mnist_losses(f, last)
    _color_mnist_accuracy(f, last)
    return f.lines


def _color_mnist_losses(f: Findings, last: int) -> None:
    inter, intra = "fishr-inter-geo", "fishr-intra-geo"
    worst = max(f.p(inter, rival, "oracle") for rival in f.names if rival != inter)
    f.say(
        f.order("oracle")[0] == f.order("last")[0] == inter and worst < LEVEL,
        f"- `{inter}` has the lowest mean loss at both rounds. At the oracle's, each of the five tests "
        f"against the others has p <= {worst:.2g} if taken alone.",
    )
    near = {rival: f.p(inter, rival, "last") for rival in (intra, "geometric")}
    f.say(
        min(near.values()) > LEVEL,
        f"  At round {last} its lead is within noise against `{intra}` ({p_alone(near[intra])}) and against "
        f"`geometric` ({p_alone(near['geometric'])}).",
    )
    three = [f"{f.mean(name, 'oracle'):.3f}" for name in (intra, "fedcurv", "fishr-intra-arith")]
    f.say(
        len(set(three)) == 1 and f.p(intra, "fedcurv", "oracle") > LEVEL,
        f"- `{intra}`, `fedcurv` and `fishr-intra-arith` are alike at the oracle's round ({three[0]} each).",
    )
    losses = list(f.campaign.values("fedsgd", "oracle", "test_loss").values())
    means = [f.mean(name, "oracle") for name in f.names]
    f.say(
        max(losses) - min(losses) >= max(means) - min(means),
        f"- Seeds differ as much as algorithms do (`fedsgd`: {span(losses)}; the means: {span(means)}), "
        "but all algorithms vary together, with the draw of silos and colours: hence paired tests.",
    )


def _color_mnist_accuracy(f: Findings, last: int) -> None:
    inter, intra = "fishr-inter-geo", "fishr-intra-geo"
    accuracy = {name: f.mean(name, "last", "test_accuracy") for name in f.names}
    p = {name: f.p(name, "fedsgd", "last", "test_accuracy") for name in f.names if name != "fedsgd"}
    f.say(
        max(accuracy[intra], accuracy["geometric"]) < accuracy["fedsgd"]
        and max(p[intra], p["geometric"]) < 0.01,
        f"- At round {last} accuracy goes the other way: `{intra}` {accuracy[intra]:.3f} and `geometric` "
        f"{accuracy['geometric']:.3f} against {accuracy['fedsgd']:.3f} of `fedsgd` (p = {p[intra]:.0e} and "
        f"{p['geometric']:.2g}, each alone): their losses are lower there, but they make more errors.",
    )
    f.say(
        f.order("last", "test_accuracy")[0] in ("fedcurv", "fishr-intra-arith") and p[inter] > LEVEL,
        f"  The highest is `fedcurv`'s {accuracy['fedcurv']:.3f}; `{inter}`'s {accuracy[inter]:.3f} is "
        f"within noise of `fedsgd`'s ({p_alone(p[inter])}).",
    )


def rotated_cifar10(results: Path) -> list[str]:
    """Return the lines on Rotated-CIFAR10."""
    f = Findings("rotated-cifar10", results)
    f.table(
        [
            *losses_under_each_choice(max(f.rounds("last"))),
            ("OOD accuracy (oracle)", "oracle", "test_accuracy"),
        ]
    )
    paper = paper_numbers("rotated-cifar10", "test_loss")
    theirs = [(name, paper[name].mean) for name in sorted(f.names, key=lambda name: paper[name].mean)]
    f.lines += [f"By OOD loss, the lowest first, the paper has {_listed(theirs)}. Ours:", ""]
    choices = ("oracle", "at the oracle's round"), ("validation", "at the lowest validation loss")
    for criterion, where in (*choices, ("last", "at the last round")):
        f.lines.append(f"- {where}: {_listed([(n, f.mean(n, criterion)) for n in f.order(criterion)])}.")
    _claims(f)
    metric = f"{INCONSISTENCY}variance"
    scores = _listed([(name, f.mean(name, "last", metric)) for name in f.order("last", metric)])
    f.lines += ["", f"Inconsistency scores at the last round (C_e, typical pair), lowest first: {scores}."]
    return f.lines


def _claims(f: Findings) -> None:
    """Write which of the paper's claims on losses and scores hold, but for those of its section 4."""
    f.lines += [
        "",
        f"The paper's claims, by paired t-tests over {seeds_in_words(f)} seeds, corrected by Holm's method "
        "for the number of tests in the table of claims:",
        "",
    ]
    f.claims([claim for claim in claims_of(f.campaign) if claim not in SECTION_4])


def _listed(means: list[tuple[str, float]]) -> str:
    return ", ".join(f"`{name}` {mean:.3f}" for name, mean in means)


def eicu_demo(results: Path) -> list[str]:
    """Return the lines on the eICU demo."""
    f = Findings("eicu-demo", results)
    last = max(f.rounds("last"))
    f.table([*losses_under_each_choice(last), ("AUCROC (oracle)", "oracle", "test_auroc")])
    losses = [f.mean(name, "oracle") for name in f.names]
    f.say(
        max(losses) - min(losses) < 0.005,
        "With a few hundred patients per region, the network soon overfits: the OOD loss is lowest at rounds "
        f"{span(f.rounds('oracle'))}, with {span(losses)} for all algorithms.",
    )
    first, *_, worst = f.order("validation")
    f.say(
        worst == "fishr-intra-geo",
        f"At the lowest validation loss `{worst}` is the worst of the six "
        f"({f.mean(worst, 'validation'):.3f}; the best is `{first}` with {f.mean(first, 'validation'):.3f}).",
    )
    order = f.order("last")
    least = ", ".join(f"`{name}` {f.mean(name, 'last'):.2f}" for name in order[:3])
    f.say(
        set(order[:3]) == {"fishr-intra-geo", "fishr-inter-geo", "geometric"}
        and f.mean(order[0], "last") > 2 * max(losses),
        f"At round {last}, which nobody would choose, all have more than twice the lowest loss, those with a "
        f"geometric mean the least ({least}; `fedsgd` {f.mean('fedsgd', 'last'):.2f}).",
    )
    f.lines.append("Two seeds are not tested for noise.")
    return f.lines


def eicu_synthetic(results: Path) -> list[str]:
    """Return the lines on the synthetic eICU."""
    f = Findings("eicu-synthetic", results)
    f.table([*losses_under_each_choice(max(f.rounds("last"))), ("AUCROC (oracle)", "oracle", "test_auroc")])
    losses = [f.mean(name, "oracle") for name in f.names]
    f.say(
        f.order("validation")[:2] == ["fishr-intra-geo", "fishr-inter-geo"],
        f"At the lowest validation loss (rounds {span(f.rounds('validation'))}), which a user would "
        "choose, the two variants with a geometric mean and Fishr come first.",
    )
    f.say(
        max(losses) - min(losses) < 0.01 and f.order("oracle")[0] == "fishr-intra-arith",
        f"At the oracle's rounds ({span(f.rounds('oracle'))}) all are within a hundredth, and "
        "`fishr-intra-arith` is first. Two seeds are not tested for noise.",
    )
    return f.lines


def _means(folder: Path) -> str:
    """Return the scores by C_e of a campaign of which only means were kept, the lowest first."""
    rows = list(csv.DictReader((folder / "inconsistency-means.csv").open()))
    rows.sort(key=lambda row: float(row["typical mean"]))
    numbers = (
        f"`{row['algorithm']}` {float(row['typical mean']):.2f}±{float(row['typical std']):.2f}"
        for row in rows
    )
    return f"{', '.join(numbers)}."


def inconsistency(results: Path) -> list[str]:
    """Return the lines on the paper's section 4, from the scores of Color-MNIST; whatever they say."""
    f = Findings("color-mnist", results)
    metrics = {"C_e": f"{INCONSISTENCY}variance", "the Hessian": f"{INCONSISTENCY}hessian"}
    f.names = in_paper_order(f.order("last", metrics["C_e"]))
    seeds = len(f.campaign.values(f.names[0], "last", metrics["C_e"]))
    columns = [
        (f"by {kind}, {pair}", "last", f"{metric}{end}")
        for kind, metric in metrics.items()
        for pair, end in (("typical pair", ""), ("worst pair", "_worst"))
    ]
    f.lines += [f"Color-MNIST, round {max(f.rounds('last'))}, mean of {seeds} seed{'s' * (seeds > 1)}:", ""]
    f.table(columns)
    for kind, metric in metrics.items():
        order = [f"`{name}` {f.mean(name, 'last', metric):.2f}" for name in f.order("last", metric)]
        f.lines.append(f"- By {kind}, the lowest first: {', '.join(order)}.")
    f.claims([claim for claim in claims_of(f.campaign) if claim in SECTION_4])
    f.lines += [
        "",
        "Of the committed runs only means and deviations over seeds were kept, which cannot be paired "
        "([Color-MNIST](../../results/color-mnist/inconsistency-means.csv), "
        "[eICU demo](../../results/eicu-demo/inconsistency-means.csv), "
        "[synthetic](../../results/eicu-synthetic/inconsistency-means.csv)); by C_e, typical pair, the "
        "lowest first:",
        "",
    ]
    f.lines += [
        f"- {title}: {_means(results / name)}"
        for title, name in (
            ("Color-MNIST, five seeds", "color-mnist"),
            ("eICU demo, two seeds", "eicu-demo"),
            ("eICU synthetic, two seeds", "eicu-synthetic"),
        )
    ]
    return f.lines


PARTS: dict[str, Callable[[Path], list[str]]] = {
    "color-mnist": color_mnist,
    "inconsistency": inconsistency,
    "rotated-cifar10": rotated_cifar10,
    "eicu-demo": eicu_demo,
    "eicu-synthetic": eicu_synthetic,
    "lambda": lambdas,
}


def filled(page: str, results: Path = ROOT / "results") -> str:
    """Return the page with the text between its markers made again."""
    return _BLOCK.sub(lambda block: block[1] + "\n".join(["", *PARTS[block[2]](results), "", block[3]]), page)


def main() -> None:
    """Write the page."""
    PAGE.write_text(filled(PAGE.read_text()))


if __name__ == "__main__":
    main()
