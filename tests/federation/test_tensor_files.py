"""Files of tensors come back as they were; a write is complete or does not happen."""

from __future__ import annotations

from pathlib import Path

import torch

from fedilc.federation.tensor_files import read_tensors, write_atomically, write_tensors


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
