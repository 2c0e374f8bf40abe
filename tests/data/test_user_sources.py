"""The user's own data as sources: which settings they take, and where files are looked for."""

from __future__ import annotations

from pathlib import Path

import pytest
from command import Refusal, fedilc

from fedilc.config import parse_experiment, read_experiment, validated
from fedilc.data.sources import Images, Remote, RemoteTables, Source, Tables
from fedilc.errors import ConfigError, DataError, FedILCWarning

FILES = """
rounds = 1
learning_rate = 0.1
[data]
source = "files"
silos = "silos/*.csv"
test = "far/test.csv"
loss = "multiclass"
[model]
hidden = [3]
"""


def test_data_files_are_found_beside_the_experiment_wherever_the_command_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for place in ("silos/a.csv", "silos/b.csv", "far/test.csv"):
        path = tmp_path / "study" / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x,label\n" + f"{len(place)},0\n2.5,1\n3.5,2\n" * 4)
    (tmp_path / "study" / "study.toml").write_text(FILES)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    settings, folder = read_experiment("../study/study.toml")
    federation = settings.data.build(0, folder)
    assert [silo.name for silo in federation.silos] == ["a", "b"]
    assert federation.x_test is not None
    network = settings.model.build(federation, 0)
    assert network(federation.x_test).shape == (12, 3)


@pytest.mark.parametrize("silos", ["", 3, ["a.csv"], {"a": 3}, {"a": ""}], ids=str)
def test_silos_that_are_no_pattern_and_no_table_of_files_are_refused(silos: object) -> None:
    values = {"rounds": 1, "learning_rate": 0.1, "data": {"source": "files", "silos": silos}}
    with pytest.raises(
        ConfigError, match=r"data.silos=.* is not valid: give a pattern like .* or a table of"
    ):
        parse_experiment(values)


TABLES = {"silos": ["a", "b"], "label": "died"}
SHAPES = {"silos": ["a", "b"], "inputs": [3]}


@pytest.mark.parametrize(
    ("source", "settings", "sentence"),
    [
        (Remote, SHAPES | {"silos": ["a", "a"]}, "data.silos=.* two silos have the same name"),
        (RemoteTables, TABLES | {"silos": ["a", "a"]}, "data.silos=.* two silos have the same name"),
        (RemoteTables, TABLES | {"silos": []}, "data.silos=.* at least 1 item"),
        (Remote, SHAPES | {"columns": ["x"]}, r"1 columns are named, but inputs is \[3\]"),
        (Remote, SHAPES | {"loss": "multiclass"}, "loss = 'multiclass' needs classes"),
        (Remote, SHAPES | {"inputs": [0]}, "data.inputs.0=0 is not valid"),
        (Remote, SHAPES | {"inputs": {"age": [2]}, "test": "t.csv"}, "a test file holds one input"),
        (Images, {"folder": "x", "image_size": 5000}, "data.image_size=5000 is not valid"),
        (Tables, {"files": "x.csv"}, "the key 'data.label' is missing; add it"),
    ],
)
def test_a_setting_that_makes_no_sense_is_one_sentence(
    source: type[Source], settings: dict[str, object], sentence: str
) -> None:
    with pytest.raises(ConfigError, match=sentence) as refused:
        validated(source, settings, "data")
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("source", [Remote(**SHAPES), RemoteTables(**TABLES)], ids=lambda s: s.source)
def test_silos_that_are_elsewhere_cannot_be_built_here(source: Source) -> None:
    with pytest.raises(ConfigError, match="are elsewhere; start it with `fedilc serve`"):
        source.build(0, Path())


def test_tables_are_found_beside_the_experiment_and_its_notes_are_warnings(tmp_path: Path) -> None:
    rows = "".join(f"{name},{age // 2},{age % 2}\n" for name in "ab" for age in range(30, 60))
    (tmp_path / "all.csv").write_text(f"site,age,died\n{rows}c,,\n")
    source = Tables(files="all.csv", label="died", silo_column="site", test="b")
    with pytest.raises(DataError, match="silo 'c' has no row with a label"):
        source.build(0, tmp_path)
    (tmp_path / "all.csv").write_text(f"site,age,died\n{rows}a,,1\n,40,0\n")
    with pytest.warns(FedILCWarning, match="has 1 rows without a silo"):
        store = source.store(0, tmp_path)
    assert (store.silos, store.name, store.inputs) == (("a",), tmp_path.name, (2,))
    assert store.x_test is not None
    assert len(store.x_test) == 30


def test_a_copied_table_is_refused_unless_it_is_excluded(tmp_path: Path) -> None:
    rows = "".join(f"{age // 2},{age % 2}\n" for age in range(30, 60))
    for name in "abc":
        (tmp_path / f"{name}.csv").write_text(f"age,died\n{rows}" + "71,1\n" * (name == "c"))
    with pytest.raises(DataError, match=r"silo 'b' is a copy of 'a': .* use `exclude_sites = \[\"b\"\]`"):
        Tables(files="*.csv", label="died", keep=["age"]).build(0, tmp_path)
    few = Tables(files="*.csv", label="died", exclude_sites=["b"], keep=["age"], columns=["age"])
    assert [silo.name for silo in few.build(0, tmp_path).silos] == ["a", "c"]


def test_a_folder_of_pictures_that_is_nowhere_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"is not a folder; correct data\.folder"):
        Images(folder="gone", image_size=8).build(0, tmp_path)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("place") / "one"
    fedilc("run", "color-digits", "-a", "fedsgd", "--rounds", 1, "--set", "model.hidden=[8]", "--out", place)
    return place


def test_silos_as_an_empty_table_are_refused_in_one_sentence(refusal: Refusal) -> None:
    assert "data.silos" in refusal("run", "--set", 'data={source="files",silos={}}')
