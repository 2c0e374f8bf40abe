"""The outline of a federation: everything that training needs, and no training example."""

from __future__ import annotations

from dataclasses import fields, replace

import torch

from fedilc import Federation, Silo
from fedilc.data.digests import digest, silo_digest
from fedilc.data.silo_store import Outline, SiloStore, data_facts

SILOS = [Silo("a", [[1.0], [2.0], [3.0]], [0, 1, 1]), Silo("b", [[4.0]], [1], [[5.0]], [0])]
FEDERATION = Federation("demo", SILOS, [[6.0]], [1], columns=["age"], label="died")


def test_an_outline_has_sizes_digests_and_names() -> None:
    outline = SiloStore.of(FEDERATION).outline()
    assert (outline.name, outline.silos, outline.loss) == ("demo", ("a", "b"), "binary")
    assert (outline.columns, outline.label, outline.validates) == (("age",), "died", True)
    assert outline.facts == {
        silo.name: {"examples": len(silo), "digest": silo_digest(silo)} for silo in SILOS
    }
    assert outline.sample.tolist() == [[1.0], [2.0]]


def test_an_outline_agrees_with_its_store_in_every_fact_that_both_have() -> None:
    store = SiloStore.of(FEDERATION)
    outline = store.outline()
    for field in fields(Outline):
        if field.name != "facts":
            assert getattr(outline, field.name) is getattr(store, field.name) or (
                getattr(outline, field.name) == getattr(store, field.name)
            )


def test_the_data_of_a_run_are_known_by_silos_and_test_set() -> None:
    outline = SiloStore.of(FEDERATION).outline()
    facts = data_facts(outline)
    assert facts["silos"] == dict(outline.facts)
    assert facts["test"] == digest(outline.x_test, outline.y_test)
    assert data_facts(replace(outline, y_test=torch.zeros(1)))["test"] != facts["test"]


def test_numbers_without_examples_are_never_recorded() -> None:
    outline = SiloStore.of(FEDERATION).outline()
    keys = ("validation_loss", "test_loss", "train_loss")
    assert [outline.never_records(key) for key in keys] == [False, False, False]
    without = replace(outline, x_test=None, validates=False)
    assert [without.never_records(key) for key in keys] == [True, True, False]
    unknown = replace(outline, validates=None)
    assert not unknown.never_records("validation_loss")
