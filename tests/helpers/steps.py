"""The gradient a server stepped with, read from Adam's first moment after one round."""

from __future__ import annotations

from pathlib import Path

from torch import Tensor, nn

from fedilc import Federation, Result, train
from fedilc.storage.run_folder import RunFolder

BETA_1 = 0.9


def stepped_gradient(
    federation: Federation, model: nn.Module, algorithm: object, out: Path, **options: object
) -> tuple[dict[str, Tensor], Result]:
    """grad of the first round: Adam's first moment is (1 - beta_1) times it."""
    result = train(federation, model, algorithm, rounds=1, learning_rate=1e-3, out=out, **options)
    moments = RunFolder(out).load().tensors
    names = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    return {name: moments[f"optimizer.{i}.exp_avg"] / (1 - BETA_1) for i, name in enumerate(names)}, result
