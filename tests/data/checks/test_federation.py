"""What cannot be meant is said before the first round, of files and of tensors, and training goes on."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch
from torch import nn

from fedilc import Federation, Silo, train
from fedilc.config.sources import Files
from fedilc.data.benchmarks.eicu.synthetic import eicu_synthetic
from fedilc.data.checks.federation import check_federation
from fedilc.data.checks.identifiers import tells_rows_apart
from fedilc.errors import ConfigError, DataError, FedILCWarning
from fedilc.training.callbacks import EarlyStopping

QUICK = {"rounds": 1, "learning_rate": 0.1, "algorithm": "fedsgd"}


def examples(seed: int, number: int = 40, width: int = 3) -> tuple[np.ndarray, np.ndarray]:
    x = np.random.default_rng(seed).normal(size=(number, width)).astype(np.float32)
    return x, np.arange(number) % 2


def silo(name: str, seed: int, number: int = 40) -> Silo:
    return Silo(name, *examples(seed, number), *examples(seed + 100, 20))


def notes_of(federation: Federation) -> list[str]:
    report = check_federation(federation)
    assert not report.problems
    return report.notes


@pytest.mark.parametrize("order", ["same", "shuffled"])
def test_train_refuses_a_test_set_that_is_a_silo(order: str) -> None:
    a, b = silo("a", 1), silo("b", 2)
    rows = torch.arange(40) if order == "same" else torch.randperm(40, generator=torch.manual_seed(0))
    federation = Federation("f", [a, b], b.x[rows], b.y[rows])
    with pytest.raises(DataError, match="the test set has the same rows as silo 'b'"):
        train(federation, nn.Linear(3, 1), **QUICK)


def test_train_notes_rows_that_are_in_two_places_with_counts_and_names() -> None:
    a, b = silo("a", 1), silo("b", 2)
    x, y = examples(3)
    x[:5], y[:5] = a.x[:5], a.y[:5]
    b.x[:4], b.y[:4] = a.x[-4:], a.y[-4:]
    assert b.x_val is not None
    assert b.y_val is not None
    b.x_val[:2], b.y_val[:2] = b.x[10:12], b.y[10:12]
    with pytest.warns(FedILCWarning) as said:
        train(Federation("f", [a, b], x, y), nn.Linear(3, 1), **QUICK)
    assert [str(note.message).split(";")[0] for note in said] == [
        "5 of the 40 rows of the test set are also in 'a' (5)",
        "4 rows are in more than one silo: 'a' (4), 'b' (4)",
        "2 of the 40 validation rows are also training rows of their silo: 'b' (2)",
    ]


def test_the_same_inputs_with_other_labels_are_noted() -> None:
    x, y = examples(1)
    with pytest.warns(FedILCWarning, match=r"40 of the 40 rows of the test set are also in 'a' \(40\)"):
        train(Federation("f", [Silo("a", x, y)], x, 1 - y), nn.Linear(3, 1), **QUICK)


def test_rows_that_are_equal_by_chance_are_not_noted() -> None:
    random = np.random.default_rng(0)
    silos = [Silo(name, random.integers(0, 2, (60, 4)), np.arange(60) % 2) for name in "abc"]
    assert notes_of(Federation("f", silos, random.integers(0, 2, (50, 4)), np.arange(50) % 2)) == []


def test_the_made_up_patients_of_the_package_are_not_noted_although_some_are_repeated() -> None:
    assert notes_of(eicu_synthetic(0, silos=4)) == []


def test_ten_times_the_silos_take_about_ten_times_the_work() -> None:
    """Comparing every silo with every other would take a hundred times as much."""
    random = np.random.default_rng(0)

    def work(count: int) -> float:
        x = random.normal(size=(count, 20, 10)).astype(np.float32)
        silos = [
            Silo(f"s{i}", rows[:15], np.arange(15) % 2, rows[15:], np.arange(5) % 2)
            for i, rows in enumerate(x)
        ]
        federation = Federation("many", silos, random.normal(size=(400, 10)), np.arange(400) % 2)
        started = time.process_time()
        assert notes_of(federation) == []
        return time.process_time() - started

    work(10)
    assert work(3000) < 40 * work(300)


Change = Callable[[np.ndarray, np.ndarray], object]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda x, _: np.copyto(x[:, 1], np.arange(len(x))), "column 1 differs in every row (everywhere)"),
        (
            lambda x, _: np.copyto(x[:, 1], np.random.default_rng(5).permutation(len(x)) + 5),
            "column 1 differs",
        ),
        (lambda x, _: np.copyto(x[:, 2], x[:, 2] * 1e4), "column 2 is up to"),
        (lambda x, _: x.__setitem__((slice(3), 0), -999), "-999 probably means a missing value in column 0"),
        (lambda x, _: x.__setitem__((slice(3), 0), 999), "999 probably means a missing value in column 0"),
        (
            lambda x, y: np.copyto(x[:, 2], 1 - y),
            "column 2 is the label itself, or determines it exactly",
        ),
        (
            lambda _, y: y.__imul__(0),
            "silos 'a' (label 0), 'b' (label 0) have training examples of one class",
        ),
    ],
    ids=["counter", "shuffled counter", "scales", "-999", "999", "label", "one class"],
)
def test_what_cannot_be_meant_is_noted_with_column_and_silo_and_trained(change: Change, said: str) -> None:
    silos = []
    for seed, name in enumerate("ab"):
        x, y = examples(seed)
        change(x, y)
        silos.append(Silo(name, x, y))
    with pytest.warns(FedILCWarning) as notes:
        result = train(Federation("f", silos), nn.Linear(3, 1), **QUICK)
    assert any(str(note.message).startswith(said) for note in notes), [str(note.message) for note in notes]
    assert len(result.history) == 1


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (np.random.default_rng(0).normal(size=200), False),
        (np.round(np.random.default_rng(0).normal(250_000, 60_000, size=100)), False),
        (np.random.default_rng(0).integers(0, 90, 200).astype(float), False),
        (np.random.default_rng(0).permutation(200).astype(float), True),
        (np.cumsum(np.random.default_rng(0).integers(1, 1000, 200)).astype(float), True),
    ],
    ids=["measurements", "whole measurements", "ages", "shuffled numbers", "rising numbers"],
)
def test_measurements_are_no_identifiers(values: np.ndarray, expected: bool) -> None:
    assert tells_rows_apart(values) is expected


def test_temperatures_below_zero_are_no_missing_codes() -> None:
    x, y = examples(0)
    x[:, 0] = np.random.default_rng(1).integers(-20, 20, len(x))
    x[:4, 0] = -9
    assert notes_of(Federation("f", [Silo("a", x, y)])) == []


def test_a_silo_with_one_example_is_named() -> None:
    federation = Federation("f", [silo("a", 1), Silo("b", [[1.0, 2.0, 3.0]], [1])])
    assert notes_of(federation)[0].startswith("silo 'b' has one training example only")


@pytest.mark.parametrize(
    ("labels", "said"),
    [((0, 2), "no silo has an example of class 1:"), ((0, 5), "no silo has an example of class 1, 2, 3, 4:")],
)
def test_classes_that_nobody_has_are_named(labels: tuple[int, int], said: str) -> None:
    x, y = examples(0)
    federation = Federation("f", [Silo("a", x, np.array(labels)[y])], loss="multiclass")
    assert [note for note in notes_of(federation) if note.startswith(said)]


def test_pixels_from_0_to_255_are_noted() -> None:
    x = np.random.default_rng(0).integers(0, 256, (12, 1, 6, 6)).astype(np.float32)
    assert "divide them by 255" in notes_of(Federation("f", [Silo("a", x, np.arange(12) % 2)]))[0]
    assert notes_of(Federation("f", [Silo("a", x / 255, np.arange(12) % 2)])) == []


def test_pixels_that_were_resized_or_have_sixteen_bits_are_noted() -> None:
    random = np.random.default_rng(0)
    x, y = random.uniform(0, 255, (12, 1, 6, 6)).astype(np.float32), np.arange(12) % 2
    assert "divide them by 255" in notes_of(Federation("f", [Silo("a", x, y)]))[0]
    assert "divide them by 65535" in notes_of(Federation("f", [Silo("a", 250 * x, y)]))[0]


def test_a_label_in_other_numbers_is_noted() -> None:
    x, y = examples(0)
    x[:, 2] = 200 * y - 100
    assert "determines it exactly" in notes_of(Federation("f", [Silo("a", x, y)]))[0]


def test_a_code_that_is_plain_in_one_silo_is_counted_in_all() -> None:
    silos = []
    for seed, name in enumerate("abc"):
        x, y = examples(seed)
        x[:, 0] = 999 if name == "c" else np.abs(x[:, 0])
        x[:4, 0] = 999
        silos.append(Silo(name, x, y))
    note = next(note for note in notes_of(Federation("f", silos)) if "999 probably" in note)
    assert f"'a' (4 times), 'b' (4 times), 'c' ({len(x)} times)" in note


def test_a_frequent_code_near_the_other_values_is_noted() -> None:
    x, y = examples(0)
    x[: len(x) // 4, 0] = -9
    assert "-9 probably means a missing value in column 0" in notes_of(Federation("f", [Silo("a", x, y)]))[0]


def test_a_test_set_that_lies_almost_wholly_in_the_silos_is_refused() -> None:
    silos = [Silo(name, *examples(seed)) for seed, name in enumerate("ab")]
    x, y = (torch.cat(parts)[1:] for parts in zip(*((silo.x, silo.y) for silo in silos), strict=True))
    with pytest.raises(DataError, match="rows of the test set are also in"):
        train(Federation("f", silos, x, y), torch.nn.Linear(3, 1), rounds=1, learning_rate=0.1)


def test_a_column_that_is_zero_throughout_one_silo_is_noted() -> None:
    silos = []
    for seed, name in enumerate(("cleveland", "switzerland")):
        x, y = examples(seed)
        x[:, 0] = 0 if seed else np.abs(x[:, 0]) * 40 + 160
        silos.append(Silo(name, x, y))
    (note,) = notes_of(Federation("f", silos))
    assert note.startswith("column 0 is 0 in every row of 'switzerland' and up to")


def write(folder: Path, name: str, seed: int, **more: object) -> None:
    x, y = examples(seed)
    frame = pl.DataFrame({"ph": x[:, 0], "sodium": x[:, 1], "label": y})
    frame.with_columns(**{key: pl.Series(value) for key, value in more.items()}).write_csv(
        folder / f"{name}.csv"
    )


@pytest.mark.parametrize("in_memory", [True, False])
def test_notes_on_files_name_their_columns(tmp_path: Path, in_memory: bool) -> None:
    for seed, name in enumerate("ab"):
        numbers = np.arange(900_000_000 + seed * 1000, 900_000_040 + seed * 1000)
        write(tmp_path, name, seed, stay=np.random.default_rng(seed).permutation(numbers))
    with pytest.warns(FedILCWarning) as said:
        Files(silos="*.csv", in_memory=in_memory).store(0, tmp_path)
    assert [str(note.message)[:36] for note in said] == [
        "column 'stay' differs in every row (",
        "column 'stay' is up to 9.00001e+08 (",
    ]


def test_clean_files_are_read_without_a_note(tmp_path: Path) -> None:
    for seed, name in enumerate("abc"):
        write(tmp_path, name, seed)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Files(silos="[ab].csv", test="c.csv").store(0, tmp_path)


def test_a_sentence_that_holds_for_many_files_is_said_once(tmp_path: Path) -> None:
    for name in "abcdef":
        (tmp_path / f"{name}.csv").write_text("x;label\n1,5;0\nred;1\n")
    with pytest.raises(DataError) as refused:
        Files(silos="*.csv").store(0, tmp_path)
    assert str(refused.value).count("holds text, not numbers ('1,5' in line 2)") == 1
    assert str(refused.value).endswith("d.csv and 2 more")


def test_a_label_column_of_numbers_of_patients_is_refused_before_a_network_is_made(tmp_path: Path) -> None:
    write(tmp_path, "a", 1, label=np.arange(40) * 1_000_003)
    with pytest.raises(DataError, match=r"make 39000117 logits, and only 40 classes occur"):
        Files(silos="*.csv", loss="multiclass", validation_share=0.0).store(0, tmp_path)


@pytest.mark.parametrize(
    ("key", "said"),
    [
        ("validation_loss", "'validation_loss', which no round of this run records; hold out examples"),
        ("test_accuracy", "'test_accuracy', which no round of this run records; give a test set"),
        ("val_loss", "'val_loss', which no round of this run records; records have train_loss"),
    ],
)
def test_early_stopping_on_a_number_that_never_comes_is_an_error(tmp_path: Path, key: str, said: str) -> None:
    federation = Federation("f", [Silo("a", *examples(1)), Silo("b", *examples(2))])
    with pytest.raises(ConfigError, match=said):
        train(federation, nn.Linear(3, 1), callbacks=[EarlyStopping(2, key)], out=tmp_path / "run", **QUICK)
    assert key == "val_loss" or not (tmp_path / "run").exists()


def test_early_stopping_with_validation_data_stops() -> None:
    federation = Federation("f", [silo("a", 1), silo("b", 2)])
    options = QUICK | {"rounds": 50, "learning_rate": 3.0}
    assert train(federation, nn.Linear(3, 1), callbacks=[EarlyStopping(2)], **options).stopped


class TwoInputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 1)

    def forward(self, x: torch.Tensor, age: torch.Tensor) -> torch.Tensor:
        return self.layer(x) + age


def test_a_model_with_two_inputs_is_refused_in_one_sentence() -> None:
    with pytest.raises(ConfigError, match="a model has one input: give one tensor, and let forward"):
        train(Federation("f", [silo("a", 1)]), TwoInputs(), **QUICK)


@pytest.mark.parametrize("kind", [list, tuple, lambda parts: dict(zip("xy", parts, strict=True))])
def test_several_inputs_are_refused_in_one_sentence(kind: Callable[[list[torch.Tensor]], object]) -> None:
    with pytest.raises(
        DataError, match=r"silo 'a': x is a .* of 2 arrays .*; a model has one input, so give one"
    ):
        Silo("a", kind([torch.zeros(4, 2), torch.zeros(4, 3)]), [0, 1, 0, 1])


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


class Raises(TwoInputs):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        raise KeyError("age")


def test_whatever_a_network_raises_on_its_inputs_is_one_sentence() -> None:
    with pytest.raises(ConfigError, match=r"inputs of shape \(3,\) .*: it raised KeyError \('age'\)"):
        train(Federation("f", [silo("a", 1)]), Raises(), **QUICK)


def test_images_with_channels_last_are_told_so() -> None:
    from fedilc.models import build_model

    with pytest.raises(
        ConfigError, match=r"not \(32, 32, 3\): their channels come last, so give x.transpose"
    ):
        build_model("cnn", (32, 32, 3), 10, 0)
    silos = [Silo("a", torch.rand(4, 16, 16, 3), [0, 1, 0, 1])]
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(4 * 14 * 14, 1))
    with pytest.raises(ConfigError, match="their channels seem to come last"):
        train(Federation("f", silos), model, **QUICK)
