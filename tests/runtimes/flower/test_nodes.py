"""Rounds over nodes in this process: who is asked, who is lost, and that the bits are those of `local`."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from worked_examples import OTHERS

from fedilc import Federation, Silo, algorithms, train
from fedilc.errors import CheckpointError, ConfigError, FedILCWarning, SilosLostError
from fedilc.runtimes.flower import FedILC, make_client_app
from fedilc.runtimes.flower.client_app import kept_clients

near = pytest.importorskip("near", reason="Flower is not installed: pip install 'fedilc[flower]'")

SETTINGS: dict[str, Any] = {"learning_rate": 0.05, "penalty_weight": 3.0, "environment_size": 4}


def make_silo(partition_id: int) -> Silo:
    generator = torch.Generator().manual_seed(partition_id)
    x = torch.randn(12, 5, generator=generator)
    y = (x[:, 0] + 0.3 * partition_id > 0).float()
    return Silo(f"clinic-{partition_id}", x[:8], y[:8], x[8:], y[8:])


def make_model() -> nn.Module:
    generator = torch.Generator().manual_seed(5)
    model = nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 1))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.uniform_(-0.5, 0.5, generator=generator)
    return model


def grid_of(nodes: int, make: Callable[..., Silo] = make_silo, **config: Any) -> Any:
    return near.NearGrid(make_client_app(make, make_model), nodes, **config)


def locally(silos: int, rounds: int, algorithm: str = "fishr-inter-geo", **more: Any) -> dict[str, Tensor]:
    federation = Federation("near", [make_silo(place) for place in range(silos)])
    result = train(federation, make_model(), algorithm, rounds=rounds, **SETTINGS, **more)
    return dict(result.model.state_dict())


def same(found: dict[str, Tensor], expected: dict[str, Tensor]) -> bool:
    return found.keys() == expected.keys() and all(torch.equal(found[key], expected[key]) for key in found)


@pytest.mark.parametrize("algorithm", [*algorithms.PAPER, *OTHERS])
def test_the_strategy_trains_what_local_does_to_the_bit(algorithm: str) -> None:
    strategy = FedILC(algorithm=algorithm, model=make_model(), **SETTINGS)
    result = strategy.start(grid_of(3), num_rounds=5, timeout=10)
    assert same(result.weights, locally(3, 5, algorithm))
    assert list(result.history[-1]["silos"]) == ["clinic-0", "clinic-1", "clinic-2"]
    assert same(dict(result.arrays.to_torch_state_dict()), result.weights)


def make_larger_silo(partition_id: int) -> Silo:
    generator = torch.Generator().manual_seed(partition_id)
    x = torch.randn(4 * (1 + partition_id), 5, generator=generator)
    return Silo(f"clinic-{partition_id}", x, (x[:, 0] + 0.3 * partition_id > 0).float())


@pytest.mark.parametrize("algorithm", ["fedsgd", "fedcurv", "fishr-intra-geo"])
def test_silos_count_by_their_examples_as_local(algorithm: str) -> None:
    strategy = FedILC(algorithm=algorithm, model=make_model(), weights="examples", **SETTINGS)
    result = strategy.start(grid_of(3, make_larger_silo), num_rounds=3, timeout=10)
    federation = Federation("near", [make_larger_silo(place) for place in range(3)])
    by_examples, equally = (
        train(federation, make_model(), algorithm, rounds=3, weights=weights, **SETTINGS).model.state_dict()
        for weights in ("examples", "equal")
    )
    assert same(result.weights, dict(by_examples))
    assert not same(result.weights, dict(equally))


def test_the_sizes_of_silos_elsewhere_are_noted_once_they_are_known() -> None:
    def unlike(partition_id: int) -> Silo:
        silo = make_silo(partition_id)
        return Silo(silo.name, silo.x.repeat(12, 1), silo.y.repeat(12)) if partition_id == 2 else silo

    strategy = FedILC(algorithm="fedsgd", model=make_model(), **SETTINGS)
    with pytest.warns(
        FedILCWarning, match="'clinic-0' has 8 .* 'clinic-2' has 96, and each silo counts eq"
    ) as said:
        strategy.start(grid_of(3, unlike), num_rounds=3, timeout=10)
    assert len(said) == 1


def test_a_new_process_for_each_message_gives_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    grid = grid_of(3)
    push = grid.push_messages

    def forgetful(messages: Any) -> list[str]:
        kept_clients.clear()
        return push(messages)

    monkeypatch.setattr(grid, "push_messages", forgetful)
    result = FedILC(model=make_model(), **SETTINGS).start(grid, num_rounds=3, timeout=10)
    assert same(result.weights, locally(3, 3))


def test_the_first_weights_may_be_given_as_arrays_and_are_evaluated_before_the_first_round() -> None:
    from flwr.app import ArrayRecord, MetricRecord

    halves = {name: tensor / 2 for name, tensor in make_model().state_dict().items()}
    seen = {}

    def evaluate(number: int, arrays: Any) -> Any:
        seen[number] = {name: tensor.clone() for name, tensor in arrays.to_torch_state_dict().items()}
        return MetricRecord({"loss": float(number)})

    strategy = FedILC("fedsgd", model=make_model(), **SETTINGS)
    result = strategy.start(grid_of(2), ArrayRecord(halves), num_rounds=2, timeout=10, evaluate_fn=evaluate)
    assert same(seen[0], halves)
    assert same(seen[2], result.weights)
    assert not same(seen[1], seen[2])
    assert {number: dict(found) for number, found in result.evaluate_metrics_serverapp.items()} == {
        0: {"loss": 0.0},
        1: {"loss": 1.0},
        2: {"loss": 2.0},
    }


def test_arrays_of_another_network_are_refused() -> None:
    from flwr.app import ArrayRecord

    arrays = ArrayRecord({"0.weight": torch.zeros(2, 2)})
    with pytest.raises(ConfigError, match="initial_arrays are not weights of the model"):
        FedILC(model=make_model()).start(grid_of(2), arrays, timeout=10)


ALL = ["clinic-0", "clinic-1", "clinic-2"]


@pytest.mark.parametrize(
    ("old", "present"),
    [("silent", [ALL, ["clinic-0", "clinic-2"], ALL]), ("gone", [ALL, ALL, ALL])],
)
def test_a_node_that_was_started_again_under_another_number_takes_its_place(
    old: str, present: list[list[str]]
) -> None:
    """The old one is still listed at first: either it does not answer any more, or it leaves the list."""
    grid = grid_of(3)

    def restarted(number: int, _: Any) -> None:
        if number == 1:
            grid.configs[105] = dict(grid.configs[101])
        if (number, old) in ((1, "silent"), (2, "gone")):
            getattr(grid, old).add(101)

    strategy = FedILC(model=make_model(), min_silos=2, **SETTINGS)
    result = strategy.start(grid, num_rounds=3, timeout=2, evaluate_fn=restarted)
    assert [list(record["silos"]) for record in result.history] == present
    assert {node for node, _ in grid.sent[-6:]} == {100, 102, 105}


def test_a_lost_node_is_named_and_the_round_is_asked_again_without_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    grid = grid_of(3)
    lost_after_first = _killing(grid, node=101, round_=2)
    strategy = FedILC(model=make_model(), min_silos=2, **SETTINGS)
    with caplog.at_level(logging.WARNING, "flwr"):
        result = strategy.start(grid, num_rounds=3, timeout=10, evaluate_fn=lost_after_first)
    assert [list(record["silos"]) for record in result.history] == [
        ["clinic-0", "clinic-1", "clinic-2"],
        ["clinic-0", "clinic-2"],
        ["clinic-0", "clinic-2"],
    ]
    assert "silo 'clinic-1' is lost to round 2" in caplog.text
    assert "Node Unavailable" in caplog.text


def _killing(grid: Any, node: int, round_: int) -> Callable[..., None]:
    """A node that dies after the roll was called for a round: it is listed, and its messages fail."""
    listed = grid.get_node_ids
    calls: list[int] = []

    def still_listed() -> list[int]:
        found = listed()
        return sorted({*found, node}) if len(calls) == round_ else found

    grid.get_node_ids = still_listed

    def after(number: int, _: Any) -> None:
        calls.append(number)
        if number == round_ - 1:
            grid.gone.add(node)

    return after


def test_without_enough_silos_the_run_ends_with_a_sentence_and_goes_on_later(tmp_path: Path) -> None:
    grid = grid_of(3)
    strategy = FedILC(model=make_model(), **SETTINGS)
    stop = _killing(grid, node=102, round_=3)
    with pytest.raises(SilosLostError, match="round 3 lost clinic-2 and 2 of 3 silos are left"):
        strategy.start(grid, num_rounds=4, timeout=10, evaluate_fn=stop, out=tmp_path / "run")
    again = strategy.start(grid_of(3), num_rounds=4, timeout=10, out=tmp_path / "run")
    assert [record["round"] for record in again.history] == [1, 2, 3, 4]
    assert same(again.weights, locally(3, 4))


def test_another_configuration_does_not_go_on_in_the_same_folder(tmp_path: Path) -> None:
    FedILC(model=make_model(), **SETTINGS).start(grid_of(2), num_rounds=1, timeout=10, out=tmp_path / "run")
    other = FedILC("fedsgd", model=make_model(), **SETTINGS)
    with pytest.raises(CheckpointError, match="algorithm was 'fishr-inter-geo' there and is 'fedsgd' here"):
        other.start(grid_of(2), num_rounds=2, timeout=10, out=tmp_path / "run")


def test_a_silent_node_is_waited_for_no_longer_than_the_timeout() -> None:
    grid = grid_of(3)
    strategy = FedILC("fedsgd", model=make_model(), min_silos=2, evaluate_every=9, **SETTINGS)

    def silence(number: int, _: Any) -> None:
        if number == 1:
            grid.silent.add(100)

    began = time.monotonic()
    result = strategy.start(grid, num_rounds=2, timeout=1.5, evaluate_fn=silence)
    assert list(result.history[1]["silos"]) == ["clinic-1", "clinic-2"]
    assert 1.5 <= time.monotonic() - began < 15


def test_a_reply_that_never_arrives_whole_does_not_hold_up_the_run() -> None:
    grid = grid_of(2)
    strategy = FedILC("fedsgd", model=make_model(), **SETTINGS)

    def stall(_: int, __: Any) -> None:
        grid.pull_messages = lambda _: time.sleep(60)

    began = time.monotonic()
    with pytest.raises(SilosLostError, match="round 1 lost clinic-0, clinic-1"):
        strategy.start(grid, num_rounds=1, timeout=1.5, evaluate_fn=stall)
    assert time.monotonic() - began < 30


def test_a_reply_that_never_arrives_whole_does_not_lose_the_others() -> None:
    grid = grid_of(3)
    pull, stuck = grid.pull_messages, threading.Event()

    def stall(number: int, _: Any) -> None:
        mine = [name for name, reply in grid.replies.items() if reply.metadata.src_node_id == 101]
        assert number or not mine
        grid.slow = 101

    def slowly(names: Any) -> list[Any]:
        (name,) = names
        reply = grid.replies.get(name)
        if reply is not None and reply.metadata.src_node_id == getattr(grid, "slow", None):
            stuck.wait(60)
        return pull([name])

    grid.pull_messages = slowly
    strategy = FedILC("fedsgd", model=make_model(), min_silos=2, **SETTINGS)
    result = strategy.start(grid, num_rounds=1, timeout=1.5, evaluate_fn=stall)
    stuck.set()
    assert [list(record["silos"]) for record in result.history] == [["clinic-0", "clinic-2"]]


def test_a_node_that_comes_back_takes_part_again() -> None:
    grid = grid_of(3)

    def come_and_go(number: int, _: Any) -> None:
        grid.gone = {102} if number == 1 else set()

    strategy = FedILC("fedsgd", model=make_model(), min_silos=2, **SETTINGS)
    result = strategy.start(grid, num_rounds=3, timeout=10, evaluate_fn=come_and_go)
    assert [len(record["silos"]) for record in result.history] == [3, 2, 3]


@pytest.mark.parametrize("algorithm", ["fedsgd", "fishr-inter-geo"])
def test_a_silo_that_fails_three_times_is_set_aside(caplog: pytest.LogCaptureFixture, algorithm: str) -> None:
    grid = grid_of(3)
    grid.raising[101] = 99
    strategy = FedILC(algorithm, model=make_model(), min_silos=2, evaluate_every=9, **SETTINGS)
    with caplog.at_level(logging.WARNING, "flwr"):
        strategy.start(grid, num_rounds=6, timeout=10)
    step = "update" if algorithm == "fedsgd" else "matched-update"
    assert grid.sent.count((101, step)) == 3
    assert "RuntimeError: out of memory" in caplog.text
    assert "silo 'clinic-1' failed 3 times and is set aside" in caplog.text


def test_a_silo_that_was_set_aside_takes_part_again_once_its_node_was_started_again() -> None:
    grid = grid_of(3)
    grid.raising[101] = 3

    def restart(number: int, _: Any) -> None:
        grid.gone = {101} if number == 4 else set()

    strategy = FedILC("fedsgd", model=make_model(), min_silos=2, **SETTINGS)
    result = strategy.start(grid, num_rounds=6, timeout=10, evaluate_fn=restart)
    assert [len(record["silos"]) for record in result.history] == [2, 2, 2, 2, 2, 3]


def test_a_node_whose_first_answer_was_lost_is_asked_again() -> None:
    grid = grid_of(2)
    answered, failed = grid.answered, []

    def at_first_lost(node: int, message: Any) -> Any:
        if node == 101 and len(failed) < 2:
            failed.append(node)
            return grid.unavailable(message)
        return answered(node, message)

    grid.answered = at_first_lost
    result = FedILC("fedsgd", model=make_model(), **SETTINGS).start(grid, num_rounds=1, timeout=20)
    assert len(result.history[0]["silos"]) == 2


def test_a_node_with_anothers_partition_does_not_end_the_wait_for_the_missing_one() -> None:
    grid = grid_of(3)
    late = grid.configs.pop(102)
    grid.configs[103] = dict(grid.configs[101])
    listed, calls = grid.get_node_ids, []

    def comes_late() -> list[int]:
        calls.append(1)
        if len(calls) == 3:
            grid.configs[102] = late
        return listed()

    grid.get_node_ids = comes_late
    result = FedILC("fedsgd", model=make_model(), **SETTINGS).start(grid, num_rounds=1, timeout=20)
    assert list(result.history[0]["silos"]) == ALL


def test_another_silo_does_not_stand_in_under_the_same_number() -> None:
    def own_of_each_node(partition_id: int) -> Silo:
        silo = make_silo(partition_id)
        return Silo("other", silo.x[:4], silo.y[:4]) if grid.now == 103 else silo

    grid = grid_of(2, own_of_each_node)
    grid.configs[103] = dict(grid.configs[101])
    answered = grid.answered

    def watched(node: int, message: Any) -> Any:
        grid.now = node
        return answered(node, message)

    grid.answered = watched
    strategy = FedILC("fedsgd", model=make_model(), min_silos=1, **SETTINGS)

    def go_silent(_: int, __: Any) -> None:
        grid.silent.add(101)

    result = strategy.start(grid, num_rounds=2, timeout=1.5, evaluate_fn=go_silent)
    assert [list(record["silos"]) for record in result.history] == [["clinic-0"], ["clinic-0"]]


def test_a_silo_that_cannot_be_made_says_why_to_the_server() -> None:
    def broken(partition_id: int) -> Silo:
        if partition_id == 1:
            raise FileNotFoundError("patients.csv")
        return make_silo(partition_id)

    with pytest.raises(
        SilosLostError, match=r"2 of 3 silos are there: make_silo failed: FileNotFoundError: pat"
    ):
        FedILC(model=make_model(), **SETTINGS).start(grid_of(3, broken), timeout=30)


def test_a_node_may_name_a_make_silo_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "wards.py").write_text(
        "from fedilc import Silo\n"
        "def ward(partition_id, seed):\n"
        "    x = [[float(partition_id + seed)] * 5, [1.0] * 5]\n"
        "    return Silo(f'ward-{partition_id}-{seed}', x, [0, 1])\n"
    )
    monkeypatch.chdir(tmp_path)
    grid = grid_of(2, **{"make-silo": "wards:ward"})
    result = FedILC("fedsgd", model=make_model(), seed=4, **SETTINGS).start(grid, num_rounds=1, timeout=10)
    assert list(result.history[0]["silos"]) == ["ward-0-4", "ward-1-4"]


def test_two_nodes_of_one_partition_are_not_both_asked(caplog: pytest.LogCaptureFixture) -> None:
    grid = grid_of(3)
    grid.configs[102]["partition-id"] = 1
    strategy = FedILC("fedsgd", model=make_model(), num_silos=2, **SETTINGS)
    with caplog.at_level(logging.WARNING, "flwr"):
        result = strategy.start(grid, num_rounds=1, timeout=10)
    assert list(result.history[0]["silos"]) == ["clinic-0", "clinic-1"]
    assert "partition-id 1 already belongs to node 101" in caplog.text


def test_a_node_without_partition_id_is_told_what_to_do() -> None:
    grid = grid_of(2)
    del grid.configs[101]["partition-id"]
    with pytest.raises(SilosLostError, match="this node has no partition-id; start it with --node-config"):
        FedILC(model=make_model(), num_silos=2).start(grid, timeout=10)


def test_a_network_that_is_not_the_runs_is_refused_by_the_silo(caplog: pytest.LogCaptureFixture) -> None:
    grid = near.NearGrid(make_client_app(make_silo, lambda: nn.Linear(5, 1)), 2)
    with caplog.at_level(logging.WARNING, "flwr"), pytest.raises(SilosLostError):
        FedILC("fedsgd", model=make_model()).start(grid, timeout=10)
    assert "use the network that this run was started with" in caplog.text


def test_a_wrong_word_is_refused_before_anything_is_asked() -> None:
    with pytest.raises(ConfigError, match="did you mean 'fishr-inter-geo'"):
        FedILC("fishr-inter-geom", model=make_model())
    with pytest.raises(ConfigError, match="the key 'penalti' is unknown; did you mean 'penalty'"):
        FedILC(model=make_model(), penalti=3.0)


@pytest.mark.parametrize("timeout", [0, -1, float("inf"), float("nan"), "soon"])
def test_every_exchange_must_end(timeout: Any) -> None:
    with pytest.raises(ConfigError, match="is not a number of seconds"):
        FedILC(model=make_model()).start(grid_of(2), timeout=timeout)
