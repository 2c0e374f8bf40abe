"""Group run folders: those that share their data, and among them those that differ only by seed."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedilc.config.options import recorded_options
from fedilc.evaluation.selection import Record
from fedilc.federation import RunFolder


@dataclass(frozen=True)
class StoredRun:
    """A run's folder, its settings as run.json has them, its rounds, and the commands that computed them."""

    folder: Path
    settings: Mapping[str, Any]
    history: Sequence[Record]
    commands: Sequence[str]


@dataclass
class RunGroup:
    """Runs that share their data, by method and seed."""

    name: str
    methods: dict[str, dict[int, StoredRun]] = field(default_factory=dict)

    @property
    def runs(self) -> list[StoredRun]:
        """Return all runs, method after method."""
        return [run for by_seed in self.methods.values() for run in by_seed.values()]

    @property
    def title(self) -> str:
        """Return the name, and the seeds of the runs."""
        seeds = sorted({run.settings["seed"] for run in self.runs})
        return f"{self.name} · seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))}"

    @property
    def histories(self) -> dict[str, Sequence[Record]]:
        """Return the rounds of each run by its folder's name, or by its path if others have that name."""
        names = [run.folder.resolve().name for run in self.runs]
        return {
            name if names.count(name) == 1 else str(run.folder): run.history
            for name, run in zip(names, self.runs, strict=True)
        }


def run_groups(folders: Sequence[Path]) -> list[RunGroup]:
    """Return the runs in these folders that have done a round, by what data they share."""
    opened = {folder: RunFolder(folder) for folder in folders}
    stored = [StoredRun(path, f.settings(), f.history(), f.timing.commands()) for path, f in opened.items()]
    runs = [run for run in stored if run.history]
    by_data: dict[str, list[StoredRun]] = {}
    for run in runs:
        by_data.setdefault(_data(run.settings, runs), []).append(run)
    names: Counter[str] = Counter()
    groups = []
    for members in by_data.values():
        name = str(members[0].settings.get("experiment") or members[0].settings.get("federation"))
        names[name] += 1
        group = RunGroup(name if names[name] == 1 else f"{name}, data {names[name]}")
        for run in members:
            _add(group, _method(run, members), run)
        groups.append(group)
    return groups


def _data(settings: Mapping[str, Any], runs: Sequence[StoredRun]) -> str:
    """Return what runs with comparable numbers share.

    An experiment draws its data by the seed, so that its digests may differ between seeds but not within one.
    """
    shared = [settings.get(key) for key in ("experiment", "federation", "data")]
    shared.append(sorted(settings["silos"]))
    alike = [
        other.settings
        for other in runs
        if all(other.settings.get(key) == settings.get(key) for key in ("seed", "experiment"))
    ]
    digests = [settings.get("silos"), settings.get("test")]
    clash = any([other.get("silos"), other.get("test")] != digests for other in alike)
    return json.dumps([*shared, digests] if clash or not settings.get("experiment") else shared)


def _method(run: StoredRun, runs: Sequence[StoredRun]) -> str:
    """Return the name of a run's method: its algorithm, and what tells it from others of that algorithm."""
    same = [one.settings for one in runs if one.settings["algorithm"] == run.settings["algorithm"]]
    differs = [
        f"{key} {run.settings.get(key)}"
        for key in dict.fromkeys(key for one in same for key in recorded_options(one))
        if key != "seed" and any(one.get(key) != run.settings.get(key) for one in same)
    ]
    return ", ".join([run.settings["algorithm"], *differs])


def _add(group: RunGroup, method: str, run: StoredRun) -> None:
    """Add a run to its method; if there is one of its seed, as a method of its own, "run 2"."""
    name, number, seed = method, 1, int(run.settings["seed"])
    while seed in group.methods.get(name, {}):
        number += 1
        name = f"{method}, run {number}"
    group.methods.setdefault(name, {})[seed] = run
