"""The numbers of a campaign's folder, and sentences that are written only if the numbers support them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from fedilc.evaluation.inconsistency import INCONSISTENCY
from fedilc.evaluation.metrics import lower_is_better
from fedilc.evaluation.significance import LEVEL, spread
from fedilc.paper.campaign import compare, same_choices
from fedilc.paper.campaign_folder import read_campaign
from fedilc.paper.claims import Claim, claims_of, in_paper_order, judge, paper_numbers

ROOT = Path(__file__).parent.parent
_CHOSEN = {"oracle": "at the oracle's round", "validation": "at the lowest validation loss"}
_MEANS = {
    "test_loss": "OOD loss",
    "test_accuracy": "OOD accuracy",
    f"{INCONSISTENCY}variance": "score by C_e",
}
_MEANS |= {"test_thresholded_auroc": "AUCROC†", "test_thresholded_auprc": "AUCPR†"}
_MEANS |= {f"{INCONSISTENCY}hessian": "score by the Hessian"}
_MEANS |= {"domain_fairness_variance": "variance over sub-environments"}
_MEANS |= {"domain_fairness_entropy": "entropy over sub-environments"}


class Findings:
    """The numbers of one campaign, and the sentences that they support."""

    def __init__(self, name: str, results: Path = ROOT / "results") -> None:
        self.campaign, _ = read_campaign(results / name)
        self.names = in_paper_order(self.campaign.algorithms)
        self.lines: list[str] = []

    def say(self, condition: bool, sentence: str) -> None:
        """Write a sentence, or refuse to."""
        if not condition:
            raise ValueError(f"the results of {self.campaign.name} do not support this: {sentence}")
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

    def claims(self, shown: Sequence[Claim]) -> None:
        """Write which of these claims survive Holm's correction for the whole table, and which do not."""
        judged = judge(self.campaign, claims_of(self.campaign))
        same = {other for _, other in same_choices(self.campaign)}
        groups: dict[str, list[str]] = {}
        for claim in shown:
            by_verdict: dict[str, list[str]] = {}
            scored = claim.metric.startswith(INCONSISTENCY)
            for criterion in ("last",) if scored else ("oracle", "validation", "last"):
                if scored or criterion not in same:
                    by_verdict.setdefault(judged[claim, criterion].verdict, []).append(criterion)
            for verdict, criteria in by_verdict.items():
                groups.setdefault(verdict, []).append(_claim(claim, criteria, 3 - len(same)))
        titles = {
            "yes": f"**Found**, p < {LEVEL:g} after the correction",
            "yes, uncorrected": "**Found only without the correction**",
            "within noise": "**Within noise**",
            "no, uncorrected": "**The opposite, only without the correction**",
            "no": f"**The opposite**, p < {LEVEL:g} after the correction",
            "yes?": "**True of the means**, too few seeds to test",
            "no?": "**Not true of the means**, too few seeds to test",
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


def p_alone(value: float) -> str:
    return f"p = {value:.2g}"


def seeds_in_words(f: Findings) -> str:
    count = len(f.campaign.histories[f.names[0]])
    return {2: "two", 3: "three", 4: "four", 5: "five"}.get(count, str(count))


def span(values: Sequence[float]) -> str:
    """Return the least and the greatest, whole numbers as such."""
    return " to ".join(
        f"{one}" if isinstance(one, int) else f"{one:.3f}" for one in (min(values), max(values))
    )


def losses_under_each_choice(last: int) -> list[tuple[str, str, str]]:
    return [
        ("OOD loss at its lowest (oracle)", "oracle", "test_loss"),
        ("at the lowest validation loss", "validation", "test_loss"),
        (f"at round {last}", "last", "test_loss"),
    ]
