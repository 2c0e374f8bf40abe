"""Silos and federations: what they take, and each sentence with which they refuse the rest."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping

import numpy as np
import polars as pl
import pytest
import torch
from numpy.typing import NDArray
from small_silos import examples

from fedilc import Federation, Silo
from fedilc.data.silo import held_out_rows, split_silo
from fedilc.errors import DataError, FedILCWarning

NAN, INF = float("nan"), float("inf")
X, Y = [[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]], [0, 1, 1]


@pytest.mark.parametrize("convert", [list, np.array, torch.tensor], ids=["list", "numpy", "torch"])
def test_a_silo_takes_lists_arrays_and_tensors(convert: Callable[[object], object]) -> None:
    silo = Silo("clinic", convert(X), convert(Y))
    assert silo.x.tolist() == X
    assert silo.y.tolist() == Y
    assert len(silo) == 3


def test_labels_may_come_as_one_column() -> None:
    assert Silo("clinic", X, [[0], [1], [1]]).y.tolist() == Y


def test_a_silo_holds_no_graph() -> None:
    assert not Silo("clinic", torch.tensor(X, requires_grad=True), Y).x.requires_grad


@pytest.mark.parametrize("held_out", [(None, None), (np.empty((0, 2)), np.empty(0))], ids=["none", "empty"])
def test_a_silo_may_have_no_validation_examples(held_out: tuple[object, object]) -> None:
    silo = Silo("clinic", X, Y, *held_out)
    assert (silo.x_val, silo.y_val) == (None, None)


def test_a_silo_shows_its_size_and_not_its_data() -> None:
    shown = repr(Silo("clinic", X, Y, X[:2], Y[:2]))
    assert shown == "Silo('clinic', 3 examples of shape (2,), 2 for validation)"


@pytest.mark.parametrize(
    ("parts", "sentence"),
    [
        ((np.empty((0, 2)), []), "silo 'c' is empty: x holds no example"),
        ((1.0, 1), "silo 'c' is empty"),
        ((X, [0, 1]), r"silo 'c': y has shape \(2,\) but x has 3 examples"),
        ((X, [[0, 1], [0, 1], [0, 1]]), r"y has shape \(3, 2\) .* one label per example"),
        (([[0.0, 1.0], [2.0]], [0, 1]), "x cannot be made into a tensor"),
        ((X, ["yes", "no", "no"]), "y cannot be made into a tensor"),
        (([[0.0, 1.0], [2.0, 3.0], [NAN, 5.0]], Y), "silo 'c': x holds a NaN .*first in example 2"),
        (([[0.0, 1.0], [2.0, -INF], [4.0, 5.0]], Y), "silo 'c': x holds .* an infinity .*first in example 1"),
        ((X, [NAN, 0.0, 1.0]), "silo 'c': y holds a NaN .*first in example 0"),
        ((X, [0.0, 1.0, NAN]), "silo 'c': y holds a NaN .*first in example 2"),
        ((X, Y, X), "needs both x_val and y_val"),
        ((X, Y, None, Y), "needs both x_val and y_val"),
        ((X, Y, X, Y[:1]), r"y_val has shape \(1,\) but x_val has 3 examples"),
        ((X, Y, [[NAN, 0.0]], [0]), "x_val holds a NaN"),
        ((X, Y, [[0.0]], [0]), r"x_val has inputs of shape \(1,\) but its x has \(2,\)"),
    ],
)
def test_a_silo_refuses_examples_it_cannot_use(parts: tuple[object, ...], sentence: str) -> None:
    with pytest.raises(DataError, match=sentence):
        Silo("c", *parts)


def silo(name: str = "a", y: object = Y, x: object = X, **held_out: object) -> Silo:
    return Silo(name, x, y, **held_out)


def test_a_federation_shows_its_silos() -> None:
    assert repr(Federation("demo", [silo("a"), silo("b")])) == "Federation('demo', silos: a, b)"


def test_a_federation_without_a_test_set_has_none() -> None:
    federation = Federation("demo", [silo()])
    assert (federation.x_test, federation.y_test) == (None, None)


@pytest.mark.parametrize("y", [[0, 1, 1], [0.0, 1.0, 1.0], [False, True, True]], ids=["int", "float", "bool"])
def test_binary_labels_may_be_numbers_or_truth_values(y: list[object]) -> None:
    assert Federation("demo", [silo(y=y)]).silos[0].y.tolist() == y


@pytest.mark.parametrize("y", [[0, 5, 2], [0.0, 5.0, 2.0], [False, True, True]], ids=["int", "float", "bool"])
def test_class_numbers_may_be_whole_floats_or_truth_values(y: list[float]) -> None:
    assert Federation("demo", [silo(y=y)], loss="multiclass").silos[0].y.tolist() == y


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: Federation("f", []), "federation 'f' has no silos"),
        (lambda: Federation("f", [silo("a"), silo("a")]), "two silos are called 'a'"),
        (lambda: Federation("f", [silo()], loss="binery"), "loss='binery' is unknown; did you mean 'binary'"),
        (lambda: Federation("f", [silo()], X), "needs both x_test and y_test"),
        (lambda: Federation("f", [silo()], np.empty((0, 2)), []), "the test set is empty"),
        (
            lambda: Federation("f", [silo("a"), silo("b", x=[[1.0]] * 3)]),
            r"silo 'b' has inputs of shape \(1,\) but silo 'a' has \(2,\)",
        ),
        (
            lambda: Federation("f", [silo()], [[1.0]], [1]),
            r"the test set has inputs of shape \(1,\) but silo 'a' has \(2,\)",
        ),
        (lambda: Federation("f", [silo("b", [0, 1, 2])]), "silo 'b': y holds the label 2; .* be 0 or 1"),
        (lambda: Federation("f", [silo("b", [0, 1, 0.5])]), "silo 'b': y holds the label 0.5"),
        (lambda: Federation("f", [silo(x_val=X, y_val=[0, 3, 0])]), "silo 'a': y_val holds the label 3"),
        (lambda: Federation("f", [silo()], X, [0, 1, -1]), "the test set: y_test holds the label -1"),
        (
            lambda: Federation("f", [silo(y=[0, 1, -1])], loss="multiclass"),
            "silo 'a': y holds the label -1; labels must be class numbers",
        ),
        (
            lambda: Federation("f", [silo(y=[0, 1, 1.5])], loss="multiclass"),
            "silo 'a': y holds the label 1.5; labels must be class numbers",
        ),
    ],
)
def test_a_federation_refuses_silos_that_do_not_fit(make: Callable[[], Federation], sentence: str) -> None:
    with pytest.raises(DataError, match=sentence):
        make()


@pytest.mark.parametrize(
    ("where", "federation"),
    [
        ("silo 'a'", lambda: Federation("f", [silo(y=[0, 1, 4])], loss="multiclass")),
        ("silo 'a'", lambda: Federation("f", [silo(x_val=X, y_val=[4, 1, 1])], loss="multiclass")),
        ("the test set", lambda: Federation("f", [silo()], X, [4, 0, 1], loss="multiclass")),
    ],
    ids=["training", "validation", "test"],
)
def test_a_label_beyond_the_models_classes_is_refused_wherever_it_is(
    where: str, federation: Callable[[], Federation]
) -> None:
    federation().check_classes(5)
    with pytest.raises(DataError, match=f"{where} has the label 4, but the model has 4 logits"):
        federation().check_classes(4)


def test_binary_labels_need_no_class_check() -> None:
    Federation("f", [silo()]).check_classes(1)


def test_sub_domains_must_name_each_validation_example() -> None:
    with pytest.raises(DataError, match="silo 'a': domains has 2 names but x_val has 1 examples"):
        Silo("a", [[0.0]], [1], [[1.0]], [0], domains=["x", "y"])
    with pytest.raises(DataError, match="domains has 1 names but x_val has 0 examples"):
        Silo("a", [[0.0]], [1], domains=["x"])


def test_class_numbers_from_one_are_taken_from_zero_with_a_note_and_without_touching_the_silos() -> None:
    silos = [Silo("a", X, [1, 2, 3], X, [3, 1, 1]), Silo("b", X, [2, 3, 2])]
    with pytest.warns(
        FedILCWarning, match="the labels 1 to 3 are taken as the classes 0 to 2: logit 0 stands"
    ):
        federation = Federation("f", silos, X, [1, 1, 2], loss="multiclass")
    assert federation.outputs == 3
    assert federation.silos[0].y.tolist() == [0, 1, 2]
    assert federation.silos[0].y_val.tolist() == [2, 0, 0]
    assert federation.silos[1].y.tolist() == [1, 2, 1]
    assert federation.y_test.tolist() == [0, 0, 1]
    assert silos[0].y.tolist() == [1, 2, 3]


def test_class_numbers_stay_if_a_0_occurs_anywhere_and_quantities_always_do() -> None:
    federation = Federation("f", [Silo("a", X, [1, 2, 2])], X, [0, 1, 2], loss="multiclass")
    assert federation.silos[0].y.tolist() == [1, 2, 2]
    for loss in ("regression", "huber"):
        federation = Federation("f", [Silo("a", X, [1.5, 2, -7])], loss=loss)
        assert federation.silos[0].y.tolist() == [1.5, 2, -7]
        assert federation.outputs == 1


def test_a_list_of_tensors_is_refused_because_it_may_be_examples_or_inputs() -> None:
    with pytest.raises(DataError, match=r"silo 'a': x is a list of 2 tensors .*; give one tensor, examples"):
        Silo("a", [torch.zeros(4, 2), torch.zeros(4, 3)], [0, 1, 0, 1])


@pytest.mark.parametrize(
    ("x", "said"),
    [
        (np.ma.masked_less(examples(0)[0], 0), "x is a masked array"),
        (torch.tensor(examples(0)[0]).to_sparse(), "x is a sparse tensor"),
        (torch.tensor(examples(0)[0]) + 1j, "x is a complex tensor"),
        (torch.empty(40, 3, device="meta"), "x is a meta tensor"),
        (np.zeros((40, 0)), "x holds no inputs"),
        ([["a", "b"]] * 40, "x cannot be made into a tensor of numbers"),
    ],
    ids=["masked", "sparse", "complex", "meta", "no inputs", "text"],
)
def test_arrays_without_dense_numbers_are_refused(x: object, said: str) -> None:
    with pytest.raises(DataError, match=f"silo 'a'.*{said}"):
        Silo("a", x, examples(0)[1])


@pytest.mark.parametrize("kind", [pl.DataFrame, list], ids=["a table", "a list of rows"])
def test_tables_and_lists_of_arrays_are_taken_as_they_are(kind: Callable[[np.ndarray], object]) -> None:
    x, y = examples(0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch.equal(Silo("a", kind(x), pl.Series(y)).x, torch.tensor(x))


def labels(counts: Mapping[int, int]) -> NDArray[np.int64]:
    return np.repeat(list(counts), list(counts.values()))


@pytest.mark.parametrize("share", [0.0, 0.1, 0.3, 0.5, 0.9])
def test_the_same_share_of_every_class_is_held_out(share: float) -> None:
    counts = {0: 50, 1: 30, 2: 10}
    y = labels(counts)
    held_out = held_out_rows(y, share, np.random.default_rng(1))
    for label, number in counts.items():
        assert held_out[y == label].sum() == round(share * number)
    assert held_out_rows(y, share, np.random.default_rng(1), "regression").sum() == round(share * 90)


def test_a_split_silo_has_every_example_exactly_once_with_its_label() -> None:
    y = labels({0: 50, 1: 30})
    silo = split_silo("a", np.arange(80.0)[:, None], y, 0.3, seed=1)
    assert silo.x_val is not None
    assert len(silo.x_val) == 24
    rows = torch.cat([silo.x, silo.x_val])[:, 0].long()
    assert sorted(rows.tolist()) == list(range(80))
    assert torch.cat([silo.y, silo.y_val]).tolist() == y[rows].tolist()


def test_what_is_held_out_depends_on_the_seed_and_not_on_the_name() -> None:
    x, y = np.arange(80.0)[:, None], labels({0: 50, 1: 30})
    drawn = [
        split_silo(name, x, y, 0.3, seed).x.ravel().tolist() for name, seed in (("a", 1), ("b", 1), ("a", 2))
    ]
    assert drawn[0] == drawn[1]
    assert drawn[0] != drawn[2]


def test_a_share_that_leaves_nothing_to_train_on_is_refused() -> None:
    with pytest.raises(DataError, match=r"validation_share=0.9 leaves silo 'a', which has 2 examples, none"):
        split_silo("a", np.zeros((2, 1)), np.array([0, 1]), 0.9, seed=0)
