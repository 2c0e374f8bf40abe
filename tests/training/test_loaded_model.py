"""A trained model on new rows: the same numbers as in training, whatever kind of table they come in."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from command import Refusal
from scipy.special import expit

import fedilc
from fedilc.data.tables.prediction_rows import preprocessed
from fedilc.data.tables.silo_tables import read_tables, tables_of
from fedilc.data.tables.table_settings import TableSettings
from fedilc.errors import CheckpointError, ConfigError, DataError, FedILCWarning
from fedilc.models import build_model
from fedilc.storage.files import read_tensors, with_digest, write_tensors
from fedilc.storage.run_folder import RunFolder, examine
from fedilc.training.loaded_model import LoadedModel, export_model


def patients(rows: int, seed: int) -> pl.DataFrame:
    random = np.random.default_rng(seed)
    age = random.normal(60, 10, rows)
    sex = random.choice(["m", "f"], rows)
    risk = (age - 60) / 10 + (sex == "m") + random.normal(size=rows)
    gaps = random.random(rows) < 0.2
    return pl.DataFrame(
        {
            "age": np.where(gaps, np.nan, age),
            "sex": sex,
            "died": np.where(risk > 0.5, "yes", "no"),
        }
    )


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of two hospitals, with a third as its test set."""
    frames = {name: patients(60, seed) for seed, name in enumerate(["a", "b", "c"])}
    tables = tables_of(frames, TableSettings(label="died", positive="yes"))
    federation = tables.federation("patients", test="c", seed=0, validation=0.3)
    model = build_model("mlp", federation.inputs, 1, 0, hidden=[4])
    out = tmp_path_factory.mktemp("loaded") / "run"
    named = {"model": {"name": "mlp", "hidden": [4]}}
    fedilc.train(federation, model, "fedsgd", rounds=6, learning_rate=0.05, out=out, settings=named)
    return out


@pytest.fixture(scope="module")
def loaded(run: Path) -> LoadedModel:
    return fedilc.load(run)


def test_a_loaded_model_scores_the_test_set_as_in_training(run: Path, loaded: LoadedModel) -> None:
    record = next(r for r in RunFolder(run).history() if r["round"] == loaded.round)
    y, logits = loaded.labelled(patients(60, 2))
    losses = np.logaddexp(0, (1 - 2 * y) * logits[:, 0])
    assert losses.mean() == pytest.approx(record["test_loss"], abs=1e-6)
    assert loaded.classes == ("no", "yes")
    chance = loaded.predict_proba(patients(60, 2))
    np.testing.assert_allclose(chance[:, 1], expit(logits[:, 0]))
    np.testing.assert_allclose(chance.sum(1), 1)
    assert set(loaded.predict(patients(60, 2))) <= {"no", "yes"}


def test_every_kind_of_table_gives_the_same_scores(tmp_path: Path, loaded: LoadedModel) -> None:
    frame = patients(20, 9).drop("died")
    wanted = loaded.predict_proba(frame)
    frame.write_csv(tmp_path / "new.csv")
    frame.write_parquet(tmp_path / "new.parquet")
    for table in (tmp_path / "new.csv", str(tmp_path / "new.parquet"), frame.to_dict()):
        np.testing.assert_array_equal(loaded.predict_proba(table), wanted)
    np.testing.assert_array_equal(loaded.predict_proba(loaded.transform(frame)), wanted)


def test_a_data_frame_of_pandas_gives_the_same_scores(loaded: LoadedModel) -> None:
    pandas = pytest.importorskip("pandas", reason="pandas is not installed: pip install pandas")
    frame = patients(20, 9)
    other = pandas.DataFrame({"sex": frame["sex"].to_list(), "age": frame["age"].to_numpy()})
    np.testing.assert_array_equal(loaded.predict_proba(other), loaded.predict_proba(frame))


