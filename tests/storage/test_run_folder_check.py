"""Run folders whose files were damaged: repaired to the same bits, or refused in a sentence."""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from command import fedilc
from networks import mlp
from typer.testing import CliRunner

from fedilc import Federation, Silo, load, train
from fedilc.cli.app import app
from fedilc.errors import CheckpointError, FedILCWarning
from fedilc.storage.files import read_tensors, with_digest, write_tensors
from fedilc.storage.run_folder import RunFolder, examine
from fedilc.training.callbacks import KeepBest

FLIPS = 8
FILES = (
    "run.json",
    "history.jsonl",
    "timing.jsonl",
    "checkpoint.safetensors",
    "checkpoint-previous.safetensors",
    "best-validation.safetensors",
)


def federation() -> Federation:
    generator = torch.Generator().manual_seed(1)
    silos = []
    for name in "abc":
        x = torch.randn(9, 6, generator=generator)
        silos.append(Silo(name, x, (x[:, 0] > 0).long(), x[:4] + 0.1, (x[:4, 0] > 0).long()))
    return Federation("f", silos)


def run(out: Path, rounds: int, resume: bool = False) -> object:
    best = KeepBest("validation")
    settings = {"rounds": rounds, "learning_rate": 0.05, "seed": 4}
    return train(federation(), mlp(), "geometric", out=out, resume=resume, callbacks=[best], **settings)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def without_times(folder: Path) -> dict[str, str]:
    files = {name: body for name, body in contents(folder).items() if name != "timing.jsonl"}
    return {name: hashlib.sha256(body).hexdigest() for name, body in files.items()}


