"""Runs with secure sums over HTTP: the bits of plain ones, and what happens if silos are lost or killed."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from command import Refusal
from fleets import PATIENCE, Fleet, Member, as_options, fleet, outcome_of, run_locally
from ports import free_port

from fedilc.privacy.identities import make_roster, new_identity

pytestmark = pytest.mark.slow

SILOS = [f"flip-{flip}" for flip in ("0.15", "0.30", "0.45", "0.60", "0.75")]
SMALL = ["model.hidden=[8]", "learning_rate=0.01", "penalty_weight=5"]
ROUNDED = ["sum_unit=2^-40"]


class Company:
    """A coordinator with secure sums and its silos, each of which can be killed and started again."""

    def __init__(self, processes: Fleet, folder: Path, changes: Sequence[str], *options: object) -> None:
        self.processes, self.folder, self.port = processes, folder, free_port()
        self.out, self.roster = folder / "run", folder / "roster.json"
        self.options = [*as_options(changes), *options]
        publics = {name: new_identity(folder / f"{name}.key").public for name in SILOS}
        make_roster(f"{name}={key}" for name, key in publics.items()).write(self.roster)
        self.members: dict[str, Member] = {}
        for name in ("coordinator", *SILOS):
            self.start(name)

    def start(self, name: str) -> None:
        if name == "coordinator":
            words = ["serve", "color-digits", *self.options, "--secure", "--insecure", "--port", self.port]
            words += ["--out", self.out]
        else:
            words = ["join", f"http://127.0.0.1:{self.port}", "--silo", name, "--experiment", "color-digits"]
            words += ["--require-secure", "--key", self.folder / f"{name}.key"]
            words += ["--state", self.folder / f"state-{name}"]
        self.members[name] = self.processes.start(*words, "--roster", self.roster)

    def kill(self, name: str) -> None:
        member = self.members[name]
        assert member.process.is_alive(), f"{name} has ended: {member.said}"
        member.kill()

    def history(self) -> list[str]:
        file = self.out / "history.jsonl"
        return file.read_text().splitlines() if file.exists() else []

    def wait_for_round(self, number: int) -> None:
        deadline = time.monotonic() + PATIENCE
        while len(self.history()) < number:
            said = {name: member.said for name, member in self.members.items()}
            assert time.monotonic() < deadline, f"round {number} does not come: {said}"
            time.sleep(0.02)

    def ended_well(self) -> None:
        for name, member in self.members.items():
            assert member.ended() == 0, f"{name}: {member.said}"


def assert_same_training(plain: Path, secure: Path) -> None:
    """Bit for bit: weights, optimiser, and the training losses of all rounds."""
    (lines, tensors), (other_lines, others) = outcome_of(plain), outcome_of(secure)
    trained = {name for name in others if name.startswith(("weights.", "optimizer."))}
    assert trained
    for name in trained:
        assert tensors[name].numpy().tobytes() == others[name].numpy().tobytes(), name
    assert len(lines) == len(other_lines)
    for line, other in zip(map(json.loads, lines), map(json.loads, other_lines), strict=True):
        assert other["train_loss"] == pytest.approx(line["train_loss"], rel=1e-14)
        assert other["validation_loss"] == pytest.approx(line["validation_loss"], abs=1e-11)
        assert other["silos"] == {}


CASES = [
    ["algorithm=fishr-inter-geo", "min_side=3"],
    ["algorithm=fedcurv", "max_norm=0.1"],
    ["algorithm=fedavg", "rounds=2"],
    ["algorithm=and-mask", "rounds=2"],
    ["algorithm=scaffold"],
    ["algorithm=irm", "rounds=2"],
]


@pytest.mark.parametrize("changes", CASES, ids=lambda changes: changes[0].partition("=")[2])
def test_a_secure_run_has_the_bits_of_a_plain_one(changes: list[str], tmp_path: Path) -> None:
    every = [*SMALL, "rounds=3", *changes]
    run_locally([*every, *ROUNDED], tmp_path / "plain")
    with fleet(tmp_path) as processes:
        company = Company(processes, tmp_path, [change for change in every if change != "min_side=3"])
        company.ended_well()
    assert_same_training(tmp_path / "plain", company.out)
    secrets = [(tmp_path / f"{name}.key").read_text().splitlines()[1] for name in SILOS]
    files = [path for path in (*company.out.rglob("*"), *tmp_path.glob("log-*")) if path.is_file()]
    for path in files:
        content = path.read_bytes()
        assert not any(secret.encode() in content for secret in secrets), path


def test_a_run_waits_below_the_threshold_and_continues_without_one_silo(tmp_path: Path) -> None:
    """Of five silos four are enough; the fifth is left out and taken back, and with three the run waits."""
    with fleet(tmp_path) as processes:
        options = ["--min-silos", 4, "--round-timeout", 3]
        company = Company(processes, tmp_path, [*SMALL, "rounds=100000"], *options)

        def members_change_to(count: int) -> None:
            deadline = time.monotonic() + PATIENCE
            while [json.loads(line)["members"] for line in company.history()[-1:]] != [count]:
                assert time.monotonic() < deadline, company.members["coordinator"].said
                time.sleep(0.05)

        members_change_to(5)
        company.kill(SILOS[0])
        members_change_to(4)
        company.kill(SILOS[1])
        time.sleep(4)
        before = len(company.history())
        time.sleep(4)
        assert len(company.history()) == before
        for name in SILOS[:2]:
            company.start(name)
        members_change_to(5)
        assert len(company.history()) > before


def test_refusals_are_sentences_of_the_command(tmp_path: Path, refusal: Refusal) -> None:
    identities = {name: new_identity(tmp_path / f"{name}.key") for name in SILOS}
    roster = make_roster(f"{name}={one.public}" for name, one in identities.items())
    roster.write(tmp_path / "five.json")
    make_roster(f"{name}={roster.keys[name]}" for name in SILOS[:3]).write(tmp_path / "three.json")
    serve = ["serve", "color-digits", "--insecure", "--port", 0, "--out", tmp_path / "run"]
    assert "--roster FILE" in refusal(*serve, "--secure")
    assert "add --secure" in refusal(*serve, "--roster", tmp_path / "five.json")
    assert "--min-silos 3" in refusal(*serve, "--secure", "--roster", tmp_path / "three.json")
    few = ["--secure", "--roster", tmp_path / "three.json", "--min-silos", 3]
    assert "other silos than the run" in refusal(*serve, *few)
    secure = ["--secure", "--roster", tmp_path / "five.json"]
    assert "leave out --wire" in refusal(*serve, *secure, "--wire", "float16")
    assert "group-dro" in refusal(*serve, *secure, "--algorithm", "group-dro")
    assert "fedilc serve" in refusal(
        "run", "color-digits", "--set", "secure=true", "--out", tmp_path / "local"
    )
    join = ["join", "http://127.0.0.1:9", "--silo", "a", "--experiment", "color-digits"]
    assert "--roster FILE" in refusal(*join, "--require-secure")
    assert not list(tmp_path.glob("run/history.jsonl"))


@pytest.mark.timeout(900)
@pytest.mark.parametrize(("kills", "rounds"), [(6, 14), pytest.param(30, 40, marks=pytest.mark.long)])
def test_kills_of_coordinator_and_silos_leave_the_bits_of_a_plain_run(
    kills: int, rounds: int, tmp_path: Path
) -> None:
    changes = [*SMALL, f"rounds={rounds}"]
    run_locally([*changes, *ROUNDED, "min_side=3"], tmp_path / "plain")
    dice = random.Random(20222)
    with fleet(tmp_path) as processes:
        company = Company(processes, tmp_path, changes)
        for moment in sorted(dice.randrange(rounds - 6) for _ in range(kills)):
            company.wait_for_round(moment)
            time.sleep(dice.uniform(0, 0.2))
            victim = dice.choice(["coordinator", *SILOS])
            company.kill(victim)
            company.start(victim)
        company.ended_well()
    assert_same_training(tmp_path / "plain", company.out)
