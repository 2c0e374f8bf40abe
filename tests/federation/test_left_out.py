"""A silo whose answers were set aside in three rounds is left out, and its silence ends no run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from networks import mlp

from fedilc import Federation, Silo, train
from fedilc.data.silo_store import SiloStore
from fedilc.errors import FedILCWarning, SilosLostError
from fedilc.training.result import Result

pytestmark = pytest.mark.filterwarnings("ignore::fedilc.errors.FedILCWarning")


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


def test_after_three_rounds_the_silo_is_not_asked_any_more_and_a_note_says_so() -> None:
    with pytest.warns(FedILCWarning, match=r"silo 'b' \(its gradient .*; left out from now on, after 3 such"):
        result = run(store_of(), min_silos=3)
    assert aside(result) == [["b"], ["b"], ["b"], [], [], []]
    assert all(list(record["silos"]) == list("acde") for record in result.history)
    alone = run(store_of("acde"))
    for name, tensor in alone.model.state_dict().items():
        assert torch.equal(result.model.state_dict()[name], tensor)


@pytest.mark.parametrize("rounds", [2, 4])
def test_a_resumed_run_knows_how_often_answers_were_set_aside(tmp_path: Path, rounds: int) -> None:
    whole = run(store_of(), min_silos=3)
    run(store_of(), rounds, min_silos=3, out=tmp_path)
    assert run(store_of(), min_silos=3, out=tmp_path, resume=True).history == whole.history


def test_of_silos_that_are_drawn_others_take_the_place_of_one_set_aside() -> None:
    result = run(store_of(), 12, silos_per_round=2)
    assert [names for names in aside(result) if names] == [["b"]] * 3
    assert all(len(record["silos"]) == 2 and "b" not in record["silos"] for record in result.history)


def test_without_others_a_round_of_drawn_silos_has_one_fewer() -> None:
    result = run(store_of("abc"), silos_per_round=3)
    assert all(list(record["silos"]) == ["a", "c"] for record in result.history)


def test_fewer_than_min_silos_end_the_run_with_the_reason() -> None:
    found = r"round 1 sets silo 'b' \(its gradient .*\) aside, and 2 of 3 silos are left, fewer than min"
    with pytest.raises(SilosLostError, match=found):
        run(store_of("abc"), silos_per_round=3, min_silos=3)
