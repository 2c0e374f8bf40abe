"""What a run was computed with: recorded, no part of its identity, and noted where it changes."""

from __future__ import annotations

import json
from pathlib import Path

import numba
import numpy
import pytest
import torch
from networks import mlp

from fedilc import Federation, Silo, __version__, train
from fedilc.errors import FedILCWarning
from fedilc.federation import run_folder as checkpoint
from fedilc.federation.machine_facts import machine_facts


def run(out: Path, rounds: int, resume: bool = False) -> list[dict[str, object]]:
    x = torch.randn(9, 6, generator=torch.Generator().manual_seed(1))
    federation = Federation("f", [Silo("a", x, x[:, 0] > 0), Silo("b", x + 1, x[:, 0] > 0)])
    return train(
        federation, mlp(), "fedsgd", rounds=rounds, learning_rate=0.1, out=out, resume=resume
    ).history


def machines(out: Path) -> list[dict[str, object]]:
    return json.loads((out / "run.json").read_text())["machines"]


def test_a_run_records_versions_threads_processor_and_instruction_set(tmp_path: Path) -> None:
    run(tmp_path / "run", 1)
    (found,) = machines(tmp_path / "run")
    assert found["from_round"] == 1
    assert (found["fedilc"], found["torch"]) == (__version__, torch.__version__)
    assert (found["numpy"], found["numba"]) == (numpy.__version__, numba.__version__)
    assert found["threads"] == torch.get_num_threads()
    assert found["instruction_set"] == torch.backends.cpu.get_cpu_capability()
    assert found["processor"]


def test_a_run_goes_on_elsewhere_with_a_note_and_a_record_of_both(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = run(tmp_path / "whole", 4)
    run(tmp_path / "parts", 2)
    elsewhere = machine_facts() | {"processor": "Another 3000", "torch": "9.9"}
    monkeypatch.setattr(checkpoint, "machine_facts", lambda: elsewhere)
    with pytest.warns(FedILCWarning, match=r"torch .*, now 9\.9; processor .*, now Another 3000"):
        assert run(tmp_path / "parts", 4, resume=True) == whole
    assert [one["from_round"] for one in machines(tmp_path / "parts")] == [1, 3]
    assert machines(tmp_path / "parts")[1]["processor"] == "Another 3000"
    assert machines(tmp_path / "parts")[0] == machines(tmp_path / "whole")[0]
    run(tmp_path / "parts", 5, resume=True)
    assert len(machines(tmp_path / "parts")) == 2
