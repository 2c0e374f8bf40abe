"""A shelf gives a federation's silos by name, and forgets those it is told to."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch

from fedilc import Federation, Silo
from fedilc.data.shelf import Shelf
from fedilc.errors import DataError


def federation(loss: str = "binary", labels: tuple[int, ...] = (0, 1)) -> Federation:
    x = torch.arange(8.0).reshape(4, 2)
    silos = [Silo(name, x + i, [*labels, *labels], x, [0, 1, 0, 1]) for i, name in enumerate("abc")]
    return Federation("demo", silos, x, [0, 1, 0, 1], loss)


def test_a_federation_on_a_shelf_is_the_same_federation() -> None:
    whole = federation()
    shelf = Shelf.of(whole)
    assert shelf.silos == ("a", "b", "c")
    assert [shelf.open(name) for name in shelf.silos] == whole.silos
    assert (shelf.sizes, shelf.inputs, shelf.outputs) == ({"a": 4, "b": 4, "c": 4}, (2,), 1)
    assert (shelf.x_test, shelf.y_test) == (whole.x_test, whole.y_test)
    assert shelf.resident


def test_what_a_shelf_lets_go_of_is_no_longer_in_memory_though_names_and_sizes_are_known() -> None:
    shelf = Shelf.of(federation())
    tensors = {name: weakref.ref(shelf.open(name).x) for name in shelf.silos}
    shelf.let_go(["b"])
    gc.collect()
    assert [name for name, tensor in tensors.items() if tensor() is not None] == ["b"]
    assert (shelf.silos, shelf.sizes["a"]) == (("a", "b", "c"), 4)
    assert shelf.open("b").name == "b"
    with pytest.raises(DataError, match=r"silo 'a' is not held here; another rank of the run has it"):
        shelf.open("a")


def test_the_sample_does_not_keep_the_first_silo_in_memory() -> None:
    whole = federation()
    assert Shelf.of(whole).sample.untyped_storage().nbytes() == 2 * 2 * 4
    assert torch.equal(Shelf.of(whole).sample, whole.silos[0].x[:2])


def test_letting_go_leaves_the_federation_it_came_from_as_it_was() -> None:
    whole = federation()
    Shelf.of(whole).let_go([])
    assert [silo.name for silo in whole.silos] == ["a", "b", "c"]


def test_silos_that_are_made_when_opened_are_made_anew_each_time_and_there_is_nothing_to_let_go() -> None:
    made: list[str] = []

    def make(name: str) -> Silo:
        made.append(name)
        return Silo(name, [[0.0], [1.0]], [0, 1])

    shelf = Shelf("demo", {"a": 2, "b": 2}, make, torch.zeros(2, 1), 1, "binary")
    assert not shelf.resident
    shelf.let_go(["b"])
    assert shelf.open("a").name == shelf.open("a").name == "a"
    assert made == ["a", "a"]


def test_labels_are_checked_against_the_models_classes() -> None:
    shelf = Shelf.of(federation("multiclass", (0, 3)))
    shelf.check_classes(4)
    with pytest.raises(DataError, match="silo 'a' has the label 3, but the model has 3 logits"):
        shelf.check_classes(3)
