"""Inputs of examples: one tensor or several, indexed and cut the same way."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fedilc import Federation, Silo
from fedilc.data.checks.federation import check_federation
from fedilc.data.digests import digest, silo_digest
from fedilc.data.inputs import Several, make_inputs, shape_of, zeros
from fedilc.errors import DataError

IMAGE, AGE = torch.arange(24.0).reshape(6, 2, 2), torch.arange(6.0)


@given(
    rows=st.lists(st.integers(0, 5), min_size=1, max_size=8),
    size=st.integers(1, 7),
    named=st.booleans(),
)
def test_rows_and_parts_of_several_inputs_are_those_of_each(rows: list[int], size: int, named: bool) -> None:
    x = Several({"image": IMAGE, "age": AGE} if named else (IMAGE, AGE))
    for place, one in enumerate((IMAGE, AGE)):
        assert torch.equal(x[torch.tensor(rows)].tensors[place], one[rows])
        parts = x.split(size)
        assert [len(part) for part in parts] == [len(part) for part in one.split(size)]
        assert torch.equal(torch.cat([part.tensors[place] for part in parts]), one)


def test_a_copy_shares_no_memory_and_keeps_names() -> None:
    x = Several({"image": IMAGE, "age": AGE})
    copied = x.clone()
    copied.tensors[0].fill_(-1.0)
    assert copied.names == ["image", "age"]
    assert IMAGE.min() == 0


@pytest.mark.parametrize("shape", [[3], {"image": [1, 8, 8], "age": []}, [[1, 8, 8], [2]]])
def test_zeros_have_the_shape_that_they_are_made_for(shape: Any) -> None:
    assert shape_of(zeros(shape)) == shape


def test_zeros_of_whole_numbers_are_whole() -> None:
    made = zeros({"words": [7], "age": []}, [True, False])
    assert isinstance(made, Several)
    assert [part.dtype for part in made.tensors] == [torch.int64, torch.float32]


@pytest.mark.parametrize("x", [(IMAGE.numpy(), AGE.numpy()), (IMAGE, AGE), {0: IMAGE, 1: AGE.tolist()}])
def test_tuples_of_arrays_and_dicts_are_several_inputs(x: Any) -> None:
    made = make_inputs(x, "here", "x")
    assert isinstance(made, Several)
    assert [tuple(part.shape) for part in made.tensors] == [(6, 2, 2), (6,)]
    assert made.names == ["0", "1"]


def test_a_tuple_of_rows_is_one_input() -> None:
    made = make_inputs(((0.0, 1.0), (2.0, 3.0)), "here", "x")
    assert isinstance(made, Tensor)


@pytest.mark.parametrize(
    ("x", "said"),
    [
        ({"image": IMAGE, "age": AGE[:5]}, r"x\['age'\] has 5 examples and x\['image'\] has 6"),
        ((IMAGE, torch.tensor([0.0] * 5 + [float("nan")])), r"x\[1\] holds a NaN .*in example 5"),
        ({"image": IMAGE, "age": "old"}, r"x\['age'\] cannot be made into a tensor"),
        ({"image": IMAGE, "age": 3.0}, r"x\['age'\] is one number; give one input per example"),
        ({"image": torch.zeros(0, 2)}, "x holds no example"),
        ({"image": torch.zeros(6, 0)}, "x holds no inputs"),
        ([IMAGE, AGE], "x is a list of 2 tensors .* or a tuple or dict"),
        ((IMAGE[:5], AGE[:5]), r"y has shape \(6,\) but x has 5 examples"),
    ],
)
def test_inputs_that_do_not_fit_are_refused_in_one_sentence(x: Any, said: str) -> None:
    with pytest.raises(DataError, match=f"silo 'a'.*{said}") as error:
        Silo("a", x, torch.zeros(6))
    assert "\n" not in str(error.value)


def test_silos_and_the_test_set_must_have_the_same_inputs() -> None:
    first = Silo("a", {"image": IMAGE, "age": AGE}, torch.zeros(6))
    for other in ({"image": IMAGE}, {"picture": IMAGE, "age": AGE}, IMAGE, (IMAGE, AGE)):
        with pytest.raises(DataError, match=r"silo 'b' has inputs of shape .* but silo 'a' has image"):
            Federation("f", [first, Silo("b", other, torch.zeros(6))])
        with pytest.raises(DataError, match="the test set has inputs of shape"):
            Federation("f", [first], other, torch.zeros(6))
    with pytest.raises(DataError, match="2 columns are named, but inputs have shape image"):
        Federation("f", [first], columns=["image", "age"])


def test_a_digest_covers_the_names_and_numbers_of_all_inputs() -> None:
    x = {"image": IMAGE, "age": AGE}
    variants = [x, {"image": IMAGE, "years": AGE}, {"image": IMAGE, "age": AGE + 1}, {"image": IMAGE}]
    digests = {silo_digest(Silo("a", variant, torch.zeros(6))) for variant in variants}
    assert len(digests) == len(variants)
    assert digest(Several(x)) == digest(Several({name: one.clone() for name, one in x.items()}))


def test_rows_of_a_silo_in_the_test_set_are_found_with_several_inputs() -> None:
    random = np.random.default_rng(0)
    x = {"image": random.normal(size=(40, 2, 2)), "age": random.normal(size=40)}
    y = np.arange(40) % 2
    report = check_federation(Federation("f", [Silo("a", x, y)], x, y))
    assert "the test set has the same rows as silo 'a'" in report.problems[0]
    raw = {"image": random.integers(0, 256, size=(40, 1, 8, 8)), "age": random.normal(size=40)}
    assert any("255" in note for note in check_federation(Federation("f", [Silo("a", raw, y)])).notes)
