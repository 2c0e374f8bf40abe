"""`--backbone` from the command: study, run, serve and join, predict, evaluate, export; what is refused."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch
from command import Refusal, fedilc
from fleets import fleet
from PIL import Image
from tiny_backbone import FEATURES, draw_pictures, write_module

import fedilc as package

DOMAINS = ("art", "photo", "sketch")
RUN = 'rounds = 30\nlearning_rate = 0.05\nalgorithm = "fedsgd"\n'


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    sys.modules.pop("tiny_eye", None)
    write_module(tmp_path)
    draw_pictures(tmp_path / "pictures", DOMAINS)


@pytest.fixture
def trained(tmp_path: Path) -> Path:
    data = '[data]\nsource = "images"\nfolder = "pictures"\ntest = "sketch"\nimage_size = 8\n'
    Path("run.toml").write_text(f'{RUN}{data}[model]\nname = "cnn"\n')
    fedilc("run", "run.toml", "--backbone", "tiny_eye:build", "--out", "out")
    return tmp_path / "out"


def change_backbone() -> None:
    sys.modules.pop("tiny_eye", None)
    write_module(Path(), scale=2.0)


def test_a_study_has_regressions_on_the_features(
    tmp_path: Path, refusal: Refusal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedilc.progress.LINE_SECONDS", 0.0)
    command = [
        "study",
        "pictures",
        "--backbone",
        "tiny_eye:build",
        "--seeds",
        1,
        "--rounds",
        20,
        "--out",
        "s",
    ]
    said = fedilc(*command, "-a", "fedsgd", "--jobs", 1)
    assert "features of pictures: 24 of 24" in said
    assert "pretraining may have seen" in " ".join(said.split())
    study = json.loads(Path("s/study.json").read_text())
    methods = json.dumps(study)
    for name in ("logistic", "pooled logistic", "alone logistic"):
        assert f'"{name}"' in methods
    assert '"pooled trees"' not in methods
    again = fedilc(*command, "-a", "fedsgd", "--jobs", 1, "--hidden", 4, "--no-references")
    assert "features of pictures" not in again.split("Verdict")[0].replace("features of the backbone", "")
    assert "`backbone`" not in (sentence := refusal("study", "heart-disease", "--backbone", "tiny_eye:build"))
    assert "--backbone is for a folder of images" in sentence


def test_a_run_keeps_and_predict_evaluate_and_export_contain_the_backbone(
    trained: Path, tmp_path: Path
) -> None:
    facts = json.loads((trained / "run.json").read_text())
    assert (facts["backbone"]["features"], facts["model"]["name"]) == (FEATURES, "linear")
    card = (trained / "model-card.md").read_text()
    assert "`tiny_eye:build`" in card
    assert "pretraining may have seen" in card
    own = ("--backbone", "tiny_eye:build")
    assert "features" not in fedilc("evaluate", trained, "pictures/sketch", "--json", "scores.json", *own)
    scores = json.loads(Path("scores.json").read_text())["scores"]
    assert scores["accuracy"]["value"] > 0.9
    fedilc("predict", trained, "pictures/sketch", "-o", "scores.csv", *own)
    predicted = pl.read_csv("scores.csv")
    fedilc("export", trained, "model.pt2", *own)
    program = torch.export.load("model.pt2").module()
    names = [Path("pictures/sketch") / name for name in predicted["file"]]
    small = [np.asarray(Image.open(name).resize((8, 8)), np.float32) / 255 for name in names]
    pictures = torch.from_numpy(np.stack(small).transpose(0, 3, 1, 2).copy())
    exported = program(pictures).sigmoid()[:, 0].tolist()
    assert exported == pytest.approx(predicted["probability"].to_list(), abs=1e-5)
    loaded = package.load(trained, backbone="tiny_eye:build")
    assert loaded.predict_proba(pictures)[:, 1] == pytest.approx(exported, abs=1e-5)


def test_a_changed_or_missing_backbone_is_refused_in_one_sentence(trained: Path, refusal: Refusal) -> None:
    predict = ("predict", trained, "pictures/sketch", "-o", "scores.csv")
    assert "is not registered; name it with --backbone" in refusal(*predict)
    change_backbone()
    own = ("--backbone", "tiny_eye:build")
    assert "use the same weights and code" in refusal(*predict, *own)
    assert "use the same weights and code" in refusal("export", trained, "model.pt2", *own)
    again = refusal("run", "run.toml", *own, "--out", trained, "--resume", "--rounds", 31)
    assert "belongs to another configuration: backbone.digest was" in again


@pytest.mark.slow
def test_silos_join_with_their_own_backbone_and_have_the_same_run_as_here(tmp_path: Path) -> None:
    data = 'source = "remote-images"\nsilos = ["art", "photo"]\nclasses = ["bottom", "top"]\n'
    more = 'backbone = "tiny_eye:build"\ntest = "pictures/sketch"\n'
    Path("served.toml").write_text(f"{RUN}[data]\n{data}{more}")
    (tmp_path / "other").mkdir()
    write_module(tmp_path / "other", scale=2.0)
    join = ("--allow-insecure", "--validation-share", 0.25, "--data")
    with fleet(tmp_path) as members:
        coordinator, url = members.serve("served.toml", "--out", "served")
        silo = ("join", url, "--silo", "art", *join, tmp_path / "pictures" / "art")
        without = members.start(*silo)
        assert without.ended() == 2
        assert "name it with --backbone if silo 'art' agrees" in without.said
        changed = members.start(*silo, "--backbone", "tiny_eye:build", folder=tmp_path / "other")
        assert changed.ended() == 2
        assert "use the same weights and code" in changed.said
        own = [
            members.start(
                "join", url, "--silo", name, *join, f"pictures/{name}", "--backbone", "tiny_eye:build"
            )
            for name in ("art", "photo")
        ]
        assert coordinator.ended() == 0, coordinator.said
        assert [member.ended() for member in own] == [0, 0]
    shutil.move("pictures", "kept")
    loaded = package.load("served", "last", backbone="tiny_eye:build")
    y, logits = loaded.labelled("kept/sketch")
    assert ((logits[:, 0] > 0) == y).mean() > 0.9
    history = [json.loads(line) for line in Path("served/history.jsonl").read_text().splitlines()]
    assert history[-1]["test_accuracy"] > 0.9
