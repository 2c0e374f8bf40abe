"""Processes are killed, silos come back, lines break: the run ends as if nothing had happened."""

from __future__ import annotations

import json
import random
import time
from pathlib import Path

import pytest
import torch
from fleets import PATIENCE, Fleet, Member, as_options, assert_same_run, fleet, run_locally
from ports import free_port

from fedilc.runtimes.remote.open_request import OpenRequest
from rest import LightSilo, good_body, head_of_put, put, raw_connection, remote, trained

pytestmark = pytest.mark.slow

KILLS = 30
ROUNDS = 40
SMALL = ["model.hidden=[8]", "learning_rate=0.01", "penalty_weight=5"]


def history(folder: Path) -> list[str]:
    file = folder / "history.jsonl"
    return file.read_text().splitlines() if file.exists() else []


def wait_for(is_so: object, what: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while not is_so():
        assert time.monotonic() < deadline, f"{what} does not come"
        time.sleep(0.01)


class Company:
    """A coordinator and its silos, each of which can be killed and started again."""

    def __init__(self, processes: Fleet, out: Path, silos: list[str], *options: object) -> None:
        self.processes, self.out, self.port = processes, out, free_port()
        self.options = options
        self.members: dict[str, Member] = {}
        for name in ("coordinator", *silos):
            self.start(name)

    def start(self, name: str) -> None:
        address = f"http://127.0.0.1:{self.port}"
        if name == "coordinator":
            serving = ["serve", "color-digits", *self.options, "--insecure", "--port", self.port]
            self.members[name] = self.processes.start(*serving, "--out", self.out)
        else:
            joining = ["join", address, "--silo", name, "--experiment", "color-digits"]
            joining += ["--state", str(self.out.parent / f"state-{name}")]
            self.members[name] = self.processes.start(*joining)

    def kill(self, name: str) -> None:
        """A member that lives: one that had ended by itself would be no loss."""
        member = self.members[name]
        assert member.process.is_alive(), f"{name} has ended: {member.said}"
        member.kill()


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("algorithm", "kills", "rounds"), [("fishr-inter-geo", KILLS, ROUNDS), ("scaffold", 8, 20)]
)
def test_kills_of_coordinator_and_silos_leave_the_bits_of_an_undisturbed_run(
    algorithm: str, kills: int, rounds: int, tmp_path: Path
) -> None:
    """Also of what silos remember: SCAFFOLD's control variates are in each silo's own folder."""
    changes = [*SMALL, f"rounds={rounds}", f"algorithm={algorithm}"]
    silos = list(run_locally(changes, tmp_path / "undisturbed"))
    dice = random.Random(20221)
    moments = sorted(dice.randrange(rounds - 12) for _ in range(kills))
    victims = [dice.choice(["coordinator", "coordinator", *silos]) for _ in range(kills)]
    with fleet(tmp_path) as processes:
        company = Company(processes, tmp_path / "disturbed", silos, *as_options(changes))
        for moment, victim in zip(moments, victims, strict=True):
            wait_for(lambda done=moment: len(history(company.out)) >= done, f"round {moment}")
            time.sleep(dice.uniform(0, 0.1))
            company.kill(victim)
            assert len(history(company.out)) < rounds
            company.start(victim)
        for name, member in company.members.items():
            assert member.ended() == 0, f"{name}: {member.said}"
    assert_same_run(tmp_path / "undisturbed", tmp_path / "disturbed")


def test_a_dead_silo_is_left_out_after_the_timeout_and_taken_back_when_it_returns(tmp_path: Path) -> None:
    with fleet(tmp_path) as processes:
        words = as_options([*SMALL, "rounds=100000"])
        options = ["--min-silos", 4, "--round-timeout", 3]
        silos = [f"flip-{flip}" for flip in ("0.15", "0.30", "0.45", "0.60", "0.75")]
        company = Company(processes, tmp_path / "run", silos, *words, *options)

        def taking_part() -> set[str]:
            lines = history(company.out)
            return set(json.loads(lines[-1])["silos"]) if lines else set()

        wait_for(lambda: taking_part() == set(silos), "a round of all")
        company.kill("flip-0.45")
        wait_for(lambda: taking_part() == set(silos) - {"flip-0.45"}, "a round without the dead")
        done = len(history(company.out))
        wait_for(lambda: len(history(company.out)) > done + 3, "more rounds without the dead")
        company.start("flip-0.45")
        wait_for(lambda: taking_part() == set(silos), "a round of all again")
        company.kill("coordinator")
        company.start("coordinator")
        done = len(history(company.out))
        wait_for(lambda: len(history(company.out)) > done + 3, "rounds after a restart")
    records = [json.loads(line) for line in history(company.out)]
    assert [record["round"] for record in records] == list(range(1, len(records) + 1))
    assert all(len(record["silos"]) >= 4 for record in records)


class Clumsy(LightSilo):
    """A silo on a bad line: half an answer, a slow one, the same again, and one that is long over."""

    last: OpenRequest | None = None

    def answer(self, open_request: OpenRequest) -> None:
        body = good_body(open_request, self.name)
        head = head_of_put(open_request, self.name, f"Content-Length: {len(body)}")
        with raw_connection(self.client) as raw:
            raw.sendall(head + body[: len(body) // 2])
        with raw_connection(self.client) as raw:
            raw.sendall(head)
            for start in range(0, len(body), 400):
                raw.sendall(body[start : start + 400])
                time.sleep(0.001)
            assert raw.recv(1000).split()[1] == b"200"
        again = put(self.client, open_request, self.name, body)
        assert again.status_code in (200, 409)
        if self.last is not None:
            assert put(self.client, self.last, self.name, good_body(self.last, self.name)).status_code == 409
        self.last = open_request


@pytest.mark.parametrize("algorithm", ["fedsgd", "fishr-inter-geo"])
def test_slow_doubled_reordered_and_half_sent_answers_lose_nothing(algorithm: str) -> None:
    settings = remote(["a", "b", "c"], algorithm=algorithm, rounds=4)
    clean, clumsy = trained(settings)[0], trained(settings, kind=Clumsy)[0]
    assert list(clean.history) == list(clumsy.history)
    for one, other in zip(clean.model.parameters(), clumsy.model.parameters(), strict=True):
        assert torch.equal(one, other)
