"""Silos from files: what is read is what was written, and each file that cannot be used is named."""

from __future__ import annotations

import re
import subprocess
import sys
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from small_silos import examples

from fedilc import Federation
from fedilc.data.sources import Files
from fedilc.data.tables.file_reader import read_examples
from fedilc.errors import DataError, FedILCWarning


def write(path: Path, columns: Mapping[str, Any], label: str = "label") -> Path:
    """A table as CSV, Parquet or NPZ, as the path's suffix says."""
    path.parent.mkdir(parents=True, exist_ok=True)
    frame = pl.DataFrame(columns)
    if path.suffix == ".npz":
        np.savez(path, **{"x": frame.drop(label).to_numpy(), label: frame[label].to_numpy()})
    elif path.suffix == ".parquet":
        frame.write_parquet(path)
    else:
        frame.write_csv(path)
    return path


def columns(number: int = 20, classes: int = 2, seed: int = 3) -> dict[str, Any]:
    random = np.random.default_rng(seed)
    return {
        "age": random.integers(20, 90, number),
        "label": np.arange(number) % classes,
        "dose": random.normal(size=number).astype(np.float32),
    }


def federation(folder: Path, silos: str | dict[str, str] = "*.csv", **more: Any) -> Federation:
    settings = {"label": "label", "test": None, "loss": "binary", "validation_share": 0.3} | more
    seed = settings.pop("seed", 0)
    found = Files(silos=silos, **settings).examine(seed, folder)
    found.report.require()
    return found.make()


@pytest.mark.parametrize("suffix", ["csv", "parquet", "npz"])
def test_a_file_gives_back_the_inputs_and_labels_that_were_written(tmp_path: Path, suffix: str) -> None:
    written = columns()
    table = read_examples(write(tmp_path / f"clinic.{suffix}", written), "label")
    assert np.array_equal(table.x, np.stack([written["age"], written["dose"]], 1).astype(np.float32))
    assert table.y.tolist() == written["label"].tolist()
    assert table.x.dtype == np.float32


def test_the_label_may_be_any_column(tmp_path: Path) -> None:
    table = read_examples(write(tmp_path / "clinic.csv", columns(), "age"), "age")
    assert table.columns == ("label", "dose")
    assert table.y.tolist() == columns()["age"].tolist()


def test_truth_values_become_zero_and_one(tmp_path: Path) -> None:
    path = tmp_path / "clinic.csv"
    path.write_text("smokes,label\ntrue,false\nfalse,true\n")
    table = read_examples(path, "label")
    assert (table.x.tolist(), table.y.tolist()) == ([[1.0], [0.0]], [0.0, 1.0])


def test_an_npz_may_hold_images_and_call_its_labels_y(tmp_path: Path) -> None:
    images = np.random.default_rng(0).normal(size=(6, 3, 4, 4)).astype(np.float32)
    np.savez(tmp_path / "a.npz", x=images, y=np.arange(6) % 2)
    silo = federation(tmp_path, "*.npz", validation_share=0.0).silos[0]
    assert torch.equal(silo.x, torch.from_numpy(images))


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("a.txt", b"x,label\n1,0\n", "a.txt is a text file; if it is a table, rename it to a.csv"),
        ("a.csv", b"", "a.csv .*empty"),
        ("a.csv", b"x,label\n", "a.csv is empty: it holds no example; leave it out or give it data"),
        ("a.csv", b"label\n0\n1\n", "a.csv is empty: it holds no column beside 'label'"),
        (
            "a.csv",
            b"x,y\n1,0\n",
            "a.csv has no column 'label'; name the label's column with `label`, one of x, y$",
        ),
        ("a.csv", b"x,label\nred,0\n", r"a.csv: column 'x' holds text, not numbers \('red' in line 2\)"),
        ("a.csv", b"x,label\n1,yes\n", "a.csv: column 'label' holds text, not numbers"),
        ("a.csv", b"x,label\n1,0\n,1\n,1\n", "a.csv: column 'x' has 2 empty cells"),
        ("a.parquet", b"no parquet", "a.parquet cannot be read: "),
        ("a.npz", b"no numpy", "a.npz cannot be read: it is damaged"),
        ("a.npz", b"", "a.npz cannot be read: it is damaged"),
    ],
)
def test_a_file_that_cannot_be_used_is_named(
    tmp_path: Path, name: str, content: bytes, sentence: str
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=sentence) as refused:
        read_examples(tmp_path / name, "label")
    assert "\n" not in str(refused.value)
    assert "pickle" not in str(refused.value), "nobody is advised to unpickle a file that cannot be read"


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"gone.csv does not exist"):
        read_examples(tmp_path / "gone.csv", "label")


