"""`fedilc study x.toml`: a study's settings from a file, and what a study does not take."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command import Refusal, fedilc
from hospitals import hospitals

from fedilc.config import read_experiment

DATA = """
[data]
source = "tables"
files = "patients.csv"
silo_column = "hospital"
label = "died"
missing = ["lactate=-9"]
"""
STUDY = """
[study]
algorithms = ["fedsgd"]
hold_out = ["H1"]
seeds = 1
rounds = 3
learning_rates = [0.05, 0.1]
references = false
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    hospitals(3).write_csv(tmp_path / "patients.csv")
    return tmp_path


def settings_of(folder: Path, text: str, *words: str) -> dict[str, object]:
    (folder / "plan.toml").write_text(text)
    fedilc("study", folder / "plan.toml", *words, "--jobs", "1", "--out", folder / "out")
    return dict(json.loads((folder / "out" / "study.json").read_text())["settings"])


def test_a_study_takes_its_settings_from_the_section_study_and_options_come_before_them(folder: Path) -> None:
    found = settings_of(folder, DATA + STUDY, "--rounds", "2")
    assert found["algorithms"] == ["fedsgd"]
    assert found["hold_out"] == ["H1"]
    assert found["learning_rates"] == [0.05, 0.1]
    assert (found["seeds"], found["rounds"], found["references"]) == (1, 2, False)


def test_a_study_takes_what_a_run_and_a_study_have_in_common_and_says_so(folder: Path) -> None:
    run = 'algorithm = "fedsgd"\nbeside = ["geometric"]\nrounds = 50\nlearning_rate = 0.1\n'
    model = '[model]\nname = "mlp"\nhidden = [4]\n'
    few = "[study]\nrounds = 2\nseeds = 1\nreferences = false\n"
    (folder / "run.toml").write_text(run + DATA + model + few)
    said = fedilc("study", folder / "run.toml", "--jobs", "1", "--out", folder / "out")
    assert f"settings in {folder / 'run.toml'}: rounds = 2, learning_rates = [0.1]," in said
    found = json.loads((folder / "out" / "study.json").read_text())["settings"]
    assert found["algorithms"] == ["fedsgd", "geometric"]
    assert (found["rounds"], found["learning_rates"], found["hidden"]) == (2, [0.1], [4])
    settings, _ = read_experiment(str(folder / "run.toml"))  # the same file is one for `fedilc run`
    assert (settings.rounds, settings.beside) == (50, ["geometric"])


@pytest.mark.parametrize("section", ['[model]\nname = "linear"\n', ""])
def test_the_network_may_be_linear_or_without_hidden_layers(folder: Path, section: str) -> None:
    text = DATA + section + STUDY + ("" if section else "hidden = []\n")
    found = settings_of(folder, text, "--rounds", "2", "--primary", "log_loss")
    assert (found["model"], found["hidden"]) == (("linear", [32]) if section else (None, []))
    study = json.loads((folder / "out" / "study.json").read_text())
    assert (study["metrics"][0], study["deciding_metric"]) == ("log_loss", "log_loss")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            "rounds = 3\nweight_decay = 0.1\nseed = 4\n" + DATA,
            "sets seed, weight_decay, which a study does not take; leave out settings of a single run, and "
            "give a study's settings in the section [study]",
        ),
        ("secure = true\n" + DATA, "leaves each site out in turn"),
        (DATA + '[model]\nname = "cnn"\n', "sets model, which a study does not take"),
        (DATA + "[study]\nround = 3\n", "the key 'study.round' is unknown; did you mean 'rounds'?"),
        (DATA + "[study]\nseeds = 0\n", "study.seeds=0 is not valid: input should be greater than 0"),
        (DATA + "[study]\nlearning_rates = []\n", "study.learning_rates=[] is not valid"),
        ("study = 3\n" + DATA, "is not a section"),
        (STUDY, "the experiment has no [data] section"),
    ],
)
def test_a_file_with_what_a_study_does_not_take_is_refused_in_one_sentence(
    folder: Path, text: str, sentence: str, refusal: Refusal
) -> None:
    (folder / "x.toml").write_text(text)
    assert sentence in refusal("study", folder / "x.toml")
    assert not (folder / "results").exists()
