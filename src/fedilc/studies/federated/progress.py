"""What the coordinator's page shows of a study: plan, progress, time left, and scores as they come."""

from __future__ import annotations

from typing import Any

from fedilc.runtimes.rest.study_queue import StudyQueue
from fedilc.studies.study.plan import StudyPlan
from fedilc.studies.study.site_scores import SiteScores
from fedilc.studies.worker_pool import Show, Work


def shown_on(queue: StudyQueue, plan: StudyPlan, show: Show) -> Show:
    """Return a function that shows the state of the work on the page too."""
    queue.show(
        study={
            "held_out": list(plan.held_out),
            "methods": list(plan.algorithms),
            "metric": plan.metrics[0],
            "rounds": plan.settings.rounds,
            "seeds": plan.settings.seeds,
            "choose_by": plan.choose_by,
            "groups": [list(group) for group in plan.groups],
            "scores": {},
        }
    )

    def both(work: Work) -> None:
        show(work)
        queue.progress.phase = work.label or "choosing settings"
        queue.show(completed=work.done(), rounds=work.total(), seconds_left=work.seconds_left())

    return both


def show_scores(queue: StudyQueue, plan: StudyPlan, chosen: str, document: SiteScores) -> None:
    """Show the deciding score of a held-out silo on the page."""
    facts: dict[str, Any] = queue.facts.get("study", {})
    scored = document.methods.get(chosen)
    if scored is None:
        return
    found = scored.scores[plan.metrics[0]].found
    own = {
        "method": chosen,
        "value": found.value,
        "low": found.low,
        "high": found.high,
        "reason": found.reason,
    }
    queue.show(study={**facts, "scores": {**facts.get("scores", {}), document.site: own}})
