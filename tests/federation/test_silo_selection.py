"""The silos of a round: drawn by seed and round alone, without those whose replies were set aside."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import rank_worker
import torch
from networks import mlp

from fedilc import Federation, Silo, train
from fedilc.data.silo_store import SiloStore
from fedilc.errors import ConfigError, FedILCWarning, SilosLostError
from fedilc.federation import Record
from fedilc.runtimes.local import LocalRuntime
from fedilc.training.result import NAMED_SILOS, Result

NAMES = [f"silo-{i}" for i in range(len(rank_worker.SIZES))]


def history(rounds: int = 8, seed: int = 0, **more: Any) -> list[Record]:
    model, federation = rank_worker.network(), rank_worker.federation()
    return train(
        federation, model, "fishr-inter-geo", rounds=rounds, learning_rate=0.1, seed=seed, **more
    ).history


def drawn(records: list[Record]) -> list[list[str]]:
    return [list(record["silos"]) for record in records]


def test_each_round_asks_as_many_silos_as_set_in_their_order_and_in_time_all() -> None:
    found = drawn(history(silos_per_round=2, rounds=20))
    assert all(len(names) == 2 and names == sorted(names) for names in found)
    assert len({tuple(names) for names in found}) > 1
    assert {name for names in found for name in names} == set(NAMES)


def test_a_seed_draws_the_same_silos_again_and_another_seed_draws_others() -> None:
    first = history(silos_per_round=3)
    assert history(silos_per_round=3) == first
    assert drawn(history(silos_per_round=3, seed=1)) != drawn(first)


@pytest.mark.parametrize("number", [None, 6, 60])
def test_none_or_no_fewer_than_there_are_is_all(number: int | None) -> None:
    assert history(3, silos_per_round=number) == history(3)
    assert drawn(history(1, silos_per_round=number)) == [NAMES]


def test_a_resumed_run_draws_what_the_whole_run_draws(tmp_path: Path) -> None:
    whole = history(silos_per_round=2)
    history(4, silos_per_round=2, out=tmp_path / "run")
    assert history(8, silos_per_round=2, out=tmp_path / "run", resume=True) == whole


def test_a_round_of_drawn_silos_is_a_round_of_a_federation_of_those_alone() -> None:
    federation = rank_worker.federation()
    settings = {"rounds": 1, "learning_rate": 0.1, "penalty_weight": 3.0}
    result = train(federation, rank_worker.network(), "fedcurv", silos_per_round=3, **settings)
    chosen = [silo for silo in federation.silos if silo.name in result.history[0]["silos"]]
    alone = Federation("chosen", chosen, federation.x_test, federation.y_test)
    expected = train(alone, rank_worker.network(), "fedcurv", **settings)
    assert result.history == expected.history
    for name, tensor in expected.model.state_dict().items():
        assert torch.equal(result.model.state_dict()[name], tensor)


def test_no_silo_a_round_is_refused() -> None:
    with pytest.raises(ConfigError, match="silos_per_round"):
        history(silos_per_round=0)


@pytest.mark.parametrize("number", [NAMED_SILOS, NAMED_SILOS + 1])
def test_a_record_names_silos_up_to_a_hundred_and_sums_up_more(number: int) -> None:
    x = torch.linspace(-1, 1, 4 * number).reshape(number, 4, 1)
    silos = [Silo(f"silo-{i}", rows, [0, 1, 0, 1], rows + 9, [0, 1, 0, 1]) for i, rows in enumerate(x)]
    model = torch.nn.Linear(1, 1)
    (record,) = train(Federation("line", silos), model, "fedsgd", rounds=1, learning_rate=0.1).history
    if number <= NAMED_SILOS:
        assert len(record["silos"]) == number
        assert "silos_summary" not in record
        return
    assert "silos" not in record
    summary = record["silos_summary"]
    assert summary["count"] == number
    assert summary["examples"] == {"least": 4, "median": 4, "greatest": 4}
    loss = summary["train_loss"]
    assert loss["least"] < record["train_loss"] < loss["greatest"]
    assert summary["validation_accuracy"]["median"] == 0.5


pytestmark = pytest.mark.filterwarnings("ignore::fedilc.errors.FedILCWarning")


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set outliers aside in one process too, as a served run does."""
    monkeypatch.setattr(LocalRuntime, "sets_aside", True)


def store_of(names: str = "abcde", outlier: str = "b") -> SiloStore:
    """Silos of which one has inputs in another unit."""
    generator = torch.Generator().manual_seed(3)
    silos = []
    for e, name in enumerate("abcde"):
        x = torch.randn(12, 6, generator=generator) + 0.3 * e
        y = (x[:, 0] > 0.3 * e).long()
        silos.append(Silo(name, x * (1e8 if name == outlier else 1.0), y))
    return SiloStore.of(Federation("f", [silo for silo in silos if silo.name in names]))


def run(store: SiloStore, rounds: int = 6, **options: Any) -> Result:
    return train(store, mlp(), "fedsgd", rounds=rounds, learning_rate=0.05, **options)


def aside(result: Result) -> list[list[str]]:
    return [list(record.get("set_aside", {})) for record in result.history]


@pytest.mark.usefixtures("served")
def test_after_three_rounds_the_silo_is_not_asked_any_more_and_a_note_says_so() -> None:
    with pytest.warns(FedILCWarning, match=r"silo 'b' \(its gradient .*; left out from now on, after 3 such"):
        result = run(store_of(), min_silos=3)
    assert aside(result) == [["b"], ["b"], ["b"], [], [], []]
    assert all(list(record["silos"]) == list("acde") for record in result.history)
    alone = run(store_of("acde"))
    for name, tensor in alone.model.state_dict().items():
        assert torch.equal(result.model.state_dict()[name], tensor)


@pytest.mark.parametrize("rounds", [2, 4])
@pytest.mark.usefixtures("served")
def test_a_resumed_run_knows_how_often_answers_were_set_aside(tmp_path: Path, rounds: int) -> None:
    whole = run(store_of(), min_silos=3)
    run(store_of(), rounds, min_silos=3, out=tmp_path)
    assert run(store_of(), min_silos=3, out=tmp_path, resume=True).history == whole.history


@pytest.mark.usefixtures("served")
def test_of_silos_that_are_drawn_others_take_the_place_of_one_set_aside() -> None:
    result = run(store_of(), 12, silos_per_round=2)
    assert [names for names in aside(result) if names] == [["b"]] * 3
    assert all(len(record["silos"]) == 2 and "b" not in record["silos"] for record in result.history)


@pytest.mark.usefixtures("served")
def test_without_others_a_round_of_drawn_silos_has_one_fewer() -> None:
    result = run(store_of("abc"), silos_per_round=3)
    assert all(list(record["silos"]) == ["a", "c"] for record in result.history)


@pytest.mark.usefixtures("served")
def test_fewer_than_min_silos_end_the_run_with_the_reason() -> None:
    found = r"round 1 sets silo 'b' \(its gradient .*\) aside, which leaves 2 of 3 silos, fewer than min"
    with pytest.raises(SilosLostError, match=found):
        run(store_of("abc"), silos_per_round=3, min_silos=3)