def test_an_npz_without_inputs_or_labels_says_what_it_holds(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", images=np.zeros(3))
    with pytest.raises(DataError, match=r"must hold the arrays 'x' and 'label'; it holds \['images'\]"):
        read_examples(tmp_path / "a.npz", "label")


def test_an_npz_with_python_objects_is_never_unpickled(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.array([{}], dtype=object), y=np.zeros(1))
    with pytest.raises(DataError, match=r"a.npz cannot be read"):
        read_examples(tmp_path / "a.npz", "y")


@pytest.mark.parametrize("kept", [100, -10])
def test_an_npz_that_was_cut_off_is_named(tmp_path: Path, kept: int) -> None:
    path = write(tmp_path / "a.npz", columns())
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(DataError, match=r"a.npz cannot be read: it is damaged"):
        read_examples(path, "label")


def test_a_single_array_that_calls_itself_an_npz_is_named(tmp_path: Path) -> None:
    with (tmp_path / "a.npz").open("wb") as file:
        np.save(file, np.zeros(3))
    with pytest.raises(DataError, match=r"a.npz cannot be read"):
        read_examples(tmp_path / "a.npz", "label")


@pytest.mark.parametrize("labels", [8, 10])
def test_an_npz_with_another_number_of_labels_than_examples_is_named(tmp_path: Path, labels: int) -> None:
    np.savez(tmp_path / "a.npz", x=np.zeros((9, 2)), label=np.arange(labels) % 2)
    with pytest.raises(DataError, match=rf"a.npz: 'label' has shape \({labels},\) but 'x' has 9 examples"):
        read_examples(tmp_path / "a.npz", "label")


def test_the_first_fraction_of_a_csv_may_come_late(tmp_path: Path) -> None:
    whole = "1,0\n2,1\n" * 5000
    (tmp_path / "a.csv").write_text(f"x,label\n{whole}1.5,1\n")
    x = read_examples(tmp_path / "a.csv", "label").x
    assert (len(x), x[-1].item()) == (10_001, 1.5)


def test_reading_files_warns_of_nothing(tmp_path: Path) -> None:
    code = (
        "import sys\nfrom pathlib import Path\nfrom fedilc.data.sources import Files\n"
        "Files(silos='*.*').examine(0, Path(sys.argv[1]))"
    )
    for name in ("a.csv", "b.parquet"):
        write(tmp_path / name, columns())
    done = subprocess.run([sys.executable, "-c", code, tmp_path], capture_output=True, text=True, check=True)
    assert done.stderr == ""


def test_a_pattern_makes_each_file_a_silo_in_the_order_of_names(tmp_path: Path) -> None:
    for name in ("b", "c", "a"):
        write(tmp_path / "silos" / f"{name}.csv", columns())
    found = federation(tmp_path, "silos/*.csv")
    assert [silo.name for silo in found.silos] == ["a", "b", "c"]
    assert [len(silo) for silo in found.silos] == [14, 14, 14]
    assert [len(silo.y_val) for silo in found.silos if silo.y_val is not None] == [6, 6, 6]
    assert found.x_test is None


def test_a_pattern_may_be_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "a.csv", columns())
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    found = federation(tmp_path / "elsewhere", str(tmp_path / "*.csv"))
    assert [silo.name for silo in found.silos] == ["a"]


@pytest.mark.parametrize(
    ("places", "pattern", "names"),
    [
        (["paris/data.csv", "rome/data.csv"], "*/data.csv", ["paris/data", "rome/data"]),
        (["data.csv", "data.parquet"], "data.*", ["data.csv", "data.parquet"]),
        (["paris/data.csv", "rome.csv"], "**/*.csv", ["data", "rome"]),
    ],
    ids=["folders", "formats", "different names"],
)
def test_files_of_one_name_are_silos_of_their_own(
    tmp_path: Path, places: list[str], pattern: str, names: list[str]
) -> None:
    for place in places:
        write(tmp_path / place, columns())
    assert [silo.name for silo in federation(tmp_path, pattern).silos] == names


def test_a_pattern_passes_over_folders(tmp_path: Path) -> None:
    write(tmp_path / "a.csv", columns())
    (tmp_path / "b.csv").mkdir()
    assert [silo.name for silo in federation(tmp_path).silos] == ["a"]


def test_a_link_that_leads_nowhere_is_named_rather_than_passed_over(tmp_path: Path) -> None:
    write(tmp_path / "a.csv", columns())
    (tmp_path / "b.csv").symlink_to(tmp_path / "gone.csv")
    with pytest.raises(DataError, match=r"b.csv does not exist"):
        federation(tmp_path)


def test_a_table_beside_arrays_without_names_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "a.csv", columns())
    write(tmp_path / "b.npz", columns())
    with pytest.raises(DataError, match="a names its columns but b does not"):
        federation(tmp_path, "*")


def test_a_validation_share_that_leaves_nothing_to_train_on_is_named_for_each_silo(tmp_path: Path) -> None:
    for name in "ab":
        write(tmp_path / f"{name}.csv", columns())
    with pytest.raises(
        DataError, match=r"validation_share=0.99 leaves silo 'a', .*leaves silo 'b', which has 20"
    ):
        federation(tmp_path, validation_share=0.99)


