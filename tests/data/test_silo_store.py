"""A store gives a federation's silos by name, and forgets those it is told to."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch

from fedilc import Federation, Silo
from fedilc.data.silo_store import SiloStore
from fedilc.errors import DataError


def federation(loss: str = "binary", labels: tuple[int, ...] = (0, 1)) -> Federation:
    x = torch.arange(8.0).reshape(4, 2)
    silos = [Silo(name, x + i, [*labels, *labels], x, [0, 1, 0, 1]) for i, name in enumerate("abc")]
    return Federation("demo", silos, x, [0, 1, 0, 1], loss)


def test_a_federation_in_a_store_is_the_same_federation() -> None:
    whole = federation()
    store = SiloStore.of(whole)
    assert store.silos == ("a", "b", "c")
    assert [store.open(name) for name in store.silos] == whole.silos
    assert (store.sizes, store.inputs, store.outputs) == ({"a": 4, "b": 4, "c": 4}, (2,), 1)
    assert (store.x_test, store.y_test) == (whole.x_test, whole.y_test)
    assert store.resident


def test_what_a_store_lets_go_of_is_no_longer_in_memory_though_names_and_sizes_are_known() -> None:
    store = SiloStore.of(federation())
    tensors = {name: weakref.ref(store.open(name).x) for name in store.silos}
    store.keep_only(["b"])
    gc.collect()
    assert [name for name, tensor in tensors.items() if tensor() is not None] == ["b"]
    assert (store.silos, store.sizes["a"]) == (("a", "b", "c"), 4)
    assert store.open("b").name == "b"
    with pytest.raises(DataError, match=r"silo 'a' is not in memory here; another rank of the run has it"):
        store.open("a")


def test_the_sample_does_not_keep_the_first_silo_in_memory() -> None:
    whole = federation()
    assert SiloStore.of(whole).sample.untyped_storage().nbytes() == 2 * 2 * 4
    assert torch.equal(SiloStore.of(whole).sample, whole.silos[0].x[:2])


def test_letting_go_leaves_the_federation_it_came_from_as_it_was() -> None:
    whole = federation()
    SiloStore.of(whole).keep_only([])
    assert [silo.name for silo in whole.silos] == ["a", "b", "c"]


def test_silos_that_are_made_when_opened_are_made_anew_each_time_and_nothing_is_kept() -> None:
    made: list[str] = []
    facts = {"a": {"examples": 2}, "b": {"examples": 2}}

    def make(name: str) -> Silo:
        made.append(name)
        return Silo(name, [[0.0], [1.0]], [0, 1])

    store = SiloStore("demo", facts, torch.zeros(2, 1), "binary", make=make, outputs=1)
    assert not store.resident
    store.keep_only(["b"])
    assert store.open("a").name == store.open("a").name == "a"
    assert made == ["a", "a"]


def test_labels_are_checked_against_the_models_classes() -> None:
    store = SiloStore.of(federation("multiclass", (0, 3)))
    store.check_classes(4)
    with pytest.raises(DataError, match="silo 'a' has the label 3, but the model has 3 logits"):
        store.check_classes(3)
