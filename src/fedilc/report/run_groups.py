"""Group run folders: those that share their data, and among them those that differ only by seed."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedilc.config import Options
from fedilc.federation import Record, RunFolder

_DIGESTS = ("silos", "test")


@dataclass(frozen=True)
class StoredRun:
    """A run's settings, as run.json has them, its rounds, and the commands that computed them."""

    settings: Mapping[str, Any]
    history: Sequence[Record]
    commands: Sequence[str]


@dataclass
class RunGroup:
    """Runs that share their data, by method and seed."""

    name: str
    methods: dict[str, dict[int, StoredRun]] = field(default_factory=dict)


def run_groups(places: Sequence[Path]) -> list[RunGroup]:
    """Return the runs in these folders that have done a round, by what data they share."""
    folders = map(RunFolder, places)
    stored = [StoredRun(folder.settings(), folder.history(), folder.timing.commands()) for folder in folders]
    runs = [run for run in stored if run.history]
    groups: dict[str, list[StoredRun]] = {}
    for run in runs:
        groups.setdefault(_data(run.settings, runs), []).append(run)
    found: list[RunGroup] = []
    for members in groups.values():
        name = str(members[0].settings.get("experiment") or members[0].settings.get("federation"))
        again = sum(group.name.partition(", data ")[0] == name for group in found)
        group = RunGroup(f"{name}, data {again + 1}" if again else name)
        for label, run in zip(_labels(members), members, strict=True):
            group.methods.setdefault(label, {})[int(run.settings["seed"])] = run
        found.append(group)
    return found


def _data(settings: Mapping[str, Any], runs: Sequence[StoredRun]) -> str:
    """Return what runs with comparable numbers share.

    An experiment draws its data by the seed, so that its digests may differ between seeds but not within one.
    """
    shared = [settings.get("experiment"), settings.get("federation"), settings.get("data")]
    shared.append(sorted(settings["silos"]))
    own = [settings.get(key) for key in _DIGESTS]
    clash = any(
        other.settings.get("seed") == settings.get("seed")
        and other.settings.get("experiment") == settings.get("experiment")
        and [other.settings.get(key) for key in _DIGESTS] != own
        for other in runs
    )
    return json.dumps([*shared, own] if clash or not settings.get("experiment") else shared)


def _labels(runs: Sequence[StoredRun]) -> list[str]:
    """Return a name for each run's method: its algorithm, and what tells it from others of that algorithm."""
    told = []
    for run in runs:
        same = [one.settings for one in runs if one.settings["algorithm"] == run.settings["algorithm"]]
        differs = [
            f"{key} {run.settings.get(key)}"
            for key in Options.model_fields
            if key != "seed" and any(one.get(key) != run.settings.get(key) for one in same)
        ]
        told.append(", ".join([run.settings["algorithm"], *differs]))
    labels: list[str] = []
    for run, label in zip(runs, told, strict=True):
        seed = run.settings["seed"]
        earlier = sum(
            one == label and other.settings["seed"] == seed
            for one, other in zip(told[: len(labels)], runs, strict=False)
        )
        labels.append(f"{label}, run {earlier + 1}" if earlier else label)
    return labels
