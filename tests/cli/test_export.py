"""`fedilc export`: a program of torch, and what its inputs and outputs mean."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import torch
from command import Refusal, fedilc

import fedilc as package


def test_export_writes_a_program_and_its_meaning(table_run: Path, new_rows: Path, tmp_path: Path) -> None:
    fedilc("export", table_run, tmp_path / "model.pt2")
    program = torch.export.load(tmp_path / "model.pt2").module()
    loaded = package.load(table_run)
    np.testing.assert_allclose(
        program(loaded.transform(new_rows)).detach().numpy(), loaded.logits(new_rows), rtol=1e-5, atol=1e-6
    )
    assert json.loads((tmp_path / "model.json").read_text())["columns"] == list(loaded.columns)


def test_the_documented_use_of_an_exported_model_needs_torch_alone(table_run: Path, tmp_path: Path) -> None:
    fedilc("export", table_run, tmp_path / "model.pt2")
    text = (Path(__file__).parents[2] / "docs" / "how-to" / "tables.md").read_text()
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
        np.ravel(json.loads(done.stdout)), package.load(table_run).predict_proba(rows)[:, 1], rtol=1e-5
    )


def test_a_folder_that_does_not_exist_is_one_sentence(
    table_run: Path, tmp_path: Path, refusal: Refusal
) -> None:
    said = refusal("export", table_run, tmp_path / "no" / "model.pt2")
    assert said == f"{tmp_path / 'no'} is not a folder; create it first"
