"""The card of a run: the model, its inputs, its data, its results; what is not known is not made up."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch
from small_silos import QUICK, silo
from torch import nn

from fedilc import Federation, load, train
from fedilc.data.tables.silo_tables import tables_of
from fedilc.data.tables.table_settings import TableSettings
from fedilc.models import build_model
from fedilc.report.html.report import write_html_report
from fedilc.storage.run_folder import RunFolder
from fedilc.training.model_card import as_code, coefficients


def patients(seed: int) -> pl.DataFrame:
    random = np.random.default_rng(seed)
    age, sex = random.normal(60, 10, 60), random.choice(["m", "f"], 60)
    risk = (age - 60) / 10 + (sex == "m") + random.normal(size=60)
    return pl.DataFrame({"age": age, "sex": sex, "died": np.where(risk > 0.5, "yes", "no")})


def test_the_card_of_tables_has_columns_data_results_and_settings(tmp_path: Path) -> None:
    frames = {name: patients(seed) for seed, name in enumerate("abc")}
    tables = tables_of(frames, TableSettings(label="died", positive="yes"))
    federation = tables.federation("patients", test="c", seed=0, validation=0.3)
    model = build_model("mlp", federation.inputs, 1, 0, hidden=[4])
    train(federation, model, "fedsgd", rounds=3, learning_rate=0.05, out=tmp_path)
    card = (tmp_path / "model-card.md").read_text()
    facts = json.loads((tmp_path / "run.json").read_text())
    record = next(r for r in RunFolder(tmp_path).history() if f"round {r['round']} of 3" in card)
    for expected in (
        "# Model card: died, fedsgd",
        "To fill in",
        "| `age` | number, mean ",
        "| `sex` | one of `f`, `m` | no |",
        f"| a | 42 | 18 | {facts['silos']['a']['digest']} |",
        f"60 examples ({(frames['c']['died'] == 'yes').sum()} of them positive), digest {facts['test']}",
        f"| a | {record['silos']['a']['validation_loss']:.3f} | ",
        f"| mean over sites | {record['validation_loss']:.3f} | ",
        "| learning_rate | 0.05 |",
    ):
        assert expected in card
    for score in ("auroc", "calibration slope"):
        assert re.search(rf"^\| {score} \| \d\.\d+ \[", card, re.MULTILINE)
    assert "outlier_factor" not in card


def test_the_coefficients_of_a_logistic_regression_give_its_logits_from_the_columns_as_they_are(
    tmp_path: Path,
) -> None:
    frames = {name: patients(seed) for seed, name in enumerate("abc")}
    tables = tables_of(frames, TableSettings(label="died", positive="yes"))
    federation = tables.federation("patients", test=None, seed=0, validation=0.0)
    model = build_model("linear", federation.inputs, 1, 0)
    options = {"rounds": 20, "learning_rate": 1.0, "weight_decay": 0.01, "out": tmp_path}
    train(federation, model, "logistic", **options, settings={"model": {"name": "linear"}})
    loaded, rows = load(tmp_path, "last"), frames["b"]
    found = coefficients(loaded.model, loaded.columns, loaded.preprocessing)
    assert list(found) == ["(intercept)", "age", "sex=f", "sex=m"]
    expected = found["(intercept)"] + found["age"] * rows["age"].to_numpy()
    expected += np.where(rows["sex"].to_numpy() == "f", found["sex=f"], found["sex=m"])
    assert np.allclose(loaded.logits(rows)[:, 0], expected, atol=1e-5)
    card = (tmp_path / "model-card.md").read_text()
    assert f"| age | {found['age']:.4g} | {math.exp(found['age']):.4g} |" in card
    page = tmp_path / "report.html"
    write_html_report(page, [tmp_path])
    assert "Coefficients of logistic" in page.read_text()
    assert f"{math.exp(found['age']):.4g}" in page.read_text()


def test_scores_of_few_events_are_not_estimable_in_the_card_and_its_means_say_so(tmp_path: Path) -> None:
    frames = {name: patients(seed) for seed, name in enumerate("abc")}
    row = pl.int_range(pl.len())
    few = pl.when(row < 5).then(pl.lit("yes")).otherwise(pl.lit("no")).alias("died")
    frames["a"], frames["c"] = frames["a"].with_columns(few), frames["c"].with_columns(few)
    frames["b"] = pl.concat([frames["b"]] * 3)
    tables = tables_of(frames, TableSettings(label="died", positive="yes"))
    federation = tables.federation("patients", test="c", seed=0, validation=0.3)
    model = build_model("mlp", federation.inputs, 1, 0, hidden=[4])
    train(federation, model, "fedsgd", rounds=2, learning_rate=0.05, out=tmp_path)
    card = (tmp_path / "model-card.md").read_text()
    assert "| auroc | not estimable (5 events, fewer than 10) |" in card
    assert re.search(r"^\| a \| \d\.\d+ \| \d\.\d+ \| not estimable \| not estimable \|$", card, re.MULTILINE)
    assert re.search(r"^\| mean over sites .* \d\.\d+ \(1 of 2 sites\) \|$", card, re.MULTILINE)


def test_the_card_of_arrays_says_what_was_not_measured(tmp_path: Path) -> None:
    torch.manual_seed(0)
    train(Federation("f", [silo("a", 1), silo("b", 2)]), nn.Linear(3, 1), out=tmp_path, **QUICK)
    card = (tmp_path / "model-card.md").read_text()
    assert "Arrays of numbers, as they are." in card
    assert "There is no test set: how the model does at another site was not measured." in card
    assert "network: `one of its own`, inputs [3], outputs 1" in card


def test_a_card_that_cannot_be_written_is_a_warning(tmp_path: Path) -> None:
    (tmp_path / "model-card.md").mkdir()
    with pytest.warns(UserWarning, match=r"model-card\.md cannot be written"):
        result = train(Federation("f", [silo("a", 1)]), nn.Linear(3, 1), out=tmp_path, **QUICK)
    assert result.history


def test_names_from_elsewhere_are_text_in_the_card(tmp_path: Path) -> None:
    """No site, label or class can add HTML, a link, a picture, a row or a heading."""
    name = "x|<img src=y onerror=z>\n# [a](javascript:b) ![c](d) `e`"
    train(Federation(name, [silo(name, 1), silo("b", 2)]), nn.Linear(3, 1), out=tmp_path, **QUICK)
    card = (tmp_path / "model-card.md").read_text()
    shown = r"x\|\<img src=y onerror=z\> # \[a\](javascript:b) !\[c\](d) \`e\`"
    assert card.startswith(f"# Model card: {shown}, fedsgd\n")
    assert re.search(rf"^\| {re.escape(shown)} \| 40 \|", card, re.MULTILINE)
    assert not re.search(r"(?<!\\)[<\[]", re.sub(r"inputs \[\d+\]", "", card))
    assert [line for line in card.splitlines() if line.startswith("# ")] == [card.splitlines()[0]]
    assert as_code("a`b``c") == "``` a`b``c ```"
    assert as_code("plain name") == "`plain name`"
