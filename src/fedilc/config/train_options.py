"""The further options of `train`, typed for editors and type checkers; `Options` validates them."""

from __future__ import annotations

from typing import Any, Literal, TypedDict


class TrainOptions(TypedDict, total=False):
    """Further options of `train`; the docstring of `train` explains each."""

    penalty: str | None
    weights_step: float
    weights_power: float
    local_steps: int | None
    local_epochs: int | None
    batch_size: int | None
    local_optimizer: str | None
    local_learning_rate: float | None
    proximal: float | None
    optimizer: str | None
    optimizer_options: dict[str, Any]
    learning_rate_schedule: Literal["constant", "step", "cosine"]
    warmup_rounds: int
    decay_rounds: int | None
    decay_factor: float
    zeros: Literal["ignore", "strict", "authors"]
    agreement: float | None
    min_side: int | None
    covariance: Literal["diagonal", "full"]
    fishr_reduction: Literal["mean", "sum"]
    penalty_anneal_rounds: int
    penalty_start: float
    min_silos: int | None
    silos_per_round: int | None
    on_divergence: Literal["stop", "exclude"]
    outlier_factor: float
    max_norm: float | None
    evaluate_every: int
    classifier: str | None
    thresholded_batch: int | None
