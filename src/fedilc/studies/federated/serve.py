"""Serve a study over HTTP: the survey of tables, then the same plan as a study at one place."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from fedilc.algorithms import find_algorithm
from fedilc.data import sources
from fedilc.data.tables.preprocessing import Preprocessing
from fedilc.errors import ConfigError, DataError, listed
from fedilc.runtimes.remote.study_manifest import StudyManifest
from fedilc.runtimes.remote.survey import Survey, rows_of_summaries
from fedilc.runtimes.rest.address import Address
from fedilc.runtimes.rest.audit import Audit
from fedilc.runtimes.rest.auth import TokenFile, Tokens
from fedilc.runtimes.rest.coordinator import (
    AUDIT_FILE,
    INFORM_SECONDS,
    listening,
    make_app,
    notify_systemd,
    require_tokens,
    wait_until_informed,
)
from fedilc.runtimes.rest.study_queue import LostForGoodError, StudyQueue
from fedilc.runtimes.rest.survey import survey_study
from fedilc.runtimes.rest.task_queue import Spool
from fedilc.storage.files import tensors_below
from fedilc.studies.federated.coordinator import StackTrainer
from fedilc.studies.federated.data import RemoteTables
from fedilc.studies.federated.evaluation import (
    Describing,
    Evaluation,
    EvaluationAsked,
    FinalModel,
    SafetyCheck,
    Telling,
)
from fedilc.studies.federated.participation import Participation
from fedilc.studies.federated.progress import show_scores, shown_on
from fedilc.studies.study.comparators import null_outputs
from fedilc.studies.study.plan import StudyPlan
from fedilc.studies.study.result import StudyResult, chosen_methods
from fedilc.studies.study.run import Runs, StudyError
from fedilc.studies.study.safety import refusal
from fedilc.studies.study.settings import StudySettings
from fedilc.studies.study.site_scores import SiteScores
from fedilc.studies.study.tasks import RunTask
from fedilc.studies.study.verdict import deciding_metric
from fedilc.studies.worker_pool import Show, Work, working

OnLost = Literal["wait", "continue"]


@dataclass(frozen=True)
class StudyService:
    """A study over silos elsewhere, as its file describes it.

    Attributes:
        name: of the study.
        source: the silos, and how their tables are read.
        settings: the settings of the study, by name.
        out: its folder; a study in it is continued.
        address: where silos join.
        tokens: of silos and viewers.
        say: is told what happens, a sentence at a time.
        patience: for how many seconds a silo may be away before it has left, if the study then continues.
        on_lost: whether the study waits for a silo that is away, or continues without it.
        stay: whether the page is still served after the study, until somebody stops it.
    """

    name: str
    source: sources.RemoteTables
    settings: Mapping[str, Any]
    out: Path
    address: Address
    tokens: Tokens | TokenFile | None
    say: Callable[[str], None]
    patience: float = 600.0
    on_lost: OnLost = "wait"
    stay: bool = False

    def plan(self) -> tuple[StudyPlan, Address]:
        """Return the plan, after the survey of tables, and where the study is then served."""
        settings = StudySettings().with_given(self.settings, "study")
        if self.source.test is not None:
            raise ConfigError("data.test is a run's; a study leaves each silo out in turn, so leave it out")
        if settings.sensitivity:
            raise ConfigError("`sensitivity` needs the tables at one place; leave it out")
        table = self.source.settings()
        wanted = self.source
        if "robust" in settings.scalings:
            wanted = wanted.model_copy(update={"scaling": "robust"})
        survey = Survey.of(self.name, wanted)
        found, address = survey_study(survey, self.out, self.address, self.tokens, self.say)
        data = RemoteTables.of(self.name, table, found, self.settings)
        for text in settings.subgroups:
            data.require_subgroup(text)
        return StudyPlan(data, settings), address

    def manifest(self, plan: StudyPlan) -> StudyManifest:
        """Return what every silo receives."""
        data = plan.data
        assert isinstance(data, RemoteTables)
        return StudyManifest(
            run=self.name,
            silos=list(data.silos),
            table=data.table,
            label=data.rule.model_dump(mode="json"),
            loss=data.loss,
            outputs=data.outputs,
            settings={**asdict(plan.settings), "choosing_rows": plan.choosing_rows},
        )

    @contextlib.contextmanager
    def running(self, show: Show = lambda _: None) -> Iterator[StudyResult]:
        """Do the study over silos that join, or continue the one in the folder; yield what it found.

        Silos and the page are still served while the result is used.
        """
        plan, address = self.plan()
        with self.serving(plan, address) as (served, queue):
            yield self._done(served, queue, show)

    def _done(self, plan: StudyPlan, queue: StudyQueue, show: Show) -> StudyResult:
        """Return the result; if the study continues without silos that leave, it begins anew without them."""
        known = Participation.read(self.out)
        queue.leave_out_of_run(known.left)

        def noted(work: Work) -> None:
            known.note(dict(queue.joined))
            show(work)

        while True:
            smaller = without_silos(plan, queue, known.left)
            try:
                return done_over(smaller, queue, self.out, shown_on(queue, smaller, noted))
            except LostForGoodError as error:
                if self.on_lost == "wait":
                    raise StudyError(str(error)) from error
                self.say(f"{error}; the study continues without it")
                known.leave(error.silo, error.reason, time.time())
                queue.leave_out_of_run({error.silo: error.reason})
            finally:
                known.note(dict(queue.joined))

    @contextlib.contextmanager
    def serving(self, plan: StudyPlan, address: Address) -> Iterator[tuple[StudyPlan, StudyQueue]]:
        """Serve silos and the page; yield the plan over them, and the queue of their tasks."""
        manifest = self.manifest(plan)
        require_tokens(manifest.silos, self.tokens, address)
        self.out.mkdir(mode=0o700, parents=True, exist_ok=True)
        lost_after = self.patience if self.on_lost == "continue" else None
        queue = StudyQueue(manifest, Audit(self.out / AUDIT_FILE), Spool(self.out), lost_after)
        queue.summary_rows = rows_of_summaries(self.out)
        assert isinstance(plan.data, RemoteTables)
        try:
            with listening(make_app(queue, self.tokens), address) as port:
                queue.audit.event("started", url=address.url(port), manifest=manifest.hash)
                notify_systemd("READY=1")
                self.say(f"silos join at {address.url(port)}, and the page is there")
                self.say(f"waiting for {', '.join(manifest.silos)}; manifest {manifest.hash[:16]}")
                yield plan, queue
                present = queue.present()
                queue.finish("complete")
                wait_until_informed(queue, present, INFORM_SECONDS)
                with contextlib.suppress(KeyboardInterrupt):
                    while self.stay:
                        time.sleep(3600)
        except BaseException as error:
            queue.audit.event("ended", outcome=str(error) or "stopped")
            raise
        finally:
            queue.audit.flush(now=True)


def without_silos(plan: StudyPlan, queue: StudyQueue, left: Mapping[str, str]) -> StudyPlan:
    """Return the plan over the silos that are left, as if the others had never joined; they do its tasks."""
    data = plan.data
    assert isinstance(data, RemoteTables)
    if left:
        sentences = tuple(f"silo {silo!r} left the study: {reason}" for silo, reason in left.items())
        smaller = data.without(list(left))
        if smaller.rule.classes != data.rule.classes:
            raise DataError(
                f"without {listed(list(left))} the label has other classes; start the study anew without them"
            )
        data = replace(smaller, notes=(*smaller.notes, *sentences))
    hold_out = tuple(silo for silo in plan.settings.hold_out if silo not in left)
    settings = replace(plan.settings, hold_out=hold_out)
    return StudyPlan(replace(data, trainer=StackTrainer(queue, data)), settings)


def done_over(plan: StudyPlan, queue: StudyQueue, folder: Path, show: Show) -> StudyResult:
    """Return the result of a study whose silos do the tasks of a queue."""
    plan = without_refused(plan, queue)
    with working(1, "runs", show, shared=plan.data, threads=1) as work:
        runs = Runs(plan, folder, work)
        choices = runs.chosen()
        final = runs.final(choices)
    chosen = chosen_methods(plan, choices, final)
    sites: dict[str, SiteScores] = {}
    for silo, methods in final.items():
        sites |= queue.ask(evaluation(plan, runs, silo, methods, chosen))
        show_scores(queue, plan, chosen.get(silo, plan.reference), sites[silo])
    data, others = plan.data, [silo for silo in plan.data.silos if silo not in sites]
    assert isinstance(data, RemoteTables)
    silos = queue.ask(Describing(others, data.fit(data.silos))) if others else {}
    result = StudyResult(plan, choices, sites, runs.agreements(final), chosen, silos=silos)
    metric = deciding_metric(result)
    for silo in sites:
        queue.ask(Telling(silo, result.told_to(silo, metric)))
    return result


def without_refused(plan: StudyPlan, queue: StudyQueue) -> StudyPlan:
    """Return the plan without the regression if a silo does not take part in Newton's method."""
    data = plan.data
    assert isinstance(data, RemoteTables)
    newton = [one for one in plan.algorithms if find_algorithm(one)[1].is_newton]
    if not newton:
        return plan
    made = [data.fit(training, scaling) for training, scaling in plan.trained_sets(newton[0])]
    refused = queue.ask(SafetyCheck(made, data.silos))
    sentence = refusal(newton[0], refused)
    if sentence is None:
        return plan
    return replace(plan, data=replace(data, refused=dict.fromkeys(newton, sentence)))


