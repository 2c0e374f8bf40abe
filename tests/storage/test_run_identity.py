"""A run is resumed with its own settings and data; the machine may be another, and is recorded."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numba
import numpy
import pytest
import torch
from command import Refusal, fedilc
from networks import mlp

from fedilc import Federation, Silo, __version__, load, train
from fedilc.errors import CheckpointError, FedILCWarning
from fedilc.storage import run_folder as checkpoint
from fedilc.storage.files import with_digest
from fedilc.storage.run_folder import RunFolder
from fedilc.storage.run_identity import machine_facts, require_same, upgraded

RUN = {
    "seed": 0,
    "rounds": 3,
    "silos": {"a": 1, "b": 2},
    "test": "x",
    "model": {"hidden": [8], "weights": "w"},
}


def test_what_does_not_change_weights_may_differ() -> None:
    require_same(Path("run"), RUN, RUN | {"rounds": 9, "device": "cpu", "machines": [1], "outlier_factor": 5})


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"seed": 1}, r"seed was 0 there and is 1 here"),
        ({"silos": {"a": 1, "b": 3}}, r"the data of silo 'b' differ"),
        ({"test": "y"}, r"the data of the test set differ"),
        ({"model": {"hidden": [8], "weights": "v"}}, r"model\.weights was 'w' there"),
        ({"seed": 1, "silos": {}}, r"seed was 0"),
        ({"balance": "weights"}, r"balance was None there"),
        ({"choices": {"inter": {"name": "geometric", "zeros": "strict"}}}, r"choices was None there"),
    ],
)
def test_the_first_difference_is_named(change: dict[str, object], words: str) -> None:
    with pytest.raises(CheckpointError, match=words):
        require_same(Path("run"), RUN, RUN | change)


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


OLD = Path(__file__).parent / "run_of_0_2"
AS_BEFORE = ("-a", "fishr-inter-geo-local", "--set", "model.hidden=[2]", "--set", "zeros=strict")


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """A run folder whose run.json has names of parts, and all options of all parts beside them."""
    return Path(shutil.copytree(OLD, tmp_path / "old"))


def test_a_folder_of_version_0_2_is_read_with_each_part_and_its_options(old: Path) -> None:
    facts = RunFolder(old).settings(require_digest=True)
    assert facts["choices"]["inter"] == {
        "name": "geometric",
        "zeros": "strict",
        "agreement": 0.0,
        "min_side": 2,
    }
    assert facts["choices"]["penalty"] == {"name": "fishr", "covariance": "diagonal", "reduction": "mean"}
    assert (facts["choices"]["intra"], facts["choices"]["update"]["steps"]) == (None, 5)
    assert (facts["zeros"], facts["min_side"]) == ("strict", 2)
    assert not {"trim", "agreement", "covariance", "local_steps"} & facts.keys()


@pytest.mark.filterwarnings("ignore::fedilc.errors.FedILCWarning")  # it was computed on another machine
def test_a_folder_of_version_0_2_is_resumed_with_its_settings_and_with_no_others(
    old: Path, refusal: Refusal
) -> None:
    again = ("run", "color-digits", *AS_BEFORE, "--rounds", "3", "--out", old, "--resume")
    said = refusal(*again, "--set", "min_side=3")
    assert "choices.inter.min_side was 2 there and is 3 here" in said
    # an option that is given as its default is the same run as one that is not given
    fedilc(*again, "--set", "min_side=2", "--set", "covariance=diagonal")
    assert [record["round"] for record in RunFolder(old).history()] == [1, 2, 3]
    assert RunFolder(old).history()[:2] == [json.loads(line) for line in (OLD / "history.jsonl").open()]


def test_a_folder_of_version_0_2_is_reported_and_loaded(old: Path, tmp_path: Path) -> None:
    fedilc("report", old, "--out", tmp_path / "report.html")
    assert "strict" in (tmp_path / "report.html").read_text()
    assert load(old).predict_proba(torch.zeros(1, 2, 8, 8)).shape == (1, 2)


@pytest.mark.filterwarnings("ignore:weights of silos are now called silo_weights")
def test_a_folder_with_weights_of_silos_under_their_former_name_is_resumed(tmp_path: Path) -> None:
    words = ("run", "color-digits", "-a", "fedsgd", "--set", "model.hidden=[2]", "--out", tmp_path / "run")
    fedilc(*words, "--rounds", 1, "--set", "silo_weights=examples")
    folder = RunFolder(tmp_path / "run")
    facts = folder.settings()
    former = {key: value for key, value in facts.items() if key != "silo_weights"} | {"weights": "examples"}
    former["choices"] = {**facts["choices"], "weights": facts["choices"]["silo_weights"]}
    del former["choices"]["silo_weights"]
    folder.settings_file.write_text(json.dumps(with_digest(former)))
    assert folder.settings(require_digest=True) == facts
    fedilc(*words, "--rounds", 2, "--set", "weights=examples", "--resume")
    assert [record["round"] for record in folder.history()] == [1, 2]


@pytest.mark.parametrize(
    ("penalty", "found"),
    [
        (
            {"name": "fishr", "covariance": "full"},
            {"name": "fishr", "covariance": "full", "reduction": "sum"},
        ),
        ({"name": "gone"}, {"name": "gone"}),
        (None, None),
    ],
)
def test_a_reduction_recorded_beside_the_penalty_becomes_its_own(penalty: Any, found: Any) -> None:
    before = {"fishr_reduction": "sum", "choices": {"inter": {"name": "mean"}, "penalty": penalty}}
    now = upgraded(before)
    assert now == {"reduction": "sum", "choices": {"inter": {"name": "mean"}, "penalty": found}}
    assert upgraded(now) == now