def test_gaps_of_pandas_are_missing_values(loaded: LoadedModel) -> None:
    pandas = pytest.importorskip("pandas", reason="pandas is not installed: pip install pandas")
    wanted = loaded.predict_proba({"age": [None, 61.0], "sex": ["m", None]})
    for gap in (None, float("nan"), pandas.NA):
        frame = pandas.DataFrame({"age": [gap, 61.0], "sex": ["m", gap]})
        np.testing.assert_array_equal(loaded.predict_proba(frame), wanted)
    twice = pandas.DataFrame([[61.0, 60.0, "m"]], columns=["age", "age", "sex"])
    with pytest.raises(DataError, match="the table has two columns 'age'"):
        loaded.predict_proba(twice)


def test_an_array_has_the_columns_of_training_in_order(loaded: LoadedModel) -> None:
    frame = patients(20, 9)
    values = frame.select("age", "sex").to_numpy()
    np.testing.assert_array_equal(loaded.predict_proba(values), loaded.predict_proba(frame))
    np.testing.assert_array_equal(loaded.predict_proba(values.tolist()), loaded.predict_proba(frame))
    with pytest.raises(DataError, match=r"rows of shape \(3,\), .* columns age, sex; give these 2 in"):
        loaded.predict_proba(np.zeros((2, 3)))
    with pytest.raises(DataError, match="the array has no labels"):
        loaded.labelled(values)


