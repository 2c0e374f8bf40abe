"""`fedilc run`: its files, its tables, how it resumes, and one sentence for each mistake."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
import typer
from command import Refusal, fedilc, one_sentence
from fleets import fleet
from small_runs import GOOD, OTHER, PNG, SMALL, experiment, names, records, table

from fedilc import algorithms
from fedilc.cli import main
from fedilc.cli.app import app
from fedilc.evaluation import select


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_run_ends_with_a_table_and_says_where_its_picture_and_folder_are(
    finished: tuple[Path, str],
) -> None:
    out, printed = finished
    for expected in ("color-digits · fishr-inter-geo", "oracle: ", "validation: ", "last: ", "OOD loss"):
        assert expected in printed
    assert f"picture: {out / 'loss.png'}" in printed
    assert f"run folder: {out}" in printed


FOUR = ("fedsgd", "geometric", "fedcurv", "fishr-inter-geo")


@pytest.mark.parametrize(
    ("experiment", "words"),
    [("color-digits-shift", ("--set", "data.copies=1", *SMALL)), ("site-shortcuts", ())],
)
def test_an_embedded_comparison_trains_the_method_without_each_part_and_ends_with_table_picture_and_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, experiment: str, words: tuple[str, ...]
) -> None:
    monkeypatch.chdir(tmp_path)
    named = [experiment] * (experiment != "color-digits-shift")  # the other one needs no name
    printed = fedilc("run", *named, "--rounds", 2, *words)
    folder = Path(f"runs/{experiment}/{'+'.join(FOUR)}-seed0")
    site = {name: records(folder / name)[-1]["test_accuracy"] for name in FOUR}
    points = {name: f"{round(100 * (site[name] - site['fedsgd'])):+d}" for name in FOUR}
    sentence = " ".join(printed.split())
    assert "In this run, compared with fedsgd, the accuracy at the new site changes by " in sentence
    assert f"by {points['fedcurv']} points with the Fishr penalty" in sentence
    assert f"by {points['geometric']} points with the weighted geometric mean" in sentence
    assert f"and by {points['fishr-inter-geo']} points with both: here " in sentence
    for name in FOUR:
        assert re.search(rf"^ *{name} +2 .* {site[name]:.3f} *$", printed, re.MULTILINE)
    assert f"picture: {folder / 'accuracy.png'}" in printed
    assert (folder / "accuracy.png").stat().st_size > 1000


def test_what_is_printed_has_no_two_blank_lines_in_a_row(
    finished: tuple[Path, str], compared: tuple[Path, str]
) -> None:
    for _, printed in (finished, compared):
        lines = [line.strip() for line in printed.splitlines()]
        assert [number for number, pair in enumerate(pairwise(lines)) if pair == ("", "")] == []


@pytest.mark.parametrize("name", ["a[bold]b", "a[/b]"])
def test_brackets_in_a_folders_name_are_shown_and_not_taken_for_markup(tmp_path: Path, name: str) -> None:
    out = tmp_path / name
    printed = fedilc("run", "color-digits", "-a", "fedsgd", "--rounds", 1, "--out", out, *SMALL)
    assert f"picture: {out / 'loss.png'}\nrun folder: {out}\n" in printed
    printed = fedilc("report", out, "--out", out / "report.png")
    assert list(table(printed)) == [("oracle", out.name), ("validation", out.name), ("last", out.name)]
    assert f"picture: {out / 'report.png'}\n" in printed


def test_a_run_leaves_a_picture_a_record_for_each_round_and_a_checkpoint(finished: tuple[Path, str]) -> None:
    out, _ = finished
    assert (out / "loss.png").read_bytes().startswith(PNG)
    assert [record["round"] for record in records(out)] == [1, 2, 3]
    assert {path.name for path in out.iterdir()} == {
        *("run.json", "history.jsonl", "timing.jsonl", "loss.png", "model-card.md", ".lock"),
        *("checkpoint.safetensors", "checkpoint-previous.safetensors"),
        *("best-validation.safetensors", "best-oracle.safetensors"),
    }


def test_the_settings_on_the_command_line_are_those_of_the_run(tmp_path: Path) -> None:
    fedilc(
        "run",
        "color-digits",
        "-a",
        "fedsgd",
        "--rounds",
        1,
        "--seed",
        5,
        "--set",
        "data.flips=[0.2]",
        *SMALL,
        "--out",
        tmp_path,
    )
    settings = json.loads((tmp_path / "run.json").read_text())
    assert (settings["algorithm"], settings["rounds"], settings["seed"]) == ("fedsgd", 1, 5)
    assert {name: silo["examples"] for name, silo in settings["silos"].items()} == {"flip-0.20": 1000}
    assert (settings["model"]["name"], settings["model"]["hidden"]) == ("mlp", [8])
    assert set(settings["model"]) == {"name", "hidden", "layers", "weights", "inputs", "outputs"}


REPEATABLE = ("history.jsonl", "checkpoint.safetensors", "best-validation.safetensors", "run.json")


def test_the_same_command_twice_writes_the_same_bytes(finished: tuple[Path, str], tmp_path: Path) -> None:
    fedilc("run", "color-digits", "--rounds", 3, "--out", tmp_path, *SMALL)
    for name in REPEATABLE:
        assert (tmp_path / name).read_bytes() == (finished[0] / name).read_bytes(), name


def test_another_seed_writes_other_bytes(finished: tuple[Path, str], tmp_path: Path) -> None:
    fedilc("run", "color-digits", "--rounds", 3, "--seed", 1, "--out", tmp_path, *SMALL)
    assert (tmp_path / "history.jsonl").read_bytes() != (finished[0] / "history.jsonl").read_bytes()


def test_a_resumed_run_equals_one_longer_run_to_the_byte(copy: Path, tmp_path: Path) -> None:
    printed = fedilc("run", "color-digits", "--rounds", 7, "--out", copy, "--resume", *SMALL)
    fedilc("run", "color-digits", "--rounds", 7, "--out", tmp_path / "straight", *SMALL)
    assert "continuing after round 3" in printed
    for name in REPEATABLE:
        assert (copy / name).read_bytes() == (tmp_path / "straight" / name).read_bytes(), name


def test_resuming_a_run_that_has_done_its_rounds_shows_it_again(copy: Path) -> None:
    before = {name: (copy / name).read_bytes() for name in REPEATABLE}
    printed = fedilc("run", "color-digits", "--rounds", 3, "--out", copy, "--resume", *SMALL)
    assert re.findall(r"^ +round +(\d) +(\d) +(\d) *$", printed, re.MULTILINE) == [("1", "3", "3")]
    assert {name: (copy / name).read_bytes() for name in REPEATABLE} == before


def test_without_out_each_run_has_a_new_folder_and_resume_takes_the_newest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    brief = ("run", "color-digits", "-a", "fedsgd", *SMALL)
    fedilc(*brief, "--rounds", 1)
    fedilc(*brief, "--rounds", 1)
    fedilc(*brief, "--rounds", 2, "--resume")
    done = {path.name: len(records(path)) for path in Path("runs/color-digits").iterdir()}
    assert done == {"fedsgd-seed0": 1, "fedsgd-seed0-2": 2}


CRITERIA = ("oracle", "validation", "last")


def test_all_compares_every_algorithm_in_one_table_under_every_criterion(compared: tuple[Path, str]) -> None:
    out, printed = compared
    found = table(printed)
    assert list(found) == [(criterion, name) for criterion in CRITERIA for name in algorithms.PAPER]
    for (criterion, name), cells in found.items():
        record = select(records(out / name), criterion)
        numbers = [record[key] for key in ("test_loss", "test_accuracy", "test_auroc")]
        worst = record["fairness"]["worst_accuracy"]
        assert cells == [str(record["round"]), *(f"{number:.3f}" for number in (*numbers, worst))]
    for reading in ("which nobody can know in practice", "validation: lowest val. loss", "last: last round"):
        assert reading in " ".join(printed.split())


def test_all_leaves_one_picture_and_a_run_folder_for_each_algorithm(compared: tuple[Path, str]) -> None:
    out, _ = compared
    assert [path.relative_to(out) for path in out.rglob("*.png")] == [Path("loss.png")]
    assert {path.name: len(records(path)) for path in out.iterdir() if path.is_dir()} == dict.fromkeys(
        algorithms.PAPER, 2
    )


def test_all_can_be_resumed_where_some_algorithms_have_not_begun(
    compared: tuple[Path, str], tmp_path: Path
) -> None:
    out = Path(shutil.copytree(compared[0], tmp_path / "all"))
    shutil.rmtree(out / "geometric")
    printed = fedilc(
        "run", "color-digits", "--algorithm", "all", "--rounds", 2, "--out", out, "--resume", *SMALL
    )
    assert names(table(printed)) == list(algorithms.PAPER)
    for name in algorithms.PAPER:
        history = (out / name / "history.jsonl").read_bytes()
        assert history == (compared[0] / name / "history.jsonl").read_bytes()


@pytest.fixture
def own_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module of one's own in the working folder, whose function makes a network."""
    lines = [
        "from torch import nn",
        "def build():",
        "    return nn.Sequential(nn.Flatten(), nn.Linear(128, 1))",
    ]
    name = f"own_{tmp_path.name}"
    (tmp_path / f"{name}.py").write_text("\n".join([*lines, "def number():", "    return 7"]))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return name


