"""The result of a run: the trained model, one record per round, and the weights of chosen rounds."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn

from fedilc.algorithms.metric_registry import METRICS
from fedilc.errors import CheckpointError
from fedilc.evaluation import fairness, select
from fedilc.federation import Record
from fedilc.federation.protocol import DOMAINS

NAMED_SILOS = 100
_DOMAIN_METRICS = ("accuracy", "loss", "rmse", "examples")

Metrics = Mapping[str, Any]


@dataclass
class Result:
    """A trained model and the history of its training.

    Attributes:
        model: trained copy of the model, after the last round.
        history: one record per round, as JSON-like dictionaries.
        algorithm: name of the algorithm.
        stopped: why the run ended early, or None.
        kept: number and weights of the chosen round, by criterion.

    Raises:
        CheckpointError: by `best_model`, if the weights of the chosen round were not kept.

    >>> history = [{"round": 1, "validation_loss": 0.4}, {"round": 2, "validation_loss": 0.5}]
    >>> Result(nn.Linear(1, 1), history).best()["round"]
    1
    """

    model: nn.Module
    history: list[Record] = field(default_factory=list)
    algorithm: str = "custom"
    stopped: str | None = None
    kept: Mapping[str, tuple[int, Mapping[str, Tensor]]] = field(default_factory=dict, repr=False)

    def best(self, criterion: str = "validation") -> Record:
        """Return the record of the round that "validation", "last" or "oracle" chooses.

        The oracle chooses the round of lowest test loss, which nobody can know in practice.
        """
        return copy.deepcopy(dict(select(self.history, criterion)))

    def best_model(self, criterion: str = "validation") -> nn.Module:
        """Return a copy of the model with the weights of the round that `best` chooses, in evaluation mode.

        After a resume they come from the run folder, if it has them.
        """
        chosen = int(self.best(criterion)["round"])
        model = copy.deepcopy(self.model)
        if chosen == self.history[-1]["round"]:
            return model
        round_, weights = self.kept.get(criterion, (None, {}))
        if round_ != chosen:
            raise CheckpointError(
                f"the weights of round {chosen}, which {criterion!r} chooses, are not available: only the "
                "first rank keeps them, and a resumed run reads them from "
                f"best-{criterion}.safetensors, if that file is intact",
                "train again to get them",
            )
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if name in weights:
                    parameter.copy_(weights[name])
        return model


def flatten(record: Record) -> Record:
    """Return a record with means at the top, then fairness and the numbers of each silo and sub-domain.

    More than `NAMED_SILOS` silos are summarised, so that a history does not grow with their number.
    """
    validation: dict[str, Metrics] = record.pop("validation", {})
    test = record.pop("test", {})
    silos = record.pop("silos")
    flat = dict(record)
    for key in METRICS.names():
        values = [value for numbers in validation.values() if (value := numbers.get(key)) is not None]
        if values:
            flat[f"validation_{key}"] = sum(values) / len(values)
    flat |= {f"test_{key}": value for key, value in test.items() if key != "examples"}
    classes = any("accuracy" in numbers for numbers in validation.values())
    if classes:
        flat["fairness"] = fairness(
            {silo: numbers["accuracy"] or 0.0 for silo, numbers in validation.items()}
        )
    by_domain: dict[str, float] = {}
    for silo, numbers in validation.items():
        entry = silos.setdefault(silo, {})
        entry.update({f"validation_{key}": value for key, value in numbers.items() if key != DOMAINS})
        domains = {
            name: {key: value for key, value in found.items() if key in _DOMAIN_METRICS}
            for name, found in numbers.get(DOMAINS, {}).items()
        }
        if domains:
            entry["validation_domains"] = domains
        if classes:
            by_domain |= {f"{silo} {name}": found["accuracy"] or 0.0 for name, found in domains.items()}
    if by_domain:
        flat["domain_fairness"] = fairness(by_domain)
    if len(silos) > NAMED_SILOS:
        flat["silos_summary"] = silos_summary(silos)
    else:
        flat["silos"] = silos
    return flat


def silos_summary(silos: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return how many silos there are, and the minimum, median and maximum of each of their numbers.

    >>> silos_summary({"a": {"train_loss": 0.5}, "b": {"train_loss": 0.25}, "c": {"train_loss": None}})
    {'count': 3, 'train_loss': {'least': 0.25, 'median': 0.375, 'greatest': 0.5}}
    """
    columns: dict[str, list[float]] = {}
    for numbers in silos.values():
        for key, value in numbers.items():
            if isinstance(value, int | float):
                columns.setdefault(key, []).append(value)
    spread = {
        key: {"least": min(values), "median": median(values), "greatest": max(values)}
        for key, values in columns.items()
    }
    return {"count": len(silos), **spread}
