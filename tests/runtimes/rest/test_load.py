"""Two hundred silos at one coordinator: every round completes, and its memory does not grow with them."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from fleets import PATIENCE, fleet, forked
from light_silos import light_silos, resident_bytes

SILOS, ROUNDS, CLIENTS = 200, 10, 2
INPUTS, HIDDEN = 100, 180
# Were answers kept, at least four rounds of them would lie between early and late; slack takes less than one.
ANSWERS_OF_A_ROUND = SILOS * 2 * 4 * (INPUTS * HIDDEN + HIDDEN + HIDDEN + 1)
EXPERIMENT = f"""
algorithm = "fishr-inter-geo"
rounds = {ROUNDS}
learning_rate = 0.01
evaluate_every = {ROUNDS}

[data]
source = "remote"
silos = {[f"silo-{number}" for number in range(SILOS)]}
inputs = [{INPUTS}]

[model]
hidden = [{HIDDEN}]
"""


@pytest.mark.timeout(900)
def test_two_hundred_silos_complete_every_round_in_memory_that_stays(tmp_path: Path) -> None:
    (tmp_path / "many.toml").write_text(EXPERIMENT)
    names = [f"silo-{number}" for number in range(SILOS)]
    history = tmp_path / "run" / "history.jsonl"
    memory: dict[int, int] = {}
    with fleet(tmp_path) as processes:
        coordinator, url = processes.serve(tmp_path / "many.toml", "--out", tmp_path / "run")
        clients = [forked(light_silos, url, names[part::CLIENTS]) for part in range(CLIENTS)]
        try:
            while coordinator.process.is_alive():
                done = len(history.read_text().splitlines()) if history.exists() else 0
                if done < ROUNDS:
                    memory[done] = max(memory.get(done, 0), resident_bytes(coordinator.process.pid))
                time.sleep(0.01)
            assert coordinator.ended() == 0, coordinator.said
            for client in clients:
                client.join(PATIENCE)
                assert client.exitcode == 0
        finally:
            for client in clients:
                client.kill()
    records = [json.loads(line) for line in history.read_text().splitlines()]
    assert [record["round"] for record in records] == list(range(1, ROUNDS + 1))
    assert all(record["silos_summary"]["count"] == SILOS for record in records)
    early = max(memory[done] for done in memory if 2 <= done <= 4)
    late = max(memory[done] for done in memory if done >= ROUNDS - 2)
    assert late - early < ANSWERS_OF_A_ROUND, memory
