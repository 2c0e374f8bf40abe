"""Processes are killed, silos come back, lines break: the run ends as if nothing had happened."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from fleets import PATIENCE, Fleet, Member, as_options, assert_same_run, fleet, run_locally
from ports import free_port

from fedilc.runtimes.remote.open_request import OpenRequest
from fedilc.runtimes.rest.auth import add_token
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


class Tree(Company):
    """Three levels with tokens: the coordinator, `country` below it, `region` below that, silos at each."""

    def __init__(self, processes: Fleet, out: Path, silos: list[str], *options: object) -> None:
        self.above = {"country": "coordinator", "region": "country"}
        self.above |= dict(zip(silos, ("region", "region", "region", "country", "coordinator"), strict=True))
        self.ports = {name: free_port() for name in ("coordinator", "country", "region")}
        carried = {"region": silos[:3], "country": silos[:4]}
        for name, parent in self.above.items():
            token = out.parent / f"{name}.token"
            tokens = out.parent / f"{parent}.json"
            token.write_text(add_token(tokens, name, carries=carried.get(name, ())))
            token.chmod(0o600)
        super().__init__(processes, out, ["country", "region", *silos], *options)

    def start(self, name: str) -> None:
        folder = self.out.parent
        listens = ["--insecure", "--port", self.ports.get(name), "--tokens", folder / f"{name}.json"]
        if name == "coordinator":
            words = ["serve", "color-digits", *self.options, *listens, "--out", self.out]
        else:
            url = f"http://127.0.0.1:{self.ports[self.above[name]]}"
            who = ["--silo", name, "--token-file", folder / f"{name}.token"]
            words = ["join", url, *who, "--experiment", "color-digits", "--state", folder / f"state-{name}"]
            if name in self.ports:
                words = ["serve", "--upstream", url, *who, *listens, "--out", folder / f"run-{name}"]
        self.members[name] = self.processes.start(*words)


def kill_and_restart(company: Company, kills: int, rounds: int, victims: Sequence[str]) -> None:
    """Kill members at random moments, start each again, and wait until all have ended well."""
    dice = random.Random(20221)
    moments = sorted(dice.randrange(rounds - 12) for _ in range(kills))
    for moment, victim in zip(moments, [dice.choice(victims) for _ in moments], strict=True):
        wait_for(lambda done=moment: len(history(company.out)) >= done, f"round {moment}")
        time.sleep(dice.uniform(0, 0.1))
        company.kill(victim)
        assert len(history(company.out)) < rounds
        company.start(victim)
    for name, member in company.members.items():
        assert member.ended() == 0, f"{name}: {member.said}"


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
    with fleet(tmp_path) as processes:
        company = Company(processes, tmp_path / "disturbed", silos, *as_options(changes))
        kill_and_restart(company, kills, rounds, ["coordinator", "coordinator", *silos])
    assert_same_run(tmp_path / "undisturbed", tmp_path / "disturbed")


@pytest.mark.timeout(900)
@pytest.mark.parametrize(("kills", "rounds"), [(8, 20), pytest.param(KILLS, ROUNDS, marks=pytest.mark.long)])
def test_kills_anywhere_in_a_tree_of_three_levels_leave_the_bits_of_an_undisturbed_run(
    kills: int, rounds: int, tmp_path: Path
) -> None:
    """No hand is needed but the restart of what was killed: nobody is set aside, or ends for another."""
    changes = [*SMALL, f"rounds={rounds}"]
    silos = list(run_locally(changes, tmp_path / "undisturbed"))
    with fleet(tmp_path) as processes:
        tree = Tree(processes, tmp_path / "disturbed", silos, *as_options(changes))
        kill_and_restart(tree, kills, rounds, [*tree.ports, *tree.ports, *silos])
        audits = [tmp_path / f"run-{name}" / "audit.jsonl" for name in ("country", "region")]
        for audit in (tmp_path / "disturbed" / "audit.jsonl", *audits):
            assert "nonsense" not in audit.read_text()
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
