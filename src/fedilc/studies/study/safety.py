"""Leave the federated regression out of a study if the second derivatives that it needs are not safe.

Silos refuse them whatever the study (`runtimes/remote/silo_client.py`). A study of tables at one place with
floors does without them in the same cases, so that its answer is that of the silos.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from fedilc.algorithms import find_algorithm
from fedilc.runtimes.remote.silo_client import unsafe_hessian
from fedilc.studies.study.plan import StudyPlan


def refusal(method: str, reasons: Mapping[str, str | None]) -> str | None:
    """Return why a study does without a regression; None if no silo has a reason.

    >>> refusal("logistic", {"a": None, "b": "40 training examples"})
    "logistic is left out, because silo 'b' has 40 training examples"
    """
    found = [(silo, reason) for silo, reason in reasons.items() if reason is not None]
    if not found:
        return None
    silo, reason = found[0]
    more = f" ({len(found)} silos have such a reason, this is the first)" if len(found) > 1 else ""
    return f"{method} is left out, because silo {silo!r} has {reason}{more}"


def without_unsafe(plan: StudyPlan) -> StudyPlan:
    """Return the plan without the regression if silos would refuse it."""
    newton = [name for name in plan.algorithms if find_algorithm(name)[1].is_newton]
    if not newton:
        return plan
    reasons: dict[str, str | None] = dict.fromkeys(plan.data.silos)
    for training, scaling in plan.trained_sets(newton[0]):
        for silo in plan.data.silos:
            if reasons[silo] is None:
                reasons[silo] = unsafe_hessian(plan.data.inputs(training, silo, scaling))
    sentence = refusal(newton[0], reasons)
    if sentence is None:
        return plan
    return replace(plan, data=replace(plan.data, refused=dict.fromkeys(newton, sentence)))
