"""The paper's tables, made from a campaign, with the paper's numbers beside ours."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from fedilc.evaluation import CRITERIA
from fedilc.evaluation.inconsistency import CURVATURES, INCONSISTENCY
from fedilc.evaluation.metrics import lower_is_better
from fedilc.evaluation.significance import FEWEST_SEEDS, LEVEL, smallest_flip_p
from fedilc.paper.campaign import DOMAIN_ACCURACY, Campaign, compare, same_choices, unequal_runs
from fedilc.paper.claims import (
    FAR,
    PaperNumber,
    claims_table,
    distance_cell,
    in_paper_order,
    on_the_papers_data,
    our_cell,
    paper_benchmark,
    paper_cell,
    paper_factor,
    paper_numbers,
)
from fedilc.report.tables import NOTHING, Column, TableData, verdict_cells, with_best, words

BASELINE = "fedsgd"
_CHOSEN_BY, _ALGORITHM, _DOMAIN = words("round chosen by", "algorithm", "sub-environment")
_MEAN = "Mean±sample deviation (n - 1) over seeds"
CHOICES = (
    "Rounds are chosen by oracle: lowest OOD loss after round 5, as in the paper, which nobody can know in "
    "practice; validation: lowest mean validation loss of the silos; last: the last round."
)
_DAGGER = (
    "† The authors' reading, for comparison with the paper only: areas of thresholded predictions, "
    "averaged batch by batch. The paper's areas are such."
)

_CURVATURES = {"variance": "C_e", "hessian": "Hessian"}
_SCORES = (
    "I / epsilon of a pair of silos is the largest ratio of their curvatures over the directions of the "
    "classifier, 1 if they curve alike; lower is better. The curvature is C_e, the variance of the gradient, "
    "as Fishr has it, or the exact diagonal of the Hessian, both at the weights of the last round. typical: "
    "the geometric mean over pairs of silos; worst: the highest pair."
)


@dataclass(frozen=True)
class Measure:
    """A table of the paper: its file name, our metric and its title."""

    name: str
    metric: str
    title: str


MEASURES = (
    Measure("ood-loss", "test_loss", "OOD test loss"),
    Measure("ood-accuracy", "test_accuracy", "OOD test accuracy"),
    Measure("ood-aucroc", "test_auroc", "OOD AUCROC of the scores"),
    Measure("ood-aucpr", "test_auprc", "OOD AUCPR of the scores"),
    Measure("ood-aucroc-thresholded", "test_thresholded_auroc", "OOD AUCROC†, thresholded"),
    Measure("ood-aucpr-thresholded", "test_thresholded_auprc", "OOD AUCPR†, thresholded"),
)


def campaign_tables(campaign: Campaign) -> list[TableData]:
    """Return every table of the paper that the campaign has numbers for, and its claims and scores.

    Each has a group of rows per criterion. The paper's numbers are in the group of the oracle, by which the
    paper chooses its rounds; bold is the best of a group, as in the paper, ties included.
    """
    measures = [*MEASURES, *_fairness_measures(campaign)]
    tables = [_metric_table(campaign, measure) for measure in measures if _measured(campaign, measure.metric)]
    if campaign.domains:
        tables += [_domains_table(campaign), _domains_beside_paper(campaign)]
    claims = claims_table(campaign, (size_note(campaign), CHOICES, *_same_choice_notes(campaign)))
    scored = any(campaign.values(name, "last", f"{INCONSISTENCY}variance") for name in campaign.algorithms)
    return [*tables, *([claims] if claims else []), *([_inconsistency_table(campaign)] if scored else [])]


def size_note(campaign: Campaign) -> str:
    r"""Return the first note of every table: the data, the size, the Fishr reduction, and unequal runs.

    It is one note, because CSV and short tables in the terminal keep only the first.

    >>> size_note(Campaign("eicu-synthetic", {}, "5 seeds", synthetic=True))
    'SYNTHETIC DATA. eicu-synthetic: 5 seeds; fishr_reduction="sum", as in the authors\' code.'
    """
    warning = "SYNTHETIC DATA. " if campaign.synthetic else ""
    whose = "as in the authors' code" if campaign.fishr_reduction == "sum" else "as in the paper's formula"
    size = f"{campaign.note}; " if campaign.note else ""
    first = f'{warning}{campaign.name}: {size}fishr_reduction="{campaign.fishr_reduction}", {whose}.'
    uneven = unequal_runs(campaign)
    return f"{first} {uneven}" if uneven else first


def _same_choice_notes(campaign: Campaign) -> list[str]:
    """Return a note per pair of criteria that choose the same round in every run."""
    runs = sum(len(seeds) for seeds in campaign.histories.values())
    return [
        f"{one} and {other} choose the same round in each of the {runs} runs: they are one test, not two."
        for one, other in same_choices(campaign)
    ]


def _metric_table(campaign: Campaign, measure: Measure) -> TableData:
    """Return the table of one metric: a group per criterion, a row per algorithm."""
    paper = paper_numbers(paper_benchmark(campaign.name), measure.metric)
    rows = [row for name in CRITERIA for row in _group(campaign, name, measure, name, paper)]
    direction = "lower" if lower_is_better(measure.metric) else "higher"
    dagger = (_DAGGER,) if "†" in measure.title else ()
    title = f"{campaign.heading}: {measure.title} ({direction} is better)"
    columns, notes = (_CHOSEN_BY, *_columns(campaign, bool(paper))), _notes(campaign, bool(paper))
    return TableData.of(measure.name, campaign.name, title, columns, rows, (*notes, *dagger), grouped=True)


def _group(
    campaign: Campaign, label: str, measure: Measure, criterion: str, paper: Mapping[str, PaperNumber]
) -> list[list[object]]:
    """Return a row per algorithm, with ours and the paper's numbers; none if the criterion cannot choose."""
    metric, factor, lower = measure.metric, paper_factor(measure.metric), lower_is_better(measure.metric)
    # The paper chooses by the oracle, so its numbers are compared only there; there, algorithms that we
    # did not run have a row too.
    numbers = paper if criterion == "oracle" else {}
    names = [name for name in campaign.algorithms if campaign.values(name, criterion, metric)]
    names = in_paper_order([*names, *(name for name in numbers if name not in names)])
    ours = with_best({name: our_cell(campaign, name, criterion, metric, factor) for name in names}, lower)
    theirs = with_best({name: paper_cell(numbers.get(name), factor) for name in names}, lower)
    rows = []
    for name in names:
        row: list[object] = [label, name, ours[name]]
        if paper:
            row.append(theirs[name])
        if paper and on_the_papers_data(campaign.name):
            values = list(campaign.values(name, criterion, metric).values())
            row.append(distance_cell(values, numbers.get(name), lower))
        if _tested(campaign):
            test = compare(campaign, name, BASELINE, metric, criterion) if name != BASELINE else None
            row += verdict_cells(test)
        rows.append(row)
    return rows


