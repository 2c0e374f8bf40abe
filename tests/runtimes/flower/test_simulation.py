"""Flower's simulation, with the app that the command writes, trains what one process does."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from stage import play, require_alone

from fedilc import algorithms, train
from fedilc.config import read_experiment
from fedilc.runtimes.flower.template import new_app
from fedilc.storage.run_folder import RunFolder

ROUNDS = 10
NAMES = (*algorithms.PAPER, "fedavg")
CHANGES = ["model.hidden=[16]", "penalty_weight=5", "learning_rate=0.01"]


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_simulation_equals_local_for_all_algorithms(tmp_path: Path) -> None:
    require_alone()
    nodes = new_app(tmp_path / "app", "color-digits")
    told = play(
        "simulation_story.py",
        tmp_path,
        1400,
        algorithms=list(NAMES),
        out=str(tmp_path / "flower"),
        nodes=nodes,
        rounds=ROUNDS,
        changes=" ".join(CHANGES),
    )
    assert "finished:completed" in told["status"], told["said"]
    for algorithm in NAMES:
        changes = [*CHANGES, f"rounds={ROUNDS}", f"algorithm={algorithm}"]
        settings, folder = read_experiment("color-digits", changes)
        federation = settings.data.build(settings.seed, folder)
        model = settings.model.build(federation, settings.seed)
        result = train(federation, model, algorithm, **settings.options())
        saved = RunFolder(tmp_path / "flower" / algorithm).load()
        assert saved.round == ROUNDS
        for name, parameter in result.model.named_parameters():
            assert torch.equal(saved.weights[name], parameter), (algorithm, name)
        assert [record["test_loss"] for record in saved.history] == pytest.approx(
            [record["test_loss"] for record in result.history], rel=1e-6
        )
