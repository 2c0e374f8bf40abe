"""Small silos and a network for tests on Flower, and what `local` trains with them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from fedilc import Federation, Silo, train

SETTINGS: dict[str, Any] = {"learning_rate": 0.05, "penalty_weight": 3.0, "environment_size": 4}


def make_silo(partition_id: int) -> Silo:
    generator = torch.Generator().manual_seed(partition_id)
    x = torch.randn(12, 5, generator=generator)
    y = (x[:, 0] + 0.3 * partition_id > 0).float()
    return Silo(f"clinic-{partition_id}", x[:8], y[:8], x[8:], y[8:])


def make_model() -> nn.Module:
    generator = torch.Generator().manual_seed(5)
    model = nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 1))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.uniform_(-0.5, 0.5, generator=generator)
    return model


def locally(silos: int, rounds: int, algorithm: str = "fishr-inter-geo", **more: Any) -> dict[str, Tensor]:
    federation = Federation("near", [make_silo(place) for place in range(silos)])
    result = train(federation, make_model(), algorithm, rounds=rounds, **SETTINGS, **more)
    return dict(result.model.state_dict())


def same(found: dict[str, Tensor], expected: dict[str, Tensor]) -> bool:
    return found.keys() == expected.keys() and all(torch.equal(found[key], expected[key]) for key in found)
