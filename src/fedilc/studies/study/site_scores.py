"""What a study says about one held-out site: one small document, made where the site's rows are.

A silo computes it from its own rows (`scoring.py`), and everything else in a study is computed from these
documents alone, whether they come from tables in one place or from silos over a network. No part of a
document has one entry per row or per patient.

What a difference of two methods needs is the variance of their difference at the site, whose examples both
share. It follows from the influences of the examples on both scores; the site computes it for every pair.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError

from fedilc.algorithms.loss_registry import LossName
from fedilc.data.tables.silo_summary import MOST_COLUMNS
from fedilc.data.tables.table_settings import MOST_ROWS
from fedilc.errors import DataError
from fedilc.evaluation.estimates import Estimate, Floors
from fedilc.evaluation.intervals import Interval
from fedilc.section import Section, first_mistake

MOST_LEVELS = 10_000
FORMAT: Literal[1] = 1
Name = Annotated[str, Field(max_length=500)]
Count = Annotated[int, Field(ge=0, le=MOST_ROWS)]
Variance = Annotated[float, Field(ge=0)]
Share = Annotated[float, Field(ge=0, le=1)]
Sentence = Annotated[str, Field(max_length=200, pattern=r"^[A-Za-z0-9 ,.:;%-]*$")]


class Limits(Section):
    """An `Interval` in a document."""

    value: float | None = None
    low: float | None = None
    high: float | None = None
    reason: Sentence | None = None
    caution: Sentence | None = None

    @classmethod
    def of(cls, found: Interval) -> Limits:
        """Return an interval as it is in a document."""
        return cls(
            value=found.value, low=found.low, high=found.high, reason=found.reason, caution=found.caution
        )

    @property
    def interval(self) -> Interval:
        """Return the interval."""
        return Interval(self.value, self.low, self.high, self.reason, self.caution)


class Score(Section):
    """One score of one method at the site.

    Attributes:
        found: the mean over seeds on the score's own scale, with its limits; or why it is not estimable.
        seeds: the value of each seed.
        variance: of the mean over seeds, on the own scale.
        between_seeds: the part of it that is between seeds.
        analysis: the estimate and its variance on the scale of `evaluation.estimates.SCALES`, if there are
            enough examples for its variance.
        comparable: whether differences from it may enter what to expect at the next site.
    """

    found: Limits
    seeds: tuple[float | None, ...]
    variance: Variance = 0.0
    between_seeds: Variance = 0.0
    analysis: tuple[float, Variance] | None = None
    comparable: bool = False

    @property
    def value(self) -> float:
        """Return the mean over seeds; NaN if it is not estimable."""
        return float("nan") if self.found.value is None else self.found.value

    @property
    def estimate(self) -> Estimate | None:
        """Return the mean over seeds with its variance, whose influences are summed up in one number."""
        return None if self.found.value is None else Estimate.of(self.found.value, self.variance)


class Curve(Section):
    """A smooth calibration curve: what was observed at some predicted risks, with pointwise limits."""

    predicted: tuple[Share, ...]
    observed: tuple[Share, ...]
    low: tuple[Share, ...]
    high: tuple[Share, ...]


class Risks(Section):
    """Examples by predicted risk (`evaluation/risk_counts.py`); of classes, by confidence.

    Attributes:
        edges: the risks that part the counts.
        events: examples with the event (of classes, predicted rightly) between two edges, one per seed.
        others: the other examples.
        predicted: the sums of their risks.
        reach: how far the limits of the net benefit are away at each edge; None if there are too few events.
    """

    edges: tuple[Share, ...]
    events: tuple[Count, ...]
    others: tuple[Count, ...]
    predicted: tuple[Variance, ...]
    reach: tuple[Variance, ...] | None = None


class Group(Section):
    """Examples that are predicted alike: mean prediction, mean outcome, and the limits of that."""

    predicted: float
    observed: float
    low: float
    high: float


class MethodScores(Section):
    """One method at the site.

    Attributes:
        scores: by name.
        ici: the integrated calibration index, of binary labels.
        net_benefit: of binary labels, at each threshold of the plan.
        curve: the smooth calibration curve of binary labels; of methods that are drawn, if it has a fit.
        risks: examples by risk or confidence; of labels with classes, of methods that are drawn.
        groups: of quantities, of methods that are drawn.
    """

    scores: dict[Name, Score]
    ici: Limits | None = None
    net_benefit: tuple[Limits, ...] = ()
    curve: Curve | None = None
    risks: Risks | None = None
    groups: tuple[Group, ...] = ()


class Subgroup(Section):
    """The scores of some examples of the site.

    Attributes:
        subgroup: a column or a comparison, as in the plan.
        level: the value that these examples have.
        examples: how many; None if they are too few to be told of.
        events: how many of them are events, of binary labels.
        reason: why they are not told of, if so.
        methods: by method and name, the scores.
    """

    subgroup: Name
    level: Name
    examples: Count | None
    events: Count | None = None
    reason: Sentence | None = None
    methods: dict[Name, dict[Name, Limits]]


class Variable(Section):
    """One column of one silo, or of several together.

    Attributes:
        name: of the column.
        rows: how many there are.
        missing: how many have no value; None if that is not told.
        mean: of the numbers; None for names.
        deviation: their standard deviation (the sum of squares divided by their number).
        quartiles: the quartiles of the numbers; None if they are not told, since they are values of patients.
        counts: rows by value, of names and of few different numbers.
        other: whether there are further values, which are not told of.
    """

    name: Name
    rows: Count
    missing: Count | None
    mean: float | None = None
    deviation: Variance | None = None
    quartiles: tuple[float, float, float] | None = None
    counts: dict[Name, Count] | None = Field(None, max_length=MOST_LEVELS)
    other: bool = False


class SiteDescription(Section):
    """Who is at one silo: made there, like its scores.

    Attributes:
        silo: its name.
        unlabelled: rows without a label, which are left out; None if that is not told.
        variables: the columns in use.
    """

    silo: Name
    unlabelled: Count | None
    variables: tuple[Variable, ...] = Field(default=(), max_length=MOST_COLUMNS)


class SiteScores(Section):
    """One held-out site.

    Attributes:
        format: of the document.
        site: its name.
        min_events: how many examples of the rarest kind a score needed.
        min_cell: how many examples of each class a count needed.
        examples: rows.
        patients: patients, if some have several rows.
        classes: rows by class, if the label has classes; None for a class whose count is not told.
        mean: of the label, if it is a quantity.
        deviation: its standard deviation.
        reasons: by score, why no method has it here, if so.
        methods: by name.
        apart: by score, the variance over examples of the difference of two methods: a row per method in the
            order of `methods`, of its differences from those before it; None if one has no such score.
        beside: by method and score, the same for its difference from another study of these examples.
        treat_all: of binary labels, the net benefit of treating everybody at each threshold of the plan.
        subgroups: scores of parts of the examples.
        description: who is at the site, if that was asked.
    """

    format: Literal[1] = FORMAT
    site: Name
    min_events: int = Field(ge=1, le=MOST_ROWS)
    min_cell: int = Field(ge=1, le=MOST_ROWS)
    examples: Count
    patients: Count | None = None
    classes: dict[Annotated[str, Field(pattern=r"^\d{1,9}$")], Count | None] | None = None
    mean: float | None = None
    deviation: Variance | None = None
    reasons: dict[Name, Sentence | None]
    methods: dict[Name, MethodScores]
    apart: dict[Name, tuple[tuple[Variance | None, ...], ...]]
    beside: dict[Name, dict[Name, Variance | None]] = Field(default_factory=dict)
    treat_all: tuple[Limits, ...] = ()
    subgroups: tuple[Subgroup, ...] = ()
    description: SiteDescription | None = None

    @property
    def floors(self) -> Floors:
        """Return the floors that the site's owner set."""
        return Floors(self.min_events, self.min_cell)

    def difference(self, ours: str, theirs: str, metric: str) -> Estimate | None:
        """Return the difference of two methods at this site; None if one of them has no such score."""
        one, other = (self.methods[name].scores[metric] for name in (ours, theirs))
        if one.found.value is None or other.found.value is None:
            return None
        names = list(self.methods)
        low, high = sorted((names.index(ours), names.index(theirs)))
        of_examples = 0.0 if low == high else self.apart[metric][high][low]
        if of_examples is None:
            return None
        variance = of_examples + (one.between_seeds + other.between_seeds)
        return Estimate.of(one.found.value - other.found.value, variance)

    def to_bytes(self) -> bytes:
        """Return the document as JSON, from which `read` gets the same bits."""
        return self.model_dump_json().encode()

    @classmethod
    def read(cls, content: bytes) -> SiteScores:
        """Return the document that these bytes are; raise one sentence if they are none."""
        try:
            return cls.model_validate_json(content)
        except ValidationError as error:
            raise DataError(
                f"these are no scores of a site: {first_mistake(error, cls.model_fields)}"
            ) from error


