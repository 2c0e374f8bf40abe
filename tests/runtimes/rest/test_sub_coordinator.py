"""A tree of coordinators trains what one process does, to the last bit, and survives the same losses."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from fleets import as_options, assert_same_run, fleet, run_locally
from ports import free_port
from trees import (
    Root,
    assert_same,
    calling,
    flat,
    grow,
    root,
    sub_coordinator,
    take_part,
    trained,
    trained_in_turns,
    trained_locally,
)

from fedilc import algorithms
from fedilc.config import Experiment
from fedilc.runtimes.rest.auth import add_token
from fedilc.runtimes.rest.http_client import CoordinatorError
from fedilc.runtimes.rest.sub_coordinator import SubCoordinator
from rest import eventually, in_background, remote

SILOS = ("a", "b", "c", "d", "e")
TWO_LEVELS = {"north": flat("a", "b"), "south": flat("c", "d"), "e": None}
THREE_LEVELS = {"north": {"n1": flat("a", "b"), "n2": flat("c"), "d": None}, "e": None}


@pytest.mark.parametrize("algorithm", [*algorithms.PAPER, "fedavg"])
def test_any_tree_and_any_order_of_replies_gives_the_bits_of_local(algorithm: str, tmp_path: Path) -> None:
    settings = remote(SILOS, algorithm=algorithm, environment_size=4, penalty_weight=2.0, rounds=10)
    local = trained_locally(settings)
    assert len(local[0]) == 10
    for tree in (TWO_LEVELS, THREE_LEVELS):
        assert_same(trained(settings, tree, tmp_path), local)
    assert_same(trained_in_turns(settings), local)


FEATURES: dict[str, dict[str, Any]] = {
    "three levels": {},
    "control variates that silos keep": {"algorithm": "scaffold"},
    "weights that the server learns": {"algorithm": "group-dro", "weights_step": 0.5},
    "weights that it learns after the round": {"algorithm": "afl", "weights_step": 0.5},
    "weights by loss": {"algorithm": "q-ffl", "weights_power": 0.7},
    "weights by examples and a bound on norms": {
        "algorithm": "fedcurv",
        "silo_weights": "examples",
        "max_norm": 0.05,
    },
    "weights that were given": {
        "algorithm": "fedsgd",
        "silo_weights": dict(zip("abcde", (0.5, 3.0, 1.0, 0.1, 2.0), strict=True)),
    },
    "two sums of one answer": {"algorithm": "and-mask", "agreement": 0.5},
    "sides of one silo that are dropped": {"algorithm": "geometric", "min_side": 2},
    "silos that are drawn": {"silos_per_round": 3},
}


@pytest.mark.parametrize("what", FEATURES)
def test_nothing_of_an_algorithm_is_lost_on_the_way_up(what: str, tmp_path: Path) -> None:
    settings = remote(SILOS, **{"rounds": 4, **FEATURES[what]})
    assert_same(trained(settings, THREE_LEVELS, tmp_path), trained(settings, flat(*SILOS), tmp_path))


@pytest.mark.parametrize("inter", ["trimmed-mean", "median"])
def test_a_rule_that_needs_every_reply_refuses_a_tree_and_says_what_to_do(inter: str) -> None:
    sentence = f"inter='{inter}' needs each silo's own reply, .* join this coordinator themselves"
    with (
        root(remote(SILOS, algorithm="fedsgd", inter=inter)) as top,
        calling(top.url) as http,
        pytest.raises(CoordinatorError, match=sentence),
    ):
        SubCoordinator(http, "north").find_run()


def test_halves_on_the_wire_are_the_same_halves_below(tmp_path: Path) -> None:
    settings = remote(SILOS)
    over_tree = trained(settings, THREE_LEVELS, tmp_path, "float16")
    assert_same(over_tree, trained(settings, flat(*SILOS), tmp_path, "float16"))


def joins_and_is_silent(url: str, top: Root, name: str, **said: Any) -> None:
    body = {"manifest": top.queue.manifest.hash, **said}
    answer = httpx.post(f"{url}/v1/silos/{name}/join", json=body, trust_env=False)
    assert answer.status_code == 200, answer.text


def without(settings: Experiment, silent: str, tmp_path: Path) -> Any:
    """The run of one coordinator, of whose silos some are silent."""
    with root(settings, round_timeout=1.5) as top:
        for name in SILOS:
            if name in silent:
                joins_and_is_silent(top.url, top, name, examples=9)
        grow(top.url, flat(*(name for name in SILOS if name not in silent)), tmp_path, top.stack)
        return top.run()


def test_a_silo_lost_below_is_named_above_and_the_round_asked_again_without_it(tmp_path: Path) -> None:
    settings = remote(SILOS, min_silos=4)
    with root(settings) as top:
        below = top.stack.enter_context(sub_coordinator(top.url, "north", tmp_path, round_timeout=1.5))
        joins_and_is_silent(below, top, "b", examples=9)
        grow(below, flat("a"), tmp_path, top.stack)
        grow(top.url, flat("c", "d", "e"), tmp_path, top.stack)
        found = top.run()
        assert (top.queue.silos["b"].state, top.queue.silos["b"].reason) == ("lost", "did not reply in time")
        assert top.queue.silos["a"].via == "north"
    assert [list(record["silos"]) for record in found[0]] == [["a", "c", "d", "e"]] * 3
    assert_same(found, without(settings, "b", tmp_path))


def test_a_silo_that_comes_back_below_answers_what_the_round_still_waits_for(tmp_path: Path) -> None:
    settings = remote(SILOS)
    with root(settings) as top:
        below = top.stack.enter_context(sub_coordinator(top.url, "north", tmp_path, round_timeout=1.0))
        joins_and_is_silent(below, top, "b", examples=8 + ord("b") % 5)
        grow(below, flat("a"), tmp_path, top.stack)
        grow(top.url, flat("c", "d", "e"), tmp_path, top.stack)
        outcomes: list[Any] = []
        with in_background(lambda: outcomes.append(top.run())):
            assert eventually(lambda: top.queue.silos["b"].state == "lost")
            assert eventually(lambda: top.queue.silos["a"].state == "answered")
            top.stack.enter_context(in_background(partial(take_part, below, "b")))
    assert_same(outcomes[0], trained(settings, flat(*SILOS), tmp_path))


def test_to_lose_a_sub_coordinator_is_to_lose_its_silos(tmp_path: Path) -> None:
    settings = remote(SILOS, min_silos=3)
    with root(settings, round_timeout=1.5) as top:
        joins_and_is_silent(top.url, top, "north", leaves={"a": 9, "b": 9})
        assert [silo["state"] for silo in top.queue.snapshot()["silos"][:2]] == ["waiting"] * 2
        grow(top.url, {"south": flat("c", "d"), "e": None}, tmp_path, top.stack)
        found = top.run()
        assert {top.queue.silos[name].state for name in "ab"} == {"lost"}
    assert_same(found, without(settings, "ab", tmp_path))


@pytest.mark.parametrize("places", ["below, root", "root, deep"])
def test_a_silo_with_tokens_at_two_levels_joins_at_one_until_that_connection_is_gone(
    places: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedilc.runtimes.rest.membership.SENT_AWAY_SECONDS", 1.0)
    monkeypatch.setattr("fedilc.runtimes.rest.sub_coordinator.INFORM_SECONDS", 0.0)
    with root(remote(SILOS)) as top:
        below = top.stack.enter_context(sub_coordinator(top.url, "north", tmp_path))
        deep = top.stack.enter_context(sub_coordinator(below, "n1", tmp_path / "deep"))
        urls, via = {"root": top.url, "below": below, "deep": deep}, {"root": None}
        first, second = places.split(", ")
        joins_and_is_silent(below, top, "b", examples=9)
        joins_and_is_silent(deep, top, "c", examples=9)
        joins_and_is_silent(urls[first], top, "a", examples=9)
        silo = top.queue.silos["a"]
        assert eventually(lambda: (silo.state, silo.via) == ("waiting", via.get(first, "north")))
        told: list[httpx.Response] = []

        def refused_at_the_second() -> bool:
            said = {"manifest": top.queue.manifest.hash, "examples": 9}
            told.append(httpx.post(f"{urls[second]}/v1/silos/a/join", json=said, trust_env=False))
            return told[-1].status_code == 409

        assert eventually(refused_at_the_second)
        assert "silo 'a' is connected elsewhere (" in told[-1].json()["detail"]
        assert (silo.state, silo.via) == ("waiting", via.get(first, "north"))
        top.queue.mark_late(["a"])
        assert eventually(lambda: not refused_at_the_second() and silo.via == via.get(second, "north"))
        assert {name: status.strikes for name, status in top.queue.sub_coordinators.items()} == {"north": 0}
        assert [top.queue.silos[name].via for name in "bc"] == ["north", "north"]


CHANGES = ["rounds=40", "model.hidden=[16]", "penalty_weight=5", "learning_rate=0.01"]


def test_a_sub_coordinator_that_is_killed_comes_back_and_the_run_is_the_local_one(tmp_path: Path) -> None:
    """Real processes with tokens: a root, a sub-coordinator with three silos, two silos of the root's own."""
    silos = run_locally(CHANGES, tmp_path / "local")
    above, below, ports = tmp_path / "above.json", tmp_path / "below.json", (free_port(), free_port())
    tokens = {name: add_token(below if name in silos[:3] else above, name) for name in silos}
    tokens["north"] = add_token(above, "north", carries=silos[:3])
    for name, token in tokens.items():
        (tmp_path / name).write_text(token)
        (tmp_path / name).chmod(0o600)
    urls = [f"http://127.0.0.1:{port}" for port in ports]
    with fleet(tmp_path) as processes:
        served = ("--insecure", "--port", ports[0], "--tokens", above, "--out", tmp_path / "rest")
        coordinator = processes.start("serve", "color-digits", *as_options(CHANGES), *served)
        sub_command = ("serve", "--upstream", urls[0], "--silo", "north", "--token-file", tmp_path / "north")
        listens = ("--insecure", "--port", ports[1], "--tokens", below, "--out", tmp_path / "north-folder")
        sub = processes.start(*sub_command, *listens)
        members = [
            processes.start(
                *("join", urls[name in silos[:3]], "--silo", name, "--token-file", tmp_path / name),
                *("--experiment", "color-digits"),
            )
            for name in silos
        ]
        history = tmp_path / "rest" / "history.jsonl"
        assert eventually(lambda: history.exists() and history.read_text().count("\n") > 2, 60)
        sub.kill()
        assert history.read_text().count("\n") < 40
        sub = processes.start(*sub_command, *listens)
        assert coordinator.ended() == 0, coordinator.said
        assert [member.ended() for member in (sub, *members)] == [0] * 6
        assert "north: the run is over: complete" in sub.said
        assert all("the run is over: complete" in member.said for member in members)
    assert_same_run(tmp_path / "local", tmp_path / "rest")
