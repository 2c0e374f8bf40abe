"""A recalibrated model is a run like any other, and the run that it comes from stays as it was."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch
from scipy.special import expit
from torch import nn

import fedilc
from fedilc.data.tables.silo_tables import tables_of
from fedilc.data.tables.table_settings import TableSettings
from fedilc.errors import CheckpointError, ConfigError, DataError, ModelError
from fedilc.models import build_model
from fedilc.report.html.report import write_html_report
from fedilc.storage.run_folder import RunFolder, examine
from fedilc.training.loaded_model import export_model
from fedilc.training.model_card import coefficients

QUICK = {"rounds": 2, "learning_rate": 0.01}


def patients(seed: int, shift: float = 0.0, rows: int = 120) -> pl.DataFrame:
    random = np.random.default_rng(seed)
    age, sex = random.normal(60, 10, rows), random.choice(["m", "f"], rows)
    risk = (age - 60) / 10 + (sex == "m") + shift + random.logistic(size=rows)
    died = np.where(risk > 0.5, "yes", "no")
    return pl.DataFrame({"mrn": np.arange(rows) // 2, "age": age, "sex": sex, "died": died})


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    frames = {name: patients(seed) for seed, name in enumerate("abc")}
    settings = TableSettings(label="died", positive="yes", drop=("mrn",))
    federation = tables_of(frames, settings).federation("patients", test=None, seed=0, validation=0.3)
    out = tmp_path_factory.mktemp("recalibrated") / "run"
    model = build_model("linear", federation.inputs, 1, 0)
    named = {"model": {"name": "linear"}}
    fedilc.train(federation, model, "fedsgd", rounds=20, learning_rate=0.1, out=out, settings=named)
    return out


def digests(folder: Path) -> dict[str, str]:
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in sorted(folder.iterdir())}


@pytest.mark.parametrize("kind", ["intercept", "slope"])
def test_the_updated_run_loads_with_the_line_in_every_use(run: Path, tmp_path: Path, kind: str) -> None:
    rows, before, kept = patients(9, 1.5), fedilc.load(run), digests(run)
    out = tmp_path / "new"
    updated = before.recalibrated(rows, kind, out=out)
    update = updated.facts["recalibrations"][0]
    a = update["coefficients"]["intercept"]["value"]
    b = update["coefficients"].get("slope", {"value": 1.0})["value"]
    expected = a + b * before.logits(rows)
    for criterion in ("validation", "last", "oracle"):
        assert np.allclose(fedilc.load(out, criterion).logits(rows), expected, atol=1e-5)
    loaded = fedilc.load(out)
    found = coefficients(loaded.model, loaded.columns, loaded.preprocessing)
    own = found["(intercept)"] + found["age"] * rows["age"].to_numpy()
    own += np.where(rows["sex"].to_numpy() == "f", found["sex=f"], found["sex=m"])
    assert np.allclose(own, expected[:, 0], atol=1e-4)
    card = (out / "model-card.md").read_text()
    for text in (", fedsgd, recalibrated", f"| age | {found['age']:.4g} | {np.exp(found['age']):.4g} |"):
        assert text in card
    assert re.search(rf"fitted to 120 rows \({update['events']} events\)", card)
    assert "too good" in card
    assert set(examine(out).values()) == {None}
    assert digests(run) == kept
    (program, _) = export_model(loaded, tmp_path / "model.pt2")
    outputs = torch.export.load(program).module()(loaded.transform(rows))
    assert np.allclose(outputs.detach().numpy(), expected, atol=1e-4)
    write_html_report(tmp_path / "report.html", [run, out])
    assert "Recalibration at a new site" in (tmp_path / "report.html").read_text()


def test_a_recalibrated_model_can_be_recalibrated_again(run: Path, tmp_path: Path) -> None:
    rows = patients(9, 1.5)
    fedilc.load(run).recalibrated(rows, "intercept", out=tmp_path / "one")
    again = fedilc.load(tmp_path / "one").recalibrated(rows, "intercept", out=tmp_path / "two")
    first, second = again.facts["recalibrations"]
    assert abs(first["coefficients"]["intercept"]["value"]) > 0.3
    assert second["coefficients"]["intercept"]["value"] == pytest.approx(0, abs=1e-4)
    assert "## Recalibration 2 of 2" in (tmp_path / "two" / "model-card.md").read_text()
    with pytest.raises(CheckpointError, match="already holds a run"):
        fedilc.load(run).recalibrated(rows, "intercept", out=tmp_path / "two")


def test_a_recalibrated_run_is_not_continued(run: Path, tmp_path: Path) -> None:
    fedilc.load(run).recalibrated(patients(9, 1.5), "intercept", out=tmp_path / "here")
    folder = RunFolder(tmp_path / "here")
    with pytest.raises(CheckpointError, match=r"holds a recalibrated model.*resume the run"):
        folder.resume(folder.settings())


def test_rows_of_a_patient_count_together(run: Path) -> None:
    update = fedilc.load(run).recalibrated(patients(9, 1.5), "intercept", "mrn").facts["recalibrations"][0]
    assert (update["rows"], update["patients"]) == (120, 60)
    assert update["learning_curve"] == []


def test_mistakes_are_one_sentence(run: Path) -> None:
    loaded = fedilc.load(run)
    with pytest.raises(ConfigError, match=r"`recalibrate` is intercept or slope, not 'slop'.*slope"):
        loaded.recalibrated(patients(9), "slop")
    with pytest.raises(DataError, match="at least 10 events"):
        loaded.recalibrated(patients(9).with_columns(pl.lit("no").alias("died")), "intercept")


class Doubled(nn.Module):
    """A network whose output is not that of its last linear layer."""

    def __init__(self, bias: bool = True) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 1, bias=bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.layer(x)) * 2


@pytest.mark.parametrize(("bias", "said"), [(True, "does more to its outputs"), (False, "has no bias")])
def test_a_network_that_cannot_hold_the_line_is_refused(tmp_path: Path, bias: bool, said: str) -> None:
    random = np.random.default_rng(0)
    x = random.normal(size=(80, 3)).astype(np.float32)
    y = (random.random(80) < expit(x[:, 0] + 1)).astype(np.int64)
    federation = fedilc.Federation("arrays", [fedilc.Silo("a", x, y)])
    fedilc.train(federation, Doubled(bias), "fedsgd", **QUICK, out=tmp_path / "run")
    np.savez(tmp_path / "site.npz", x=x, y=y)
    loaded = fedilc.load(tmp_path / "run", "last", Doubled(bias))
    with pytest.raises(ModelError, match=said):
        loaded.recalibrated(tmp_path / "site.npz", "intercept")


def test_quantities_and_several_classes_are_recalibrated_too(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    x = torch.from_numpy(random.normal(size=(90, 2))).float()
    classes = torch.from_numpy(random.integers(0, 3, 90))
    for loss, y, outputs in (("regression", x[:, 0] + 3, 1), ("multiclass", classes, 3)):
        federation = fedilc.Federation("rows", [fedilc.Silo("a", x, y)], loss=loss)
        network = nn.Linear(2, outputs)
        fedilc.train(federation, network, "fedsgd", **QUICK, out=tmp_path / loss)
        np.savez(tmp_path / f"{loss}.npz", x=x.numpy(), y=y.numpy())
        loaded = fedilc.load(tmp_path / loss, "last", network)
        updated = loaded.recalibrated(tmp_path / f"{loss}.npz", "intercept", out=tmp_path / f"{loss}-new")
        y_found, logits = updated.labelled(tmp_path / f"{loss}.npz")
        if loss == "regression":
            assert logits[:, 0].mean() == pytest.approx(y_found.mean(), abs=1e-4)
        else:
            shares = np.bincount(y_found.astype(int)) / 90
            assert updated.probabilities(logits).mean(0) == pytest.approx(shares, abs=1e-4)
        facts = json.loads((tmp_path / f"{loss}-new" / "run.json").read_text())
        assert facts["recalibrations"][0]["kind"] == "intercept"