@pytest.fixture(scope="module")
def half(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four rounds."""
    out = tmp_path_factory.mktemp("half") / "run"
    run(out, 4)
    return out


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What six undisturbed rounds leave."""
    out = tmp_path_factory.mktemp("whole") / "run"
    run(out, 6)
    return without_times(out)


@pytest.fixture
def copy(half: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(half, tmp_path / "run"))


def flip(path: Path, bit: int) -> None:
    body = bytearray(path.read_bytes())
    body[bit // 8] ^= 1 << bit % 8
    path.write_bytes(body)


@pytest.mark.parametrize("name", FILES)
def test_every_flipped_bit_is_repaired_to_the_same_bits_or_refused_in_a_sentence(
    name: str, half: Path, whole: dict[str, str], tmp_path: Path
) -> None:
    dice = random.Random(name)
    for number in range(FLIPS):
        out = Path(shutil.copytree(half, tmp_path / str(number)))
        bit = dice.randrange(8 * (out / name).stat().st_size)
        flip(out / name, bit)
        before = contents(out)
        assert examine(out)[name] is not None, f"bit {bit} is not found"
        with warnings.catch_warnings(record=True) as notes:
            warnings.simplefilter("always", FedILCWarning)
            refusal = None
            try:
                run(out, 6, resume=True)
            except CheckpointError as error:
                refusal = str(error)
        if refusal is None:
            assert without_times(out) == whole, f"bit {bit} changes the run"
            assert name == "checkpoint-previous.safetensors" or name in str(notes[0].message)
        else:
            assert name in refusal
            assert "\n" not in refusal
            assert contents(out) == before


def test_a_damaged_checkpoint_costs_one_round(copy: Path, whole: dict[str, str]) -> None:
    flip(copy / "checkpoint.safetensors", 8 * 1500)
    with pytest.warns(FedILCWarning, match=r"checkpoint\.safetensors is damaged .* continues from round 3"):
        run(copy, 6, resume=True)
    assert without_times(copy) == whole


def test_a_damaged_checkpoint_never_takes_the_place_of_the_good_one(copy: Path) -> None:
    flip(copy / "checkpoint.safetensors", 8 * 1500)
    with pytest.warns(FedILCWarning):
        run(copy, 4, resume=True)
    assert set(examine(copy).values()) == {None}


def test_a_crash_between_the_two_renames_goes_on_to_the_same_bits(copy: Path, whole: dict[str, str]) -> None:
    (copy / "checkpoint.safetensors").replace(copy / "checkpoint-previous.safetensors")
    run(copy, 6, resume=True)
    assert without_times(copy) == whole


def test_two_damaged_checkpoints_are_refused(copy: Path) -> None:
    for name in ("checkpoint.safetensors", "checkpoint-previous.safetensors"):
        flip(copy / name, 8 * 1500)
    before = contents(copy)
    with pytest.raises(CheckpointError, match=r"checkpoint\.safetensors is damaged .* start again"):
        run(copy, 6, resume=True)
    assert contents(copy) == before


def swap(lines: list[str]) -> list[str]:
    return [lines[1], lines[0], *lines[2:]]


def edit(lines: list[str]) -> list[str]:
    record = json.loads(lines[1])
    return [lines[0], json.dumps(record | {"train_loss": 0.5}), *lines[2:]]


@pytest.mark.parametrize("change", [swap, edit])
def test_a_swapped_or_edited_line_of_the_history_is_refused(
    change: Callable[[list[str]], list[str]], copy: Path
) -> None:
    path = copy / "history.jsonl"
    path.write_text("\n".join(change(path.read_text().splitlines())) + "\n")
    before = contents(copy)
    with pytest.raises(CheckpointError, match=r"history\.jsonl is damaged: a line up to round 4 was changed"):
        run(copy, 6, resume=True)
    assert contents(copy) == before
    assert examine(copy)["history.jsonl"] is not None


def test_a_changed_round_in_a_checkpoint_is_found(copy: Path, whole: dict[str, str]) -> None:
    path = copy / "checkpoint.safetensors"
    path.write_bytes(path.read_bytes().replace(b'\\"round\\": 4', b'\\"round\\": 2'))
    with pytest.warns(FedILCWarning, match="does not match its digest"):
        run(copy, 6, resume=True)
    assert without_times(copy) == whole


def test_a_damaged_best_file_is_noted_and_does_not_block_a_resume(copy: Path) -> None:
    rounds = len(RunFolder(copy).history())
    flip(copy / "best-validation.safetensors", 8 * 900)
    with pytest.warns(FedILCWarning, match=r"best-validation\.safetensors is damaged"):
        result = run(copy, rounds + 1, resume=True)
    assert len(result.history) == rounds + 1


def test_a_run_without_digests_is_refused_but_can_be_read(copy: Path) -> None:
    settings = json.loads((copy / "run.json").read_text())
    del settings["digest"]
    (copy / "run.json").write_text(json.dumps(settings, indent=2) + "\n")
    with pytest.raises(CheckpointError, match=r"run\.json has no digest: it is damaged, or was written by"):
        run(copy, 6, resume=True)
    assert RunFolder(copy).settings()["seed"] == 4
    assert len(RunFolder(copy).load().history) == 4


def test_a_good_folder_has_nothing_wrong(half: Path) -> None:
    assert examine(half) == dict.fromkeys(FILES)


def test_the_command_check_says_what_is_wrong_with_a_run_folder(copy: Path) -> None:
    assert f"{copy} is whole: 6 files" in fedilc("check", copy)
    flip(copy / "best-validation.safetensors", 8 * 900)
    found = CliRunner().invoke(app, ["check", str(copy)])
    assert found.exit_code == 2
    assert (
        "best-validation.safetensors is damaged or not a FedILC checkpoint (its content does not"
        in found.stdout
    )
    assert "is damaged: best-validation.safetensors" in found.stdout


def test_a_record_that_no_checkpoint_vouches_for_yet_is_no_damage(copy: Path) -> None:
    with (copy / "history.jsonl").open("ab") as file:
        file.write(b'{"round": 5, "train_loss": 0.5}\n')
    assert set(examine(copy).values()) == {None}


def test_the_digest_covers_every_byte_of_a_file_of_tensors(tmp_path: Path) -> None:
    path = tmp_path / "t.safetensors"
    write_tensors(path, {"a": torch.arange(3.0)}, {"round": 4})
    for bit in range(3, 8 * path.stat().st_size, 8):
        flip(path, bit)
        with pytest.raises(CheckpointError, match=r"t\.safetensors is damaged"):
            read_tensors(path)
        flip(path, bit)
    assert read_tensors(path)[1] == {"round": 4}


DEEP = b"[" * 100_000


@pytest.mark.parametrize("name", ["run.json", "history.jsonl", "timing.jsonl", "audit.jsonl"])
def test_json_that_is_nested_too_deeply_is_damage_and_no_traceback(copy: Path, name: str) -> None:
    (copy / name).write_bytes(DEEP + b"\n")
    found = examine(copy)
    assert [file for file, problem in found.items() if problem] == [name]
    result = CliRunner().invoke(app, ["check", str(copy)], catch_exceptions=False)
    assert result.exit_code == 2
    if name in ("run.json", "history.jsonl"):
        with pytest.raises(CheckpointError, match=f"{name} is damaged.* nested too deeply"):
            load(copy, model=mlp())


@pytest.mark.parametrize("name", [*FILES, "audit.jsonl", "preprocessing.json"])
@pytest.mark.parametrize("kind", ["device", "pipe"])
@pytest.mark.timeout(60)
def test_a_file_without_end_is_not_read(copy: Path, name: str, kind: str) -> None:
    path = copy / name
    if name == "preprocessing.json":
        facts = RunFolder(copy).settings() | {"files": {name: "0" * 64}}
        RunFolder(copy).settings_file.write_text(json.dumps(with_digest(facts)))
    path.unlink(missing_ok=True)
    if kind == "device":
        path.symlink_to("/dev/zero")
    else:
        os.mkfifo(path)
    found = examine(copy)
    assert "not a plain file" in str(found[name])
    assert CliRunner().invoke(app, ["check", str(copy)], catch_exceptions=False).exit_code == 2


def test_a_link_to_a_file_is_read(copy: Path, tmp_path: Path) -> None:
    (copy / "checkpoint.safetensors").replace(tmp_path / "elsewhere")
    (copy / "checkpoint.safetensors").symlink_to(tmp_path / "elsewhere")
    assert set(examine(copy).values()) == {None}
