"""The safetensors library reads what is packed; files come back as they were, or were not written."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random

import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load
from torch import Tensor

from fedilc.storage.files import (
    DTYPE_NAMES,
    pack_tensors,
    read_tensors,
    write_atomically,
    write_tensors,
)

SHAPES = st.lists(st.integers(0, 4), max_size=3)
NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20)


@st.composite
def tensors(draw: st.DrawFn) -> dict[str, Tensor]:
    """Tensors of any shape and type, some turned so that their numbers do not lie in a row."""
    found = {}
    for name in draw(st.lists(NAMES.filter(lambda name: name != "__metadata__"), max_size=5, unique=True)):
        shape, dtype = draw(SHAPES), draw(st.sampled_from(list(DTYPE_NAMES)))
        seed = draw(st.integers(0, 1000))
        numbers = torch.randint(0, 2, shape, generator=torch.Generator().manual_seed(seed))
        found[name] = numbers.to(dtype).t() if len(shape) == 2 else numbers.to(dtype)
    return found


@given(tensors(), st.dictionaries(NAMES, NAMES, max_size=3))
def test_the_library_reads_what_was_packed(given: dict[str, Tensor], words: dict[str, str]) -> None:
    body = pack_tensors(given, words)
    found = load(body)
    assert found.keys() == given.keys()
    for name, tensor in given.items():
        assert found[name].dtype == tensor.dtype
        assert torch.equal(found[name], tensor)
    size = int.from_bytes(body[:8], "little")
    assert json.loads(body[8 : 8 + size])["__metadata__"] == words


@given(tensors(), st.randoms(use_true_random=False))
def test_the_order_they_come_in_does_not_matter(given: dict[str, Tensor], random: Random) -> None:
    names = list(given)
    random.shuffle(names)
    assert pack_tensors({name: given[name] for name in names}, {}) == pack_tensors(given, {})


@given(tensors())
def test_every_tensor_begins_at_a_multiple_of_its_width(given: dict[str, Tensor]) -> None:
    body = pack_tensors(given, {})
    size = int.from_bytes(body[:8], "little")
    header = json.loads(body[8 : 8 + size])
    for name, tensor in given.items():
        assert (8 + size + header[name]["data_offsets"][0]) % tensor.element_size() == 0


def test_tensors_and_facts_come_back_as_they_were(tmp_path: Path) -> None:
    tensors = {"a": torch.arange(6.0).reshape(2, 3).T, "b": torch.tensor(3, dtype=torch.int64)}
    write_tensors(tmp_path / "t.safetensors", tensors, {"round": 4})
    found, about = read_tensors(tmp_path / "t.safetensors")
    assert about == {"round": 4}
    assert torch.equal(found["a"], tensors["a"])
    assert torch.equal(found["b"], tensors["b"])


def test_an_atomic_write_leaves_no_other_file(tmp_path: Path) -> None:
    write_atomically(tmp_path / "x", b"one")
    write_atomically(tmp_path / "x", b"two")
    assert [path.name for path in tmp_path.iterdir()] == ["x"]
    assert (tmp_path / "x").read_bytes() == b"two"
