"""What the committed results say, written into docs/reproduction.md.

`python -m benchmarks.findings` replaces the text between the page's markers by what `results/*/summary.json`
says. A sentence on which algorithm is better stands beside its condition: if that fails, nothing is written
and the sentence is named.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from fedilc.evaluation.significance import LEVEL, compare
from fedilc.evaluation.stored import read_campaign
from fedilc.evaluation.summary import INCONSISTENCY, lower_is_better, same_choices, spread
from fedilc.report.claims import Claim, claims_of, judge
from fedilc.report.paper import in_paper_order, paper_numbers

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "reproduction.md"
_BLOCK = re.compile(r"(<!-- results: ([\w-]+) -->\n).*?(<!-- end of results -->)", re.DOTALL)
_CHOSEN = {"oracle": "at the oracle's round", "validation": "at the lowest validation loss"}
_MEANS = {
    "test_loss": "OOD loss",
    "test_accuracy": "OOD accuracy",
    f"{INCONSISTENCY}variance": "score by C_e",
}
_MEANS |= {"test_thresholded_auroc": "AUCROC†", "test_thresholded_auprc": "AUCPR†"}
_MEANS |= {f"{INCONSISTENCY}hessian": "score by the Hessian"}


class Findings:
    """The numbers of one campaign, and the sentences that they bear."""

    def __init__(self, name: str, results: Path = ROOT / "results") -> None:
        self.campaign, _ = read_campaign(results / name)
        self.names = in_paper_order(self.campaign.algorithms)
        self.lines: list[str] = []

    def say(self, condition: bool, sentence: str) -> None:
        """Write a sentence, or refuse to."""
        if not condition:
            raise ValueError(f"the results of {self.campaign.name} do not bear this: {sentence}")
        self.lines.append(sentence)

    def mean(self, name: str, criterion: str, metric: str = "test_loss") -> float:
        """Return the mean over seeds."""
        return spread(list(self.campaign.values(name, criterion, metric).values()))[0]

    def p(self, name: str, rival: str, criterion: str, metric: str = "test_loss") -> float:
        """Return p of the paired t-test, taken alone."""
        test = compare(self.campaign, name, rival, metric, criterion)
        assert test is not None
        assert test.t_p is not None
        return test.t_p

    def order(self, criterion: str, metric: str = "test_loss") -> list[str]:
        """Return the algorithms that have the metric, the best first."""
        names = [name for name in self.names if self.campaign.values(name, criterion, metric)]
        return sorted(
            names, key=lambda name: self.mean(name, criterion, metric), reverse=not lower_is_better(metric)
        )

    def rounds(self, criterion: str) -> list[int]:
        """Return the rounds chosen, of all runs."""
        return [int(r) for n in self.names for r in self.campaign.values(n, criterion, "round").values()]

    def table(self, columns: Sequence[tuple[str, str, str]], paper: Iterable[str] = ()) -> None:
        """Write a table of means, the best of each column in bold; a column: heading, criterion, metric."""
        headings = ["algorithm"]
        cells = [[f"`{name}`"] for name in self.names]
        for heading, criterion, metric in columns:
            headings.append(heading)
            ours = [list(self.campaign.values(name, criterion, metric).values()) for name in self.names]
            _column(cells, [spread(values) if values else None for values in ours], metric)
            if metric in paper and criterion == "oracle":
                headings.append("the paper")
                numbers = paper_numbers(self.campaign.name, metric)
                theirs = [numbers.get(name) for name in self.names]
                _column(cells, [(one.mean, one.std) if one else None for one in theirs], metric)
        self.lines += [_pipes(headings), "|---" * len(headings) + "|", *map(_pipes, cells), ""]

    def claims(self) -> None:
        """Write which of the paper's claims survive Holm's correction, and which do not."""
        claims = claims_of(self.campaign)
        judged = judge(self.campaign, claims)
        same = {other for _, other in same_choices(self.campaign)}
        groups: dict[str, list[str]] = {}
        for claim in claims:
            by_verdict: dict[str, list[str]] = {}
            for criterion in ("oracle", "validation", "last"):
                verdict = judged[claim, criterion].verdict
                if criterion not in same and verdict != "-":
                    by_verdict.setdefault(verdict, []).append(criterion)
            for verdict, criteria in by_verdict.items():
                groups.setdefault(verdict, []).append(_claim(claim, criteria, 3 - len(same)))
        titles = {
            "yes": f"**Found**, p < {LEVEL:g} after the correction",
            "yes, uncorrected": "**Found only if it were the one test made**, not after the correction",
            "within noise": "**Within noise**",
            "no, uncorrected": "**The opposite, if it were the one test made**",
            "no": f"**The opposite**, p < {LEVEL:g} after the correction",
        }
        self.lines += [f"- {titles[v]}: {'; '.join(groups[v])}." for v in titles if v in groups]


def _column(cells: list[list[str]], values: Sequence[tuple[float, float] | None], metric: str) -> None:
    shown = [None if value is None else f"{value[0]:.3f}" for value in values]
    best = (min if lower_is_better(metric) else max)(
        (text for text in shown if text), key=float, default=None
    )
    for row, text, value in zip(cells, shown, values, strict=True):
        deviation = f"±{value[1]:.3f}" if value and value[1] and metric == "test_loss" else ""
        row.append(
            "-" if text is None else f"**{text}{deviation}**" if text == best else f"{text}{deviation}"
        )


def _pipes(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _claim(claim: Claim, criteria: Sequence[str], choices: int) -> str:
    sentence = re.sub(r"\b(fedsgd|geometric|fedcurv|fishr-[\w-]+)\b", r"`\1`", claim.sentence)
    places = [_CHOSEN.get(one, "at the last round") for one in criteria]
    if claim.metric.startswith(INCONSISTENCY):
        places = []
    elif len(criteria) == choices > 1:
        places = ["however the round is chosen"]
    return f"{sentence} ({', '.join([_MEANS[claim.metric], *places])})"


def _p(value: float) -> str:
    return f"p = {value:.2g}"


def _seeds(f: Findings) -> str:
    count = len(f.campaign.histories[f.names[0]])
    return {2: "two", 3: "three", 4: "four", 5: "five"}.get(count, str(count))


def _span(values: Sequence[float]) -> str:
    """Return the least and the greatest, whole numbers as such."""
    return " to ".join(
        f"{one}" if isinstance(one, int) else f"{one:.3f}" for one in (min(values), max(values))
    )


def _losses(last: int) -> list[tuple[str, str, str]]:
    return [
        ("OOD loss at its lowest (oracle)", "oracle", "test_loss"),
        ("at the lowest validation loss", "validation", "test_loss"),
        (f"at round {last}", "last", "test_loss"),
    ]


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
        "`last` are one test here, not two.",
    )
    paper = paper_numbers("color-mnist", "test_loss")
    f.say(
        all(f.mean(name, "oracle") < paper[name].mean for name in f.names),
        "At the oracle's round every algorithm's mean loss is below the paper's.",
    )
    f.lines += [
        "",
        f"Of what the paper says, by paired t-tests over {_seeds(f)} seeds, corrected by Holm's method for "
        "all tests of the table of claims:",
        "",
    ]
    f.claims()
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
        f"  At round {last} its lead is within noise against `{intra}` ({_p(near[intra])}) and against "
        f"`geometric` ({_p(near['geometric'])}).",
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
        f"- Seeds differ as much as algorithms do (`fedsgd`: {_span(losses)}; the means: {_span(means)}), "
        "but alike for all, since the draw of silos and colours decides: hence paired tests.",
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
        f"{p['geometric']:.2g}, each alone). Their lower losses there are not fewer errors.",
    )
    f.say(
        f.order("last", "test_accuracy")[0] in ("fedcurv", "fishr-intra-arith") and p[inter] > LEVEL,
        f"  The highest is `fedcurv`'s {accuracy['fedcurv']:.3f}; `{inter}`'s {accuracy[inter]:.3f} is "
        f"within noise of `fedsgd`'s ({_p(p[inter])}).",
    )


def rotated_cifar10(results: Path) -> list[str]:
    """Return the lines on Rotated-CIFAR10."""
    f = Findings("rotated-cifar10", results)
    f.table([*_losses(max(f.rounds("last"))), ("OOD accuracy (oracle)", "oracle", "test_accuracy")])
    paper = paper_numbers("rotated-cifar10", "test_loss")
    theirs = sorted(f.names, key=lambda name: paper[name].mean)
    numbers = ", ".join(f"`{name}` {paper[name].mean:.3f}" for name in theirs)
    f.say(
        all(f.order(criterion) == theirs for criterion in ("oracle", "validation", "last")),
        f"The order is the paper's ({numbers}), under each way to choose the round. One seed cannot say "
        "more.",
    )
    metric = f"{INCONSISTENCY}variance"
    scores = ", ".join(f"`{name}` {f.mean(name, 'last', metric):.2f}" for name in theirs)
    f.say(
        f.order("last", metric) == theirs,
        f"The inconsistency scores (C_e, typical pair) have the same order: {scores}.",
    )
    return f.lines


def eicu_demo(results: Path) -> list[str]:
    """Return the lines on the eICU demo."""
    f = Findings("eicu-demo", results)
    last = max(f.rounds("last"))
    f.table([*_losses(last), ("AUCROC (oracle)", "oracle", "test_auroc")])
    losses = [f.mean(name, "oracle") for name in f.names]
    f.say(
        max(losses) - min(losses) < 0.005,
        "A few hundred patients per region are soon learnt by heart: the loss elsewhere is lowest at rounds "
        f"{_span(f.rounds('oracle'))}, and there {_span(losses)} for all algorithms.",
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
    f.table([*_losses(max(f.rounds("last"))), ("AUCROC (oracle)", "oracle", "test_auroc")])
    losses = [f.mean(name, "oracle") for name in f.names]
    f.say(
        f.order("validation")[:2] == ["fishr-intra-geo", "fishr-inter-geo"],
        f"At the lowest validation loss (rounds {_span(f.rounds('validation'))}), which a user would "
        "choose, the two variants with a geometric mean and Fishr come first.",
    )
    f.say(
        max(losses) - min(losses) < 0.01 and f.order("oracle")[0] == "fishr-intra-arith",
        f"At the oracle's rounds ({_span(f.rounds('oracle'))}) all are within a hundredth, and "
        "`fishr-intra-arith` is first. Two seeds are not tested for noise.",
    )
    return f.lines


def inconsistency(results: Path) -> list[str]:
    """Return the lines on the paper's section 4, from the scores of Color-MNIST."""
    f = Findings("color-mnist", results)
    metrics = {kind: f"{INCONSISTENCY}{kind}" for kind in ("variance", "hessian")}
    f.names = in_paper_order(f.order("last", metrics["variance"]))
    f.table(
        [
            ("C_e: typical pair", "last", metrics["variance"]),
            ("worst pair", "last", f"{metrics['variance']}_worst"),
            ("Hessian: typical pair", "last", metrics["hessian"]),
            ("worst pair", "last", f"{metrics['hessian']}_worst"),
        ]
    )
    return f.lines


PARTS: dict[str, Callable[[Path], list[str]]] = {
    "color-mnist": color_mnist,
    "rotated-cifar10": rotated_cifar10,
    "eicu-demo": eicu_demo,
    "eicu-synthetic": eicu_synthetic,
}


def filled(page: str, results: Path = ROOT / "results") -> str:
    """Return the page with the text between its markers made again."""
    return _BLOCK.sub(lambda block: block[1] + "\n".join(["", *PARTS[block[2]](results), "", block[3]]), page)


def main() -> None:
    """Write the page."""
    PAGE.write_text(filled(PAGE.read_text()))


if __name__ == "__main__":
    main()
