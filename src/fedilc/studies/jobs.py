"""Runs of experiments as jobs: each in a run folder of its own, which can be resumed."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedilc.api import train
from fedilc.config import Experiment, Options, read_experiment
from fedilc.data.digests import weights_digest
from fedilc.data.silo_store import data_facts
from fedilc.data.sources import Section
from fedilc.errors import ConfigError, FedILCError, FedILCWarning, writing
from fedilc.storage.files import complete_lines, json_bytes, parse_json
from fedilc.storage.run_folder import RunFolder
from fedilc.storage.run_identity import require_same
from fedilc.studies.checking import prepare
from fedilc.studies.worker_pool import Job, Show, working
from fedilc.training.result import Result


def run_experiment(settings: Experiment, home: Path, model: str | None = None, **how: Any) -> Result:
    """Train an experiment; `how` is `out`, `resume` and `callbacks` of `train`.

    `home` is the folder of the experiment's file; `model` names the user's own network as `module:function`.
    """
    store, network = prepare(settings, home, model)
    described = settings.model.model_dump() if model is None else {"function": model}
    data = settings.data.model_dump(mode="json")
    how["settings"] = {"experiment": settings.name, "data": data, "model": described}
    return train(store, network, settings.algorithm, **settings.options(), **how)


@dataclass(frozen=True, eq=False)
class RunJob(Job):
    """The run of an experiment with changes; `home` is the folder of the experiment's file."""

    settings: Experiment
    home: Path

    @classmethod
    def of(cls, experiment: str, changes: Sequence[str], folder: Path) -> RunJob:
        """Return the job of an experiment with changes; raise if a change is not valid."""
        settings, home = read_experiment(experiment, changes)
        varied = any(change.startswith("penalty_weight=") for change in changes)
        weight = f" lambda {settings.penalty_weight:g}" if varied else ""
        label = f"{settings.algorithm}{weight} seed {settings.seed}"
        return cls(label, settings.algorithm, folder, settings.rounds, settings, home)

    def done(self) -> int:
        """Return the number of complete rounds."""
        return len(complete_lines(self.folder / "history.jsonl"))

    def finished(self) -> bool:
        """Return whether all rounds are complete; raise if the folder belongs to other settings."""
        self.require_same_settings()
        return self.done() >= self.settings.rounds

    def seconds(self) -> list[float]:
        """Return the time that each of the last 20 rounds took."""
        return [parse_json(line)["seconds"] for line in complete_lines(self.folder / "timing.jsonl")[-20:]]

    def begun(self) -> dict[str, Any] | None:
        """Return the facts in the folder's run.json, or None if the run has not begun.

        Version 0.1 called the setting `penalty_weight` `penalty`.
        """
        if not (self.folder / "run.json").exists():
            return None
        found = RunFolder(self.folder).settings()
        if isinstance(found.get("penalty"), float | int):
            return found | {"penalty": None, "penalty_weight": found["penalty"]}
        return found

    def require_same_settings(self) -> None:
        """Raise if the folder holds a run with other settings than this one asks for."""
        found = self.begun()
        if found is None:
            return
        wanted = self.settings.model_dump(mode="json")
        wanted["loss"] = wanted["loss"] or found.get("loss")  # none is that of the data, which run.json has
        network = {key: (found.get("model") or {}).get(key) for key in wanted["model"]}
        defaults = parse_json(json_bytes(_defaults(type(self.settings.data))))
        data = {key: defaults[key] for key in wanted["data"] if key in defaults} | (found.get("data") or {})
        held = {**_defaults(Options), **found, "data": data, "model": network}
        if "choices" in found:
            built = self.settings.parts.built(self.settings.for_parts)
            wanted["choices"] = parse_json(json_bytes(built.describe()))
        keys = (*Options.model_fields, "algorithm", "data", "model", "choices")
        require_same(self.folder, *({key: facts.get(key) for key in keys} for facts in (held, wanted)))
        if self.done() > self.settings.rounds:
            raise ConfigError(
                f"the run in {self.folder} has {self.done()} rounds, more than {self.settings.rounds}; "
                "choose another folder with `out`, or give as many rounds"
            )

    def perform(self, _: None) -> None:
        """Begin or resume the run; notes, and the reason if it fails, are in the folder's log.txt."""
        with writing(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            log = (self.folder / "log.txt").open("w", encoding="utf-8", buffering=1)
        with log, warnings.catch_warnings():
            warnings.simplefilter("always", FedILCWarning)
            warnings.showwarning = lambda message, *_, **__: print(f"fedilc: note: {message}", file=log)
            resume = (self.folder / "run.json").exists()
            try:
                run_experiment(self.settings, self.home, out=self.folder, resume=resume)
            except FedILCError as error:
                log.write(f"fedilc: {error}\n")
                raise


def _defaults(section: type[Section]) -> dict[str, Any]:
    """Return the defaults of a section's settings, which a run of an earlier version without them had."""
    fields = section.model_fields.items()
    return {name: f.get_default(call_default_factory=True) for name, f in fields if not f.is_required()}


def require_same_data(jobs: Sequence[RunJob], *, now: bool) -> None:
    """Raise if a run that has begun has other data than now, or than another run of the same seed.

    With `now`, the data of each seed that has a run are built once, and those of the first job in any case,
    so that problems and notes of the data appear here and not in the log of a run.
    """
    known: dict[tuple[str, int], Mapping[str, Any]] = {}
    for job in jobs:
        begun = job.begun()
        if begun is None and (known or not now):
            continue
        key = job.settings.data.model_dump_json(), job.settings.seed
        if key not in known:
            known[key] = _current_facts(job) if now else begun or {}
        facts = known[key]
        if begun is not None:
            require_same(job.folder, *({"silos": f["silos"], "test": f["test"]} for f in (begun, facts)))
            if begun["model"].get("weights") and facts["model"].get("weights"):
                require_same(job.folder, *({"weights": f["model"]["weights"]} for f in (begun, facts)))


def _current_facts(job: RunJob) -> dict[str, Any]:
    """Return the facts of the current data and initial weights, as run.json would have them."""
    settings = job.settings
    store = settings.data.store(settings.seed, job.home)
    weights = weights_digest(settings.model.build(store, settings.seed))
    return {**data_facts(store.outline()), "model": {"weights": weights}}


def run_jobs(jobs: Sequence[RunJob], at_a_time: int, show: Show = lambda _: None) -> list[RunJob]:
    """Do the runs that are not finished, and return them; raise if the data of a run have changed."""
    left = [job for job in jobs if not job.finished()]
    require_same_data(jobs, now=True)
    if left:
        with working(min(at_a_time, len(left)), "rounds", show) as work:
            work.do("all runs", jobs)
        require_same_data(jobs, now=False)
    return left