def _columns(campaign: Campaign, paper: bool) -> list[Column]:
    columns = [_ALGORITHM, _mean_column("ours")]
    compared = on_the_papers_data(campaign.name)
    if paper:
        columns.append(_mean_column("paper" if compared else "paper, other data"))
    if paper and compared:
        columns.append(Column("diff. in σ", ("difference in the paper's deviations", "reading")))
    if _tested(campaign):
        columns.append(Column(f"against {BASELINE}", (f"against {BASELINE}", "mean difference")))
        columns.append(Column("p: t/flips", ("p, paired t-test", "p, sign flips")))
    return columns


def _mean_column(title: str) -> Column:
    return Column(title, (f"{title}, mean", f"{title}, deviation"))


def _notes(campaign: Campaign, paper: bool) -> list[str]:
    ours = f"ours: {_MEAN.lower()}; bold is the best of its group."
    if paper and on_the_papers_data(campaign.name):
        ours += (
            " paper: over five seeds, at the round of lowest OOD loss. diff. in σ: (ours - paper) / the "
            f"paper's deviation, with ! if ours is worse by more than {FAR:g}."
        )
    elif paper:
        ours += " paper: of the full eICU database, not of these data, so no difference is shown."
    notes = [size_note(campaign), CHOICES, *_same_choice_notes(campaign), ours]
    if _tested(campaign):
        notes.append(
            f"against {BASELINE}: paired over seeds; better or worse if the t-test has p < {LEVEL:g}, "
            f"not tested below {FEWEST_SEEDS} seeds. p: t-test/exact sign flips (with n seeds never below "
            f"2/2^n, which is {smallest_flip_p(5):.4f} for five), not corrected for many comparisons."
        )
    return notes