def test_several_algorithms_with_ones_own_network_run_are_compared_and_resume(
    tmp_path: Path, own_model: str
) -> None:
    words = ("run", "color-digits", "-a", "fedsgd", "-a", "fishr-inter-geo", "--model", f"{own_model}:build")
    printed = fedilc(*words, "--rounds", 1)
    target = Path("runs/color-digits/fedsgd+fishr-inter-geo-seed0")
    assert names(table(printed)) == ["fedsgd", "fishr-inter-geo"]
    printed = fedilc(*words, "--rounds", 2, "--resume")
    assert f"run folder: {target}\n" in printed
    for name in ("fedsgd", "fishr-inter-geo"):
        assert len(records(target / name)) == 2
        about = json.loads((target / name / "run.json").read_text())["model"]
        assert about["function"] == f"{own_model}:build"
        assert "Linear(in_features=128, out_features=1" in about["layers"]
        assert re.fullmatch("[0-9a-f]{16}", about["weights"])
        assert "name" not in about


def test_an_algorithm_given_twice_runs_once(tmp_path: Path) -> None:
    fedilc("run", "color-digits", "-a", "fedsgd", "-a", "fedsgd", "--rounds", 1, "--out", tmp_path, *SMALL)
    assert len(records(tmp_path)) == 1


