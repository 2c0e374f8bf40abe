"""Run folders: exact resume after SIGKILL anywhere, atomic files, and clear refusals."""

from __future__ import annotations

import hashlib
import json
import time
from pathlib import Path

import pytest
import torch
from fleets import fleet
from networks import mlp

from fedilc import Algorithm, Federation, Silo, train
from fedilc.aggregation import AndMask
from fedilc.errors import CheckpointError, ConfigError
from fedilc.storage.run_folder import RunFolder

COMMAND = ["run", "color-digits", "--rounds", "40", "--set", "model.hidden=[16]"]


def federation() -> Federation:
    generator = torch.Generator().manual_seed(1)
    silos = []
    for name in "abc":
        x = torch.randn(9, 6, generator=generator)
        silos.append(Silo(name, x, (x[:, 0] > 0).long(), x[:4] + 0.1, (x[:4, 0] > 0).long()))
    return Federation("f", silos, x + 0.5, (x[:, 0] > 0).long())


def run(out: Path, rounds: int = 6, resume: bool = False, **options: object):
    options = {"algorithm": "fishr-inter-geo", "learning_rate": 0.05, **options}
    return train(federation(), mlp(), rounds=rounds, out=out, resume=resume, **options)


def digest(folder: Path) -> dict[str, str]:
    """A hash of every file whose content must not depend on the clock."""
    return {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.iterdir())
        if path.name != "timing.jsonl"
    }


def bits(result: object) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in result.model.parameters()])


@pytest.mark.parametrize("algorithm", ["fedsgd", "fishr-inter-geo", "fishr-intra-geo"])
def test_a_run_in_parts_equals_a_run_in_one_to_the_bit(algorithm: str, tmp_path: Path) -> None:
    options = {"algorithm": algorithm, "environment_size": 4, "weight_decay": 0.01}
    whole = run(tmp_path / "whole", 6, **options)
    run(tmp_path / "parts", 2, **options)
    run(tmp_path / "parts", 5, resume=True, **options)
    parts = run(tmp_path / "parts", 6, resume=True, **options)
    assert torch.equal(bits(whole), bits(parts))
    assert digest(tmp_path / "whole") == digest(tmp_path / "parts")
    assert parts.history == whole.history == RunFolder(tmp_path / "whole").history()


def test_sigkill_at_any_moment_and_resume_gives_the_same_bits_as_an_undisturbed_run(tmp_path: Path) -> None:
    calm, killed = tmp_path / "calm", tmp_path / "killed"
    random = torch.Generator().manual_seed(7)
    with fleet(tmp_path) as commands:
        assert commands.start(*COMMAND, "--out", calm).ended() == 0
        for attempt in range(3):
            resume = ["--resume"] if (killed / "run.json").exists() else []
            run = commands.start(*COMMAND, "--out", killed, *resume)
            deadline = time.monotonic() + 100
            while len(RunFolder(killed).history()) < 8 * (attempt + 1):
                assert run.process.is_alive(), run.said
                assert time.monotonic() < deadline
                time.sleep(0.002)
            time.sleep(float(torch.rand(1, generator=random)) * 0.03)
            run.kill()
        assert 0 < len(RunFolder(killed).history()) < 40
        assert commands.start(*COMMAND, "--out", killed, "--resume").ended() == 0
    ours, theirs = digest(killed), digest(calm)
    assert {name: ours[name] for name in theirs if name != "loss.png"} == {
        name: theirs[name] for name in theirs if name != "loss.png"
    }