def _tested(campaign: Campaign) -> bool:
    return BASELINE in campaign.algorithms and len(campaign.algorithms) > 1


def _measured(campaign: Campaign, metric: str) -> bool:
    return any(
        campaign.values(name, criterion, metric) for name in campaign.algorithms for criterion in CRITERIA
    )


def _fairness_measures(campaign: Campaign) -> list[Measure]:
    """Return the measures over sub-environments, as in the paper, or over silos if there are none."""
    group, over = "fairness", "silos"
    if _measured(campaign, "domain_fairness_variance"):
        group, over = "domain_fairness", "sub-environments"
    variance, entropy = f"{group}_variance", f"{group}_entropy"
    return [
        Measure("fairness-variance", variance, f"variance of accuracy over {over} (×1000)"),
        Measure("fairness-entropy", entropy, f"entropy of accuracy over {over} (×10)"),
    ]


def _domains_table(campaign: Campaign) -> TableData:
    """Return the accuracies in the paper's layout: a row per sub-environment, a column per algorithm."""
    names = in_paper_order(campaign.algorithms)
    rows = []
    for criterion in CRITERIA:
        for metric in campaign.domains:
            cells = with_best({name: our_cell(campaign, name, criterion, metric) for name in names}, False)
            if any(cell is not NOTHING for cell in cells.values()):
                # A space before the deviation is a place to break: six such cells are wider than a terminal.
                broken = (replace(cell, text=cell.text.replace("±", " ±")) for cell in cells.values())
                rows.append((criterion, metric.removeprefix(DOMAIN_ACCURACY), *broken))
    title = f"{campaign.heading}: validation accuracy in each sub-environment (higher is better)"
    columns = (_CHOSEN_BY, _DOMAIN, *map(_mean_column, names))
    notes = (size_note(campaign), CHOICES, f"{_MEAN}; bold is the best of its row.")
    return TableData.of("sub-environments", campaign.name, title, columns, rows, notes, grouped=True)


def _domains_beside_paper(campaign: Campaign) -> TableData:
    """Return the accuracies at the oracle's round beside the paper's: a group per sub-environment."""
    benchmark = paper_benchmark(campaign.name)
    papers = {metric: paper_numbers(benchmark, metric) for metric in campaign.domains}
    rows = []
    for metric, numbers in papers.items():
        where = metric.removeprefix(DOMAIN_ACCURACY)
        rows += _group(campaign, where, Measure("", metric, where), "oracle", numbers)
    known = any(papers.values())
    title = f"{campaign.heading}: accuracy in each sub-environment, round chosen by oracle"
    columns, notes = (_DOMAIN, *_columns(campaign, known)), _notes(campaign, known)
    return TableData.of("sub-environments-compared", campaign.name, title, columns, rows, notes, grouped=True)


def _inconsistency_table(campaign: Campaign) -> TableData:
    """Return, per algorithm, the score of the typical pair of silos and of the worst, over seeds."""
    metrics = {
        f"{_CURVATURES[curvature]}, {pair}": f"{INCONSISTENCY}{curvature}{end}"
        for curvature in CURVATURES
        for pair, end in (("typical", ""), ("worst", "_worst"))
    }
    names = in_paper_order(campaign.algorithms)
    cells = (
        {name: our_cell(campaign, name, "last", metric) for name in names} for metric in metrics.values()
    )
    columns = [with_best(column, lower=True) for column in cells]
    names = [name for name in names if any(column[name].parts for column in columns)]
    rows = ((name, *(column[name] for column in columns)) for name in names)
    title, headings = f"{campaign.heading}: inconsistency score (lower is better)", map(_mean_column, metrics)
    notes = (size_note(campaign), _SCORES)
    return TableData.of("inconsistency", campaign.name, title, (_ALGORITHM, *headings), rows, notes)
