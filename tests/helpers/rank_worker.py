"""What every rank of a test does; also where the federation of these tests is made.

A rank trains each algorithm for ten rounds, five rounds of one into OUT/half, and goes on with what it finds
in OUT/begun; it leaves its weights and what it knew in OUT.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from worked_examples import OTHERS

from fedilc import Federation, Silo, algorithms, train
from fedilc.data.silo_store import SiloStore
from fedilc.runtimes.distributed import Group, joined_group

SIZES = (5, 9, 2, 7, 3, 4)
SETTINGS = {"learning_rate": 0.05, "penalty_weight": 2.0, "environment_size": 2, "seed": 3, "device": "cpu"}
RESUMED = "fishr-inter-geo"
WEIGHTED = {"algorithm": "fishr-intra-geo", "silo_weights": "examples", "silos_per_round": 3}
IMAGES = "images"
NAMES = (*algorithms.PAPER, *OTHERS)
OUTLYING = {
    "algorithm": "fishr-inter-geo",
    "rounds": 4,
    "kind": "outlying",
    "min_silos": 5,
    "on_divergence": "exclude",
}


def federation() -> Federation:
    """Six small silos of different sizes, with validation and a test set."""
    random = torch.Generator().manual_seed(10)

    def some(size: int) -> tuple[Tensor, Tensor]:
        x = torch.randn(size, 4, generator=random)
        return x, (x.sum(1) + torch.randn(size, generator=random) > 0).float()

    silos = [Silo(f"silo-{i}", *some(size), *some(4)) for i, size in enumerate(SIZES)]
    return Federation("small", silos, *some(50))


def network() -> nn.Module:
    """A small network, the same each time."""
    random = torch.Generator().manual_seed(1)
    model = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 1))
    _fill(model, random)
    return model


def _fill(model: nn.Module, random: torch.Generator) -> None:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=random) / 2)


def images() -> tuple[Federation, nn.Module]:
    """Four silos of small images, and a convolutional network, whose weights lie otherwise in memory."""
    random = torch.Generator().manual_seed(2)
    silos = [
        Silo(f"ward-{i}", torch.randn(6, 3, 6, 6, generator=random), torch.tensor([0.0, 1.0] * 3))
        for i in range(4)
    ]
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 5, 3), nn.Flatten(), nn.Linear(20, 1))
    _fill(model, random)
    return Federation("images", silos), model


def weights_of(
    algorithm: str, rounds: int = 10, kind: str = "numbers", **more: Any
) -> tuple[Mapping[str, Tensor], list[Any]]:
    """Trained weights and the history."""
    data, model = images() if kind == IMAGES else (federation(), network())
    if kind == "outlying":
        data.silos[1].x.mul_(1e6)
    store = SiloStore.of(data)
    result = train(store, model, algorithm, rounds=rounds, **SETTINGS, **more)
    if Group.current().size > 1:
        assert store.held is not None
        assert store.held.keys() == set(Group.current().share(store.sizes))
    return result.model.state_dict(), result.history


def _begun_apart(rank: int) -> Mapping[str, Tensor]:
    """Weights that were trained from other ones on every rank but the first."""
    model = network()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(rank)
    return train(federation(), model, RESUMED, rounds=10, **SETTINGS).model.state_dict()


def told_by_torchrun(rank: int, size: int, port: int) -> dict[str, str]:
    """What a rank reads from its environment."""
    told = {"RANK": rank, "WORLD_SIZE": size, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    return {name: str(value) for name, value in told.items()}


def work(rank: int, size: int, port: int, out: Path) -> None:
    """All that is asked of one rank."""
    os.environ.update(told_by_torchrun(rank, size, port))
    torch.set_num_threads(1)
    found: dict[str, Tensor] = {}
    with joined_group() as group:
        for algorithm in NAMES:
            weights, _ = weights_of(algorithm)
            found |= {f"{algorithm}/{name}": tensor for name, tensor in weights.items()}
        weights_of(RESUMED, 5, out=out / "half")
        weights, _ = weights_of(RESUMED, 10, out=out / "begun", resume=True)
        found |= {f"resumed/{name}": tensor for name, tensor in weights.items()}
        weights_of("scaffold", 4, out=out / "scaffold")
        weights, _ = weights_of("scaffold", 10, out=out / "scaffold", resume=True)
        found |= {f"remembered/{name}": tensor for name, tensor in weights.items()}
        weights, _ = weights_of(RESUMED, 10, IMAGES, out=out / "images", resume=True)
        found |= {f"images/{name}": tensor for name, tensor in weights.items()}
        weights, sampled = weights_of(RESUMED, silos_per_round=3)
        found |= {f"sampled/{name}": tensor for name, tensor in weights.items()}
        weights, _ = weights_of(**WEIGHTED)
        found |= {f"weighted/{name}": tensor for name, tensor in weights.items()}
        weights, aside = weights_of(**OUTLYING)
        found |= {f"outlying/{name}": tensor for name, tensor in weights.items()}
        assert [list(record.get("set_aside", {})) for record in aside] == [["silo-1"]] * 3 + [[]]
        drawn = [list(record["silos"]) for record in sampled]
        found |= {f"first/{name}": tensor for name, tensor in _begun_apart(group.rank).items()}
        save_file(found, out / f"weights-{group.rank}.safetensors")
        (out / f"drawn-{group.rank}.json").write_text(json.dumps(drawn))
