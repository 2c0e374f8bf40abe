"""Using a model from the command line: predict, evaluate, export; tables as a source of an experiment."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch
from command import Refusal, fedilc

import fedilc as package


def patients(rows: int, seed: int) -> pl.DataFrame:
    random = np.random.default_rng(seed)
    age = random.normal(60, 10, rows).round(1)
    sex = random.choice(["m", "f"], rows)
    risk = (age - 60) / 10 + (sex == "m") + random.normal(size=rows)
    cells = np.where(random.random(rows) < 0.2, "?", age.astype(str))
    return pl.DataFrame(
        {
            "hospital": [f"h{i % 3}" for i in range(rows)],
            "age": cells,
            "sex": sex,
            "died": np.where(risk > 0.5, 1, 0),
        }
    )


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tables")
    patients(150, 0).write_csv(folder / "patients.csv", separator=";")
    (folder / "e.toml").write_text(
        'rounds = 4\nlearning_rate = 0.05\nalgorithm = "fedsgd"\n[data]\nsource = "tables"\n'
        'files = "patients.csv"\nsilo_column = "hospital"\nlabel = "died"\ntest = "h2"\n'
        '[model]\nname = "mlp"\nhidden = [4]\n'
    )
    with pytest.warns(package.errors.FedILCWarning, match="separated by ';'"):
        fedilc("run", folder / "e.toml", "--out", folder / "run")
    return folder / "run"


@pytest.fixture
def new(tmp_path: Path) -> Path:
    patients(30, 5).with_columns(pl.int_range(30).alias("mrn")).write_csv(tmp_path / "new.csv")
    return tmp_path / "new.csv"


def test_predict_writes_a_score_per_row(run: Path, new: Path, tmp_path: Path) -> None:
    printed = fedilc("predict", run, new, "-o", tmp_path / "scores.csv", "--copy", "mrn")
    scores = pl.read_csv(tmp_path / "scores.csv")
    assert "30 rows scored by round" in printed
    assert scores.columns == ["row", "mrn", "probability", "prediction"]
    wanted = package.load(run).predict_proba(new)[:, 1]
    np.testing.assert_allclose(scores["probability"].to_numpy(), wanted)


def test_evaluate_shows_scores_with_intervals(run: Path, new: Path, tmp_path: Path) -> None:
    printed = fedilc("evaluate", run, new, "--json", tmp_path / "scores.json")
    assert "auroc" in printed
    found = json.loads((tmp_path / "scores.json").read_text())
    assert found["rows"] == 30
    auroc = found["scores"]["auroc"]
    assert auroc["low"] <= auroc["value"] <= auroc["high"]


def test_export_writes_a_program_and_its_meaning(run: Path, new: Path, tmp_path: Path) -> None:
    fedilc("export", run, tmp_path / "model.pt2")
    program = torch.export.load(tmp_path / "model.pt2").module()
    loaded = package.load(run)
    np.testing.assert_allclose(
        program(loaded.transform(new)).detach().numpy(), loaded.logits(new), rtol=1e-5, atol=1e-6
    )
    assert json.loads((tmp_path / "model.json").read_text())["columns"] == list(loaded.columns)


def test_the_documented_use_of_an_exported_model_needs_torch_alone(run: Path, tmp_path: Path) -> None:
    fedilc("export", run, tmp_path / "model.pt2")
    text = (Path(__file__).parents[2] / "docs" / "tables.md").read_text()
    (script,) = (
        part for part in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if "torch.export" in part
    )
    script += "\nimport sys\nassert not {'fedilc', 'polars', 'pandas'} & sys.modules.keys()\n"
    script = script.replace(".sigmoid()", ".sigmoid().tolist()")
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, check=True, capture_output=True, text=True
    )
    rows = {"age": [61.5, None], "sex": ["m", "f"]}
    np.testing.assert_allclose(
        np.ravel(json.loads(done.stdout)), package.load(run).predict_proba(rows)[:, 1], rtol=1e-5
    )


def test_mistakes_are_one_sentence(
    run: Path, new: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    refused = Refusal(monkeypatch, capsys)
    pl.read_csv(new).drop("age").write_csv(tmp_path / "short.csv")
    pl.read_csv(new).drop("died").write_csv(tmp_path / "blank.csv")
    out = tmp_path / "s.csv"
    assert "has no column 'age', which the model was trained with" in refused(
        "predict", run, tmp_path / "short.csv", "-o", out
    )
    assert "has no label column 'died'" in refused("evaluate", run, tmp_path / "blank.csv")
    assert "holds no run" in refused("predict", tmp_path, new, "-o", out)
    assert "does not exist" in refused("predict", run, tmp_path / "no.csv", "-o", out)
    assert "no column 'name' to copy" in refused("predict", run, new, "-o", out, "--copy", "name")
    assert not out.exists()


def test_the_held_out_silo_is_the_test_set_and_has_no_say(run: Path) -> None:
    facts = json.loads((run / "run.json").read_text())
    assert list(facts["silos"]) == ["h0", "h1"]
    made = json.loads((run / "preprocessing.json").read_text())
    assert [feature["name"] for feature in made["features"]] == ["age", "sex"]
    train = patients(150, 0).filter(pl.col("hospital") != "h2")["age"].cast(pl.Float64, strict=False)
    assert made["features"][0]["mean"] == pytest.approx(train.mean())


def test_a_run_of_plain_files_predicts_by_its_columns(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    for name in ("a", "b"):
        x = random.normal(size=(30, 2))
        frame = pl.DataFrame({"u": x[:, 0], "v": x[:, 1], "label": (x[:, 0] > 0).astype(int)})
        frame.write_csv(tmp_path / f"{name}.csv")
    (tmp_path / "e.toml").write_text(
        'rounds = 2\nlearning_rate = 0.05\nalgorithm = "fedsgd"\n[data]\nsource = "files"\nsilos = "*.csv"\n'
        '[model]\nname = "mlp"\nhidden = [4]\n'
    )
    fedilc("run", tmp_path / "e.toml", "--out", tmp_path / "run")
    fedilc("predict", tmp_path / "run", tmp_path / "a.csv", "-o", tmp_path / "scores.csv")
    assert pl.read_csv(tmp_path / "scores.csv").columns == ["row", "probability", "prediction"]
    assert "auroc" in fedilc("evaluate", tmp_path / "run", tmp_path / "a.csv")