def evaluation(
    plan: StudyPlan,
    runs: Runs,
    silo: str,
    methods: Mapping[str, Sequence[RunTask]],
    chosen: Mapping[str, str],
) -> Evaluation:
    """Return what a held-out silo is asked: the models that were trained without it."""
    data = plan.data
    assert isinstance(data, RemoteTables)
    made: dict[tuple[str, ...], Preprocessing] = {}
    models, weights = [], []
    for method, tasks in methods.items():
        once = tasks[:1] if plan.without_chance(method) else tasks
        for task, tensors in zip(once, runs.trained(once), strict=True):
            key = (task.scaling, *task.training)
            made.setdefault(key, data.fit(task.training, task.scaling))
            own = tensors_below(tensors, "weights")
            weights.append(own)
            models.append(
                FinalModel(
                    method=method,
                    algorithm=task.algorithm,
                    hidden=task.hidden,
                    inputs=list(made).index(key),
                    parameters={name: list(tensor.shape) for name, tensor in own.items()},
                )
            )
    null = None
    if plan.settings.references:
        others = [y for name, y in data.labels.items() if name != silo]
        null = null_outputs(data.loss, data.outputs, others, 1)[0].tolist()
    asked = EvaluationAsked(
        models=tuple(models),
        preprocessing=tuple(one.model_dump(mode="json") for one in made.values()),
        everyone=data.fit(data.silos).model_dump(mode="json"),
        null=null,
        drawn=(chosen.get(silo, plan.reference), plan.reference),
    )
    return Evaluation(silo, asked, weights, plan)