def test_arrays_of_a_run_with_preprocessing_are_preprocessed(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    for name in ("a", "b", "c"):
        x = random.normal(100, 20, (40, 3))
        x[:, 1] = 7.0
        np.savez(tmp_path / f"{name}.npz", x=x.astype(np.float32), y=(x[:, 0] > 100).astype(int) + 1)
    tables = read_tables([tmp_path / f"{name}.npz" for name in "abc"], TableSettings(label="y", drop=["x1"]))
    federation = tables.federation("arrays", test="c", seed=0, validation=0.3)
    model = build_model("mlp", federation.inputs, 1, 0, hidden=[4])
    named = {"model": {"name": "mlp", "hidden": [4]}}
    out = tmp_path / "run"
    fedilc.train(federation, model, "fedsgd", rounds=3, learning_rate=0.05, out=out, settings=named)
    loaded = fedilc.load(out)
    y, logits = loaded.labelled(tmp_path / "c.npz")
    record = next(r for r in RunFolder(out).history() if r["round"] == loaded.round)
    losses = np.logaddexp(0, (1 - 2 * y) * logits[:, 0])
    assert losses.mean() == pytest.approx(record["test_loss"], abs=1e-6)
    with np.load(tmp_path / "c.npz") as arrays:
        np.testing.assert_array_equal(loaded.logits(arrays["x"]), logits)
        np.testing.assert_array_equal(loaded.logits(arrays["x"][:, [0, 2]]), logits)


def test_labels_from_one_on_are_the_names_of_the_classes(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(0)

    def examples(count: int) -> tuple[torch.Tensor, torch.Tensor]:
        x = torch.randn(count, 2, generator=generator)
        return x, 1 + (x[:, 0] > -0.5).long() + (x[:, 0] > 0.5)

    silos = [fedilc.Silo(name, *examples(40), *examples(20)) for name in "ab"]
    test = examples(60)
    with pytest.warns(FedILCWarning, match="labels 1 to 3 are taken as the classes 0 to 2"):
        federation = fedilc.Federation("grades", silos, *test, "multiclass", ["u", "v"], "grade")
    network = torch.nn.Linear(2, 3)
    fedilc.train(federation, network, "fedsgd", rounds=20, learning_rate=0.1, out=tmp_path / "run")
    loaded = fedilc.load(tmp_path / "run", model=network)
    table = {"u": test[0][:, 0].numpy(), "v": test[0][:, 1].numpy(), "grade": test[1].numpy()}
    record = next(r for r in RunFolder(tmp_path / "run").history() if r["round"] == loaded.round)
    y, logits = loaded.labelled(table)
    assert np.mean(logits.argmax(1) == y) == pytest.approx(record["test_accuracy"])
    assert np.mean(loaded.predict(table) == test[1].numpy().astype(str)) == pytest.approx(
        record["test_accuracy"]
    )
    with pytest.raises(DataError, match="the table has the label 0, but the model knows 1, 2, 3"):
        loaded.labelled(table | {"grade": test[1].numpy() - 1})


def test_the_criterion_chooses_the_round(run: Path, loaded: LoadedModel) -> None:
    last = fedilc.load(run, criterion="last")
    assert last.round == 6
    assert (last.round == loaded.round) == bool(
        (last.logits(patients(5, 1)) == loaded.logits(patients(5, 1))).all()
    )


def test_a_wrong_column_is_one_sentence(loaded: LoadedModel) -> None:
    frame = patients(5, 1).with_columns(pl.lit("old").alias("age"))
    with pytest.raises(DataError, match=r"column 'age' holds text \('old'\), but the model was trained with"):
        loaded.predict_proba(frame)


def test_a_missing_column_is_one_sentence(loaded: LoadedModel) -> None:
    with pytest.raises(
        DataError, match="has no column 'age', which the model was trained with; did you mean 'ages'"
    ):
        loaded.predict_proba(patients(5, 1).rename({"age": "ages"}))
    with pytest.raises(DataError, match=r"rows of shape \(7,\)"):
        loaded.predict_proba(np.zeros((2, 7)))


def test_a_name_that_was_never_seen_is_noted(loaded: LoadedModel) -> None:
    frame = patients(5, 1).with_columns(pl.lit("x").alias("sex"))
    with pytest.warns(FedILCWarning, match="'x' in column 'sex' did not occur in training"):
        loaded.predict_proba(frame)


def test_a_network_of_ones_own_is_asked_for(tmp_path: Path) -> None:
    x = torch.randn(12, 2, generator=torch.Generator().manual_seed(0))
    federation = fedilc.Federation("own", [fedilc.Silo("a", x, x[:, 0] > 0)], columns=["u", "v"])
    network = torch.nn.Linear(2, 1)
    result = fedilc.train(federation, network, "fedsgd", rounds=2, learning_rate=0.1, out=tmp_path / "r")
    with pytest.raises(ConfigError, match="trained with your own network; pass it with `model`"):
        fedilc.load(tmp_path / "r", "last")
    with pytest.raises(CheckpointError, match="this network does not have"):
        fedilc.load(tmp_path / "r", "last", model=torch.nn.Linear(3, 1))
    found = fedilc.load(tmp_path / "r", "last", model=torch.nn.Linear(2, 1))
    wanted = result.model(x).detach().numpy()
    np.testing.assert_allclose(found.logits({"v": x[:, 1].numpy(), "u": x[:, 0].numpy()}), wanted, rtol=1e-6)
    with pytest.raises(DataError, match=r"column 'v' holds None \(in row 1\)"):
        found.logits({"u": [1.0], "v": [None]})
    with pytest.raises(
        DataError, match="does not name its label column, so labels cannot be found; give an NPZ"
    ):
        found.labelled({"u": [1.0], "v": [2.0], "y": [1]})
    np.savez(tmp_path / "rows.npz", x=x.numpy(), y=(x[:, 0] > 0).numpy())
    y, logits = found.labelled(tmp_path / "rows.npz")
    assert y.tolist() == (x[:, 0] > 0).tolist()
    np.testing.assert_allclose(logits, wanted, rtol=1e-6)


def test_an_exported_model_gives_the_same_logits_without_fedilc(tmp_path: Path, loaded: LoadedModel) -> None:
    written = export_model(loaded, tmp_path / "model.pt2")
    program = torch.export.load(written[0]).module()
    x = loaded.transform(patients(7, 4))
    np.testing.assert_allclose(program(x).detach().numpy(), loaded.logits(patients(7, 4)), rtol=1e-6)
    assert len(program(x[:1])) == 1
    about = json.loads(written[1].read_text())
    assert about["columns"] == list(loaded.columns)
    assert about["preprocessing"]["features"][0]["name"] == "age"


def test_a_damaged_preprocessing_is_said(run: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(run, tmp_path / "copy"))
    (copy / "preprocessing.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"preprocessing.json was changed or damaged"):
        fedilc.load(copy)


def edited(run: Path, folder: Path, *, with_digests: bool = True) -> Path:
    """A copy of a run in which the mean of a column was edited; earlier versions wrote no digests of it."""
    copy = Path(shutil.copytree(run, folder))
    made = json.loads((copy / "preprocessing.json").read_text())
    made["features"][0]["mean"] += 1.0
    (copy / "preprocessing.json").write_text(json.dumps(made))
    if not with_digests:
        facts = json.loads((copy / "run.json").read_text())
        del facts["files"], facts["digest"]
        (copy / "run.json").write_text(json.dumps(with_digest(facts)))
    return copy


def test_an_edited_mean_of_the_preprocessing_is_noticed_by_load_predict_check_and_resume(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = edited(run, tmp_path / "edited")
    sentence = (
        r"preprocessing\.json was changed or damaged: its digest is not the one in run\.json; restore it"
    )
    with pytest.raises(CheckpointError, match=sentence):
        fedilc.load(copy)
    patients(5, 3).write_csv(tmp_path / "new.csv")
    refused = Refusal(monkeypatch, capsys)
    assert re.search(sentence, refused("predict", copy, tmp_path / "new.csv", "-o", tmp_path / "scores.csv"))
    assert not (tmp_path / "scores.csv").exists()
    problem = examine(copy)["preprocessing.json"]
    assert problem is not None
    assert "was changed or damaged" in problem
    assert examine(run)["preprocessing.json"] is None
    with pytest.raises(CheckpointError, match=sentence):
        RunFolder(copy).resume(RunFolder(copy).settings())
    (copy / "preprocessing.json").unlink()
    with pytest.raises(CheckpointError, match=r"restore preprocessing\.json from a copy"):
        fedilc.load(copy)
    assert examine(copy)["preprocessing.json"] is not None


def test_a_run_of_an_earlier_version_without_these_digests_is_read(run: Path, tmp_path: Path) -> None:
    copy = edited(run, tmp_path / "old", with_digests=False)
    assert fedilc.load(copy).round == fedilc.load(run).round
    assert "preprocessing.json" not in examine(copy)
    RunFolder(copy).resume(RunFolder(copy).settings())


def test_weights_of_another_run_are_noticed(run: Path, tmp_path: Path) -> None:
    copy, name = Path(shutil.copytree(run, tmp_path / "copy")), "best-validation.safetensors"
    weights, about = read_tensors(copy / name)
    write_tensors(
        copy / name, {key: -tensor for key, tensor in weights.items()}, about | {"record": "0" * 64}
    )
    with pytest.raises(CheckpointError, match="belongs to another run than the history beside it"):
        fedilc.load(copy)
    assert "belongs to another run" in str(examine(copy)[name])
    write_tensors(copy / name, weights, {"round": about["round"]})
    assert fedilc.load(copy).round == about["round"]


def test_many_inputs_are_scored_in_parts_with_the_same_bits(
    loaded: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, (_, logits) = loaded.logits(patients(25, 4)), loaded.labelled(patients(25, 4))
    monkeypatch.setattr("fedilc.training.loaded_model.MOST_NUMBERS", 7 * len(loaded.columns))
    sizes = list[int]()

    def counted(rows: pl.DataFrame, *others: Any) -> torch.Tensor:
        sizes.append(len(rows))
        return preprocessed(rows, *others)

    monkeypatch.setattr("fedilc.training.loaded_model.preprocessed", counted)
    np.testing.assert_allclose(loaded.logits(patients(25, 4)), whole, rtol=1e-6)
    np.testing.assert_allclose(loaded.labelled(patients(25, 4))[1], logits, rtol=1e-6)
    assert max(sizes) <= 7