@pytest.mark.parametrize("moment", ["record without checkpoint", "half a record", "temporary file left"])
def test_every_half_finished_save_is_taken_back(moment: str, tmp_path: Path) -> None:
    whole = tmp_path / "whole"
    run(whole, 4)
    broken = tmp_path / "broken"
    run(broken, 3)
    line = (whole / "history.jsonl").read_bytes().splitlines(keepends=True)[3]
    with (broken / "history.jsonl").open("ab") as file:
        file.write(line[: len(line) // 2] if moment == "half a record" else line)
    if moment == "temporary file left":
        (broken / "checkpoint.safetensors.tmp").write_bytes(b"half")
    run(broken, 4, resume=True)
    ours = digest(broken)
    ours.pop("checkpoint.safetensors.tmp", None)
    assert ours == digest(whole)


def test_a_run_killed_before_its_first_round_begins_again(tmp_path: Path) -> None:
    run(tmp_path / "whole", 2)
    run(tmp_path / "young", 1)
    (tmp_path / "young" / "checkpoint.safetensors").unlink()
    run(tmp_path / "young", 2, resume=True)
    assert digest(tmp_path / "young") == digest(tmp_path / "whole")


def test_a_lost_checkpoint_does_not_cost_the_history(tmp_path: Path) -> None:
    out = tmp_path / "run"
    run(out, 3)
    for name in ("checkpoint.safetensors", "checkpoint-previous.safetensors"):
        (out / name).unlink()
    before = digest(out)
    with pytest.raises(CheckpointError, match="is missing although 3 rounds were completed"):
        run(out, 4, resume=True)
    (out / "run.json").unlink()
    with pytest.raises(CheckpointError, match="already holds a run"):
        run(out, 4)
    assert (out / "history.jsonl").exists()
    assert before["history.jsonl"] == digest(out)["history.jsonl"]


@pytest.mark.parametrize("other", ["data", "test set", "layers", "initial weights", "aggregator"])
def test_other_data_or_another_model_is_another_configuration(other: str, tmp_path: Path) -> None:
    out = tmp_path / "run"
    settings = {"rounds": 2, "learning_rate": 0.05, "out": out}
    mask = Algorithm(inter=AndMask(0.2))
    train(federation(), mlp(), mask, **settings)
    changed, model = federation(), mlp()
    if other == "data":
        changed.silos[1].x[0, 0] += 1
    elif other == "test set":
        changed.x_test[0, 0] += 1
    elif other == "layers":
        model[2] = torch.nn.Tanh()
    elif other == "initial weights":
        with torch.no_grad():
            model[1].bias[0] += 1
    else:
        mask = Algorithm(inter=AndMask(1.0))
    before = digest(out)
    with pytest.raises(CheckpointError, match=r"another configuration|differ from those of the run"):
        train(changed, model, mask, resume=True, **settings)
    assert digest(out) == before


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"learning_rate": 0.01}, "learning_rate was 0.05 there and is 0.01 here"),
        ({"algorithm": "fedsgd"}, "algorithm was 'fishr-inter-geo' there and is 'fedsgd' here"),
        ({"seed": 3}, "seed was 0 there and is 3 here"),
        ({"rounds": 1}, "has already done 3 rounds"),
    ],
)
def test_another_configuration_is_refused_and_nothing_is_lost(
    change: dict[str, object], sentence: str, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    run(out, 3)
    before = digest(out)
    with pytest.raises(CheckpointError, match=sentence):
        run(out, **({"rounds": 3, "resume": True} | change))
    assert digest(out) == before


@pytest.mark.parametrize("name", ["checkpoint.safetensors", "history.jsonl", "run.json"])
@pytest.mark.parametrize("damage", ["truncated", "garbage"])
def test_a_damaged_file_is_named_and_nothing_is_lost(name: str, damage: str, tmp_path: Path) -> None:
    out = tmp_path / "run"
    run(out, 3)
    (out / "checkpoint-previous.safetensors").write_bytes(b"damaged too")
    path = out / name
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2] if damage == "truncated" else b"\x00garbage\n" * 9)
    before = digest(out)
    with pytest.raises(CheckpointError, match=name):
        run(out, 4, resume=True)
    assert digest(out) == before


def test_a_folder_that_holds_a_run_is_not_overwritten(tmp_path: Path) -> None:
    run(tmp_path / "run", 1)
    with pytest.raises(CheckpointError, match="already holds a run"):
        run(tmp_path / "run", 1)


def test_resuming_needs_a_run_and_a_folder(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="holds no run"):
        run(tmp_path / "none", resume=True)
    with pytest.raises(ConfigError, match="needs out="):
        train(federation(), mlp(), rounds=1, learning_rate=0.1, resume=True)


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(CheckpointError, match="cannot be written"):
        run(tmp_path / "file" / "run", 1)


def test_history_is_json_without_a_clock(tmp_path: Path) -> None:
    run(tmp_path / "run", 2)
    records = [json.loads(line) for line in (tmp_path / "run" / "history.jsonl").read_text().splitlines()]
    assert [record["round"] for record in records] == [1, 2]
    assert not any("seconds" in record for record in records)
    timing = [json.loads(line) for line in (tmp_path / "run" / "timing.jsonl").read_text().splitlines()]
    assert all(entry["seconds"] > 0 for entry in timing)


def test_a_run_folder_is_its_owners_alone(tmp_path: Path) -> None:
    RunFolder(tmp_path / "run").create({"rounds": 1})
    assert (tmp_path / "run").stat().st_mode & 0o777 == 0o700
