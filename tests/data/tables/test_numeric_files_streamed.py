"""Silos that stay in their files give the same run as silos in memory, one at a time."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch
from torch import Tensor, nn

from fedilc import train
from fedilc.config import read_experiment
from fedilc.data import Silo
from fedilc.data.sources import Files
from fedilc.data.tables import silo_files as numeric_files
from fedilc.errors import CheckpointError, DataError, FedILCWarning

NAMES = ("a", "b", "c")


def write(folder: Path, name: str, classes: int = 2, **columns: float) -> None:
    random = np.random.default_rng(sum(map(ord, name)))
    frame = {"one": random.normal(size=12), "two": random.normal(size=12)}
    frame |= {column: np.full(12, value) for column, value in columns.items()}
    pl.DataFrame(frame | {"label": np.arange(12) % classes}).write_csv(folder / f"{name}.csv")


def source(**more: object) -> Files:
    return Files(silos="[abc].csv", test="test.csv", in_memory=False, **more)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in (*NAMES, "test"):
        write(tmp_path, name)
    return tmp_path


def test_streamed_silos_are_those_in_memory(folder: Path) -> None:
    store, federation = source().store(5, folder), source().build(5, folder)
    assert not store.resident
    assert store.sizes == {silo.name: len(silo) for silo in federation.silos}
    assert (store.inputs, store.outputs, store.name) == ((2,), 1, federation.name)
    assert torch.equal(store.x_test, federation.x_test)
    for silo in federation.silos:
        opened = store.open(silo.name)
        for part in ("x", "y", "x_val", "y_val"):
            assert torch.equal(getattr(opened, part), getattr(silo, part))


def test_streamed_class_numbers_from_one_are_those_in_memory(tmp_path: Path) -> None:
    for name in (*NAMES, "test"):
        write(tmp_path, name, classes=3)
        text = pl.read_csv(tmp_path / f"{name}.csv").with_columns(pl.col("label") + 1)
        text.write_csv(tmp_path / f"{name}.csv")
    files = source(loss="multiclass")
    with pytest.warns(FedILCWarning, match="the labels 1 to 3 are taken as the classes 0 to 2"):
        store = files.store(5, tmp_path)
    with pytest.warns(FedILCWarning, match="the labels 1 to 3 are taken as the classes 0 to 2"):
        federation = files.build(5, tmp_path)
    assert store.outputs == federation.outputs == 3
    assert torch.equal(store.y_test, federation.y_test)
    for silo in federation.silos:
        opened = store.open(silo.name)
        assert torch.equal(opened.y, silo.y)
        assert torch.equal(opened.y_val, silo.y_val)


def test_streamed_quantities_are_those_in_memory_and_hold_examples_out(tmp_path: Path) -> None:
    for name in (*NAMES, "test"):
        write(tmp_path, name)
        frame = pl.read_csv(tmp_path / f"{name}.csv")
        frame.with_columns(label=2 * pl.col("one") + 0.5).write_csv(tmp_path / f"{name}.csv")
    store, federation = (
        make(5, tmp_path) for f in [source(loss="regression")] for make in (f.store, f.build)
    )
    assert store.outputs == federation.outputs == 1
    for silo in federation.silos:
        opened = store.open(silo.name)
        assert (len(silo.y), len(silo.y_val)) == (8, 4)
        assert torch.equal(opened.y, silo.y)
        assert torch.equal(opened.y_val, silo.y_val)


@pytest.mark.parametrize("algorithm", ["fishr-inter-geo", "fishr-intra-geo"])
def test_a_run_over_streamed_silos_has_the_bits_of_one_in_memory(folder: Path, algorithm: str) -> None:
    settings = {"rounds": 4, "learning_rate": 0.1, "environment_size": 3}
    torch.manual_seed(0)
    model = nn.Linear(2, 1)
    one = train(source().store(0, folder), model, algorithm, **settings)
    other = train(source().build(0, folder), model, algorithm, **settings)
    assert one.history == other.history
    for found, expected in zip(one.model.parameters(), other.model.parameters(), strict=True):
        assert torch.equal(found, expected)


def test_a_run_over_files_that_were_changed_since_is_not_resumed(folder: Path, tmp_path: Path) -> None:
    model = nn.Linear(2, 1)
    settings = {"learning_rate": 0.1, "out": tmp_path / "run"}
    train(source().store(0, folder), model, rounds=1, **settings)
    table = pl.read_csv(folder / "b.csv")
    table.with_columns(one=table["one"].reverse()).write_csv(folder / "b.csv")
    with pytest.raises(CheckpointError, match=r"the data of silo .b. differ from those of the run"):
        train(source().store(0, folder), model, rounds=2, resume=True, **settings)


def test_no_more_than_one_silo_is_in_memory(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[weakref.ref[Tensor]] = []
    most = 0
    made = numeric_files.split_silo

    def counted(*arguments: object) -> Silo:
        nonlocal most
        if any(held() is not None for held in opened):
            gc.collect()
        most = max(most, 1 + sum(held() is not None for held in opened))
        silo = made(*arguments)
        opened.append(weakref.ref(silo.x))
        return silo

    store = source().store(0, folder)
    monkeypatch.setattr(numeric_files, "split_silo", counted)
    train(store, nn.Linear(2, 1), "fishr-inter-geo", rounds=2, learning_rate=0.1)
    assert len(opened) > 3 * len(NAMES)
    assert most == 1


def test_class_numbers_are_counted_over_all_files(folder: Path) -> None:
    write(folder, "c", classes=4)
    store = source(loss="multiclass").store(0, folder)
    assert store.outputs == source(loss="multiclass").build(0, folder).outputs == 4


def test_a_class_that_only_validation_has_is_named(folder: Path) -> None:
    write(folder, "b", classes=3)
    frame = pl.read_csv(folder / "b.csv").with_columns(
        pl.Series("label", [7 if i == 0 else i % 2 for i in range(12)])
    )
    frame.write_csv(folder / "b.csv")
    given = source(loss="multiclass", validation_share=0.9)
    with pytest.raises(DataError, match=r"silo 'b' has the label 7, but the model has 2 logits"):
        given.store(0, folder)


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        ({"three": 1.0}, r"c and a differ: c also has three; give all files the same columns"),
        ({"one": float("nan")}, r"column 'one' holds a NaN"),
    ],
)
def test_what_is_wrong_with_any_file_is_said_before_the_first_round(
    folder: Path, broken: dict[str, float], said: str
) -> None:
    write(folder, "c", **broken)
    with pytest.raises(DataError, match=said):
        source().store(0, folder)


def test_images_of_another_size_are_named(folder: Path) -> None:
    for name, side in (("a", 2), ("b", 3)):
        np.savez(folder / f"{name}.npz", x=np.zeros((4, 1, side, side)), y=np.array([0, 1, 0, 1]))
    given = Files(silos="*.npz", in_memory=False)
    with pytest.raises(
        DataError, match=r"silo 'b' has inputs of shape \(1, 3, 3\) but silo 'a' has \(1, 2, 2\)"
    ):
        given.store(0, folder)


def test_an_experiment_may_ask_for_it(folder: Path) -> None:
    (folder / "mine.toml").write_text(
        'rounds = 1\nlearning_rate = 0.1\n[data]\nsource = "files"\nsilos = "[abc].csv"\nin_memory = false\n'
    )
    settings, home = read_experiment(str(folder / "mine.toml"))
    assert not settings.data.store(0, home).resident
