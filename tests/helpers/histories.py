"""Histories of runs as tables and pictures read them: with and without validation and test."""

from __future__ import annotations

from typing import Any

History = list[dict[str, Any]]


def record(number: int, train: float, validation: float | None = None, test: float | None = None) -> Any:
    found: dict[str, Any] = {"round": number, "train_loss": train}
    if validation is not None:
        fair = {"worst_accuracy": 0.25, "worst_silo": "clinic-b"}
        found |= {"validation_loss": validation, "validation_accuracy": 0.75, "fairness": fair}
    if test is not None:
        found |= {"test_loss": test, "test_accuracy": 0.5, "test_auroc": None, "test_auprc": 0.625}
    return found


FULL: History = [
    record(6, 0.9, 0.5, 0.8),
    record(7, 0.7, 0.4, 0.9),
    record(8, 0.6, 0.45, 0.7),
    record(9, 0.5, 0.6, 1),
]

OTHER: History = [record(6, 0.95, 0.3, 0.75)]

NO_TEST: History = [record(6, 0.9, 0.5), record(7, 0.8, 0.6)]

TRAIN_ONLY: History = [record(1, 0.9), record(2, 0.8)]