@pytest.mark.parametrize(
    ("function", "sentence"),
    [
        ("build", "model 'MODULE' is not of the form module:function"),
        (":nothing", "model 'MODULE:nothing': module 'MODULE' has no function 'nothing'"),
        (":number", "MODULE:number returned int, not a torch.nn.Module"),
    ],
    ids=["no colon", "no function", "no network"],
)
def test_a_network_of_ones_own_that_cannot_be_had_is_one_sentence(
    own_model: str, refusal: Refusal, function: str, sentence: str
) -> None:
    given = own_model if function == "build" else f"{own_model}{function}"
    assert refusal("run", "--model", given) == sentence.replace("MODULE", own_model)
    assert not Path("runs").exists()


@pytest.mark.parametrize(
    "words", [("serve", "color-digits", "--insecure"), ("sweep", "lambda")], ids=["serve", "sweep"]
)
def test_a_command_that_trains_one_algorithm_refuses_two(refusal: Refusal, words: tuple[str, ...]) -> None:
    assert "--algorithm was given 2 times; give it once" in refusal(*words, "-a", "fedcurv", "-a", "fedsgd")


def test_run_and_serve_have_the_same_options_for_what_is_trained() -> None:
    commands = typer.main.get_command(app).commands
    run, serve = ({word for one in commands[name].params for word in one.opts} for name in ("run", "serve"))
    assert run - serve == {"--resume"}
    assert {"--algorithm", "--rounds", "--seed", "--set", "--out", "--model", "--data-dir"} <= serve


def test_an_experiment_of_ones_own_files_runs(tmp_path: Path) -> None:
    printed = fedilc("run", experiment(tmp_path, OTHER), "--out", tmp_path / "run")
    assert "mine · fishr-inter-geo" in printed
    assert "OOD" not in printed
    assert len(records(tmp_path / "run")) == 1


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["-a", "fedsdg"], "algorithm 'fedsdg' is unknown; did you mean 'fedsgd'?"),
        (["color-digit"], "experiment 'color-digit' is unknown; did you mean 'color-digits'?"),
        (["gone.toml"], "gone.toml cannot be read: No such file or directory"),
        (["--set", "learning_rat=1"], "the key 'learning_rat' is unknown; did you mean 'learning_rate'?"),
        (["--set", "learning_rate"], "the change 'learning_rate' is not of the form key=value"),
        (["--set", "model.name=mpl"], "model 'mpl' is unknown; did you mean 'mlp'?"),
        (["--set", "model=cnn"], "model='cnn' is not a section; set its keys, as in model.name=..."),
        (
            ["--set", "model.name=cnn"],
            "model 'cnn' has no setting 'hidden'; leave it out (--set model.hidden=none)",
        ),
        (
            ["--set", "model.name=cnn", "--set", "model.hidden=none"],
            "model 'cnn' cannot be built for inputs of shape (2, 8, 8) with no sizes: ",
        ),
        (["--set", "model.hidden=[0]"], "model.hidden.0=0 is not valid: "),
        (["--set", "data={}"], "the key 'data.source' is missing; choose from color-digits, "),
        (["--set", "device=abacus"], "device 'abacus' cannot be used here"),
        (["--set", "device=meta"], "device 'meta' cannot be used here"),
        (["--set", "classifier=head"], "the model has no linear layer 'head'"),
        (["--rounds", "0"], "rounds=0 is not valid: input should be greater than or equal to 1"),
    ],
)
def test_a_mistake_in_the_command_is_one_sentence(
    tmp_path: Path, refusal: Refusal, arguments: list[str], sentence: str
) -> None:
    assert refusal("run", *arguments, "--out", tmp_path / "run").startswith(sentence)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("arguments", "what", "help_of"),
    [
        (["run", "--nope"], "--nope", "run"),
        (["run", "color-digits", "--rounds", "many"], "'--rounds'", "run"),
        (["run", "color-digits", "--rounds"], "'--rounds'", "run"),
        (["run", "color-digits", "more"], "more", "run"),
        (["report"], "runs", "report"),
        (["rnu"], "'rnu'", ""),
    ],
    ids=["unknown option", "no number", "no value", "one argument too many", "one too few", "no command"],
)
def test_a_command_that_cannot_be_parsed_is_one_sentence_that_names_what_is_wrong(
    refusal: Refusal, arguments: list[str], what: str, help_of: str
) -> None:
    said = refusal(*arguments)
    assert what.lower() in said.lower()
    assert f"(fedilc {help_of}" in said
    assert said.endswith("--help explains)")