def test_silos_may_be_named_and_in_different_formats(tmp_path: Path) -> None:
    write(tmp_path / "one" / "data.csv", columns())
    write(tmp_path / "two" / "data.parquet", columns())
    found = federation(tmp_path, {"paris": "one/data.csv", "rome": "two/data.parquet"})
    assert [silo.name for silo in found.silos] == ["paris", "rome"]


def test_the_test_file_is_read_whole(tmp_path: Path) -> None:
    write(tmp_path / "a.csv", columns())
    outside = columns(seed=9)
    write(tmp_path / "outside" / "far.csv", outside)
    found = federation(tmp_path, test="outside/far.csv")
    assert found.y_test is not None
    assert found.y_test.tolist() == outside["label"].tolist()


def test_class_numbers_make_a_multiclass_federation(tmp_path: Path) -> None:
    write(tmp_path / "a.csv", columns(classes=4))
    assert set(federation(tmp_path, loss="multiclass").silos[0].y.tolist()) == {0, 1, 2, 3}


def test_another_silo_beside_it_does_not_change_a_silos_split(tmp_path: Path) -> None:
    write(tmp_path / "b.csv", columns())
    alone = federation(tmp_path).silos[0]
    write(tmp_path / "a.csv", columns())
    together = federation(tmp_path).silos[1]
    assert torch.equal(alone.x, together.x)
    assert not torch.equal(alone.x, federation(tmp_path, seed=1).silos[1].x)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"weight": [1.0] * 20}, "b and a differ: b also has weight; give all files the same columns"),
        ({"dose": None}, "b and a differ: b lacks dose"),
        ({"dose": [float("nan")] * 20}, r"\bb\b.* NaN"),
        ({"dose": [float("inf")] * 20}, r"\bb\b.* infinity"),
        (
            {"label": [7] * 20},
            r"b.csv: column 'label' holds the label 7; labels must be 0 or 1 .* \(in line 2\)",
        ),
    ],
    ids=["another column", "a column less", "nan", "infinity", "label"],
)
def test_a_silo_that_does_not_fit_the_others_is_named(
    tmp_path: Path, change: dict[str, Any], sentence: str
) -> None:
    write(tmp_path / "a.csv", columns())
    merged = columns() | change
    write(tmp_path / "b.csv", {name: values for name, values in merged.items() if values is not None})
    with pytest.raises(DataError, match=sentence):
        federation(tmp_path)


def test_columns_in_another_order_are_put_in_order(tmp_path: Path) -> None:
    for folder, second in (("same", columns()), ("other", dict(reversed(columns().items())))):
        (tmp_path / folder).mkdir()
        write(tmp_path / folder / "a.csv", columns())
        write(tmp_path / folder / "b.csv", second)
    same, other = (federation(tmp_path / folder).silos[1] for folder in ("same", "other"))
    assert torch.equal(same.x, other.x)
    assert torch.equal(same.y, other.y)


def test_a_test_file_with_other_columns_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "a.csv", columns())
    write(tmp_path / "far.csv", columns() | {"weight": [1.0] * 20})
    with pytest.raises(DataError, match=r"the test set and a differ: the test set also has weight"):
        federation(tmp_path, "a.csv", test="far.csv")


@pytest.mark.parametrize("pattern", ["silos/*.csv", "fol*"], ids=["no folder", "only a folder"])
def test_a_pattern_without_a_match_is_named(tmp_path: Path, pattern: str) -> None:
    (tmp_path / "folder").mkdir()
    write(tmp_path / "a.csv", columns())
    with pytest.raises(DataError, match=rf"no file matches '{re.escape(pattern)}' in .*; correct data.silos"):
        federation(tmp_path, pattern)


def write_silo(folder: Path, name: str, seed: int, **more: object) -> None:
    x, y = examples(seed)
    frame = pl.DataFrame({"ph": x[:, 0], "sodium": x[:, 1], "label": y})
    frame.with_columns(**{key: pl.Series(value) for key, value in more.items()}).write_csv(
        folder / f"{name}.csv"
    )


@pytest.mark.parametrize("in_memory", [True, False])
def test_notes_on_files_name_their_columns(tmp_path: Path, in_memory: bool) -> None:
    for seed, name in enumerate("ab"):
        numbers = np.arange(900_000_000 + seed * 1000, 900_000_040 + seed * 1000)
        write_silo(tmp_path, name, seed, stay=np.random.default_rng(seed).permutation(numbers))
    with pytest.warns(FedILCWarning) as said:
        Files(silos="*.csv", in_memory=in_memory).store(0, tmp_path)
    assert [str(note.message)[:36] for note in said] == [
        "column 'stay' differs in every row (",
        "column 'stay' is up to 9.00001e+08 (",
    ]


def test_clean_files_are_read_without_a_note(tmp_path: Path) -> None:
    for seed, name in enumerate("abc"):
        write_silo(tmp_path, name, seed)
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
    write_silo(tmp_path, "a", 1, label=np.arange(40) * 1_000_003)
    with pytest.raises(DataError, match=r"make 39000117 logits, but only 40 classes occur"):
        Files(silos="*.csv", loss="multiclass", validation_share=0.0).store(0, tmp_path)