class Told(Section):
    """What a study tells a held-out site of the others: their scores without names, and what was chosen.

    Attributes:
        name: of the study.
        loss: of its labels.
        metric: the score that decides.
        metrics: the names of all scores.
        chosen: the method that was chosen for the site without it; None if nothing was chosen.
        reference: the method that others are compared with.
        seeds: how many.
        thresholds: risks at which the net benefit is given.
        subgroups: as the plan has them.
        others: by method, the deciding score at the other held-out sites, in ascending order.
    """

    name: Name
    loss: LossName
    metric: Name
    metrics: tuple[Name, ...]
    chosen: Name | None
    reference: Name
    seeds: int = Field(ge=1)
    thresholds: tuple[Share, ...]
    subgroups: tuple[Name, ...] = ()
    others: dict[Name, tuple[float, ...]]


def variances_apart(influences: Any) -> tuple[tuple[float | None, ...], ...]:
    """Return the sums of squares of the differences of influences, a row per method; None without influences.

    >>> import numpy as np
    >>> variances_apart([np.array([1.0, 2.0]), None, np.array([1.0, 0.0])])
    ((), (None,), (4.0, None))
    """
    found = []
    for place, one in enumerate(influences):
        row = []
        for other in influences[:place]:
            apart = None if one is None or other is None else one - other
            row.append(None if apart is None else float(apart @ apart))
        found.append(tuple(row))
    return tuple(found)