@pytest.mark.parametrize(
    ("silo", "more", "sentence"),
    [
        (GOOD.replace("5,2.5", "5,NaN"), "", "NaN"),
        (
            GOOD.replace("5,2.5", "5,"),
            "",
            "b.csv: column 'dose' has an empty cell (first in line 7); fill or drop",
        ),
        (GOOD.replace("dose", "size"), "", "b and a differ: b lacks dose and also has size"),
        (
            GOOD.replace("2.5,1", "2.5,3"),
            "",
            "b.csv: column 'label' holds the label 3; labels must be 0 or 1",
        ),
        (GOOD.replace("2.5,1", "2.5,-3"), "loss = 'multiclass'", "b.csv: column 'label' holds the label -3"),
        (GOOD.replace("label", "outcome"), "", "b.csv has no column 'label'; name the label's column"),
        (GOOD.replace("2.5", "much"), "", "b.csv: column 'dose' holds text, not numbers ('much' in line 7)"),
        (GOOD, "test = 'far.csv'", "far.csv does not exist"),
    ],
    ids=["nan", "empty cell", "columns", "binary label", "class number", "no label", "text", "no test file"],
)
def test_a_silo_that_cannot_be_used_is_one_sentence(
    tmp_path: Path, refusal: Refusal, silo: str, more: str, sentence: str
) -> None:
    path = experiment(tmp_path, silo, more)
    assert sentence in refusal("run", path, "--out", tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_class_only_the_test_set_has_is_one_sentence(tmp_path: Path, refusal: Refusal) -> None:
    (tmp_path / "far.csv").write_text(GOOD.replace("2.5,1", "2.5,7"))
    path = experiment(tmp_path, GOOD, "loss = 'multiclass'\ntest = 'far.csv'")
    said = refusal("run", path, "--out", tmp_path / "run")
    assert said.startswith("the test set has the label 7, but the model has 2 logits")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "already holds a run; continue it with --resume"),
        (["--resume", "--rounds", "2"], "has already done 3 rounds, more than rounds=2"),
        (["--resume", "--seed", "1"], "belongs to another configuration: seed was 0 there and is 1 here"),
        (["--resume", "-a", "fedsgd"], "belongs to another configuration: algorithm was 'fishr-inter-geo'"),
        (
            ["--resume", "--set", "data.test_flip=0.5"],
            "another configuration: data.test_flip was 0.9",
        ),
    ],
    ids=["no resume", "rounds", "seed", "algorithm", "data"],
)
def test_a_folder_of_another_run_is_refused_and_left_as_it_was(
    copy: Path, refusal: Refusal, arguments: list[str], sentence: str
) -> None:
    before = contents(copy)
    assert sentence in refusal("run", "color-digits", "--rounds", 3, "--out", copy, *SMALL, *arguments)
    assert contents(copy) == before


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


@pytest.mark.parametrize(
    ("name", "spoil"),
    [
        ("run.json", cut),
        ("checkpoint.safetensors", lambda path: path.write_bytes(b"")),
        ("checkpoint.safetensors", lambda path: path.write_bytes(path.read_bytes()[::-1])),
        ("history.jsonl", lambda path: path.write_text(path.read_text().replace('"round"', "round", 1))),
        ("history.jsonl", cut),
    ],
    ids=["cut settings", "empty checkpoint", "reversed checkpoint", "broken history", "short history"],
)
def test_a_damaged_folder_is_refused_and_left_as_it_was(
    copy: Path, refusal: Refusal, name: str, spoil: Callable[[Path], object]
) -> None:
    (copy / "checkpoint-previous.safetensors").write_bytes(b"damaged too")
    spoil(copy / name)
    before = contents(copy)
    assert f"{name} " in refusal("run", "color-digits", "--rounds", 9, "--out", copy, "--resume", *SMALL)
    assert contents(copy) == before


def test_resume_needs_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refusal: Refusal) -> None:
    monkeypatch.chdir(tmp_path)
    assert "holds no run (there is no run.json)" in refusal("run", "--resume", "--out", tmp_path / "none")
    assert refusal("run", "--resume").startswith("there is no run to resume at runs/color-digits-shift/")


def test_a_folder_that_cannot_be_made_is_one_sentence(tmp_path: Path, refusal: Refusal) -> None:
    (tmp_path / "file").write_text("")
    assert "cannot be written: " in refusal(
        "run", "color-digits", "--rounds", 1, "--out", tmp_path / "file" / "run"
    )


def test_the_real_command_refuses_an_unknown_algorithm_in_one_sentence() -> None:
    words = [sys.executable, "-m", "fedilc", "run", "color-digits", "--algorithm", "fedsdg"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert one_sentence(done.stderr) == "algorithm 'fedsdg' is unknown; did you mean 'fedsgd'?"


def refused_by_a_process(folder: Path, *arguments: object) -> str:
    with fleet(folder) as commands:
        refused = commands.start(*arguments)
        assert refused.ended() == 2
        return one_sentence(refused.said)


def test_a_process_refuses_an_empty_silo_in_one_sentence(tmp_path: Path) -> None:
    said = refused_by_a_process(tmp_path, "run", experiment(tmp_path, ""), "--out", tmp_path / "run")
    assert str(tmp_path / "b.csv") in said
    assert "empty" in said


def test_a_process_refuses_a_truncated_checkpoint_and_leaves_the_folder_as_it_was(
    copy: Path, tmp_path: Path
) -> None:
    for name in ("checkpoint.safetensors", "checkpoint-previous.safetensors"):
        cut(copy / name)
    before = contents(copy)
    said = refused_by_a_process(
        tmp_path, "run", "color-digits", "--rounds", 9, "--out", copy, "--resume", *SMALL
    )
    assert said.startswith(f"{copy / 'checkpoint.safetensors'} is damaged or not a FedILC checkpoint")
    assert contents(copy) == before


def test_a_warning_of_a_process_is_one_sentence_and_no_refusal(tmp_path: Path) -> None:
    whole = ("-a", "fishr-intra-geo", "--set", "environment_size=none")
    with fleet(tmp_path) as commands:
        run = commands.start("run", "color-digits", "--rounds", 1, *whole, "--out", tmp_path / "run", *SMALL)
        assert run.ended() == 0
        said = [line for line in run.said.splitlines(keepends=True) if line.startswith("fedilc: ")]
    assert one_sentence("".join(said)).startswith("note: fishr-intra-geo works on environments inside a silo")
    assert len(records(tmp_path / "run")) == 1


def test_ctrl_c_before_the_first_round_is_said_and_has_its_own_exit_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("fedilc.config.read_experiment", interrupt)
    monkeypatch.setattr(sys, "argv", ["fedilc", "run"])
    with pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code == 130
    assert capsys.readouterr().err.splitlines()[-1:] == ["fedilc: interrupted"]


def test_ctrl_c_says_in_one_sentence_how_to_go_on_and_that_works(tmp_path: Path) -> None:
    out = tmp_path / "run"
    with fleet(tmp_path) as commands:
        endless = commands.start(
            "run", "color-digits", "-a", "fedsgd", "--rounds", 10**6, "--out", out, *SMALL
        )
        deadline = time.monotonic() + 120
        while not (out / "checkpoint.safetensors").exists():
            assert endless.process.is_alive(), endless.said
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert endless.process.pid is not None
        os.kill(endless.process.pid, signal.SIGINT)
        assert endless.ended() == 130
        *_, last = endless.said.splitlines(keepends=True)
    done = len(records(out))
    assert one_sentence(last) == f"stopped after round {done}; run the same command with --resume to continue"
    fedilc("run", "color-digits", "-a", "fedsgd", "--rounds", done + 1, "--out", out, "--resume", *SMALL)
    assert [record["round"] for record in records(out)] == list(range(1, done + 2))
