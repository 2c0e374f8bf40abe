"""The plain package: a silo needs nothing else, and what needs more says which extra to install."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions, requires
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch
from command import Refusal, fedilc
from fleets import assert_same_run, fleet, outcome_of

from fedilc.errors import ConfigError, require_extra

pytestmark = pytest.mark.slow

PROJECT = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
PLAIN = {"torch", "numpy", "httpx", "safetensors", "pydantic", "typer", "rich", "polars", "filelock"}
WITHOUT_OTHERS = """
import sys
from importlib.machinery import PathFinder
blocked, find = frozenset({blocked!r}), PathFinder.find_spec
PathFinder.find_spec = lambda name, *rest: None if name.partition(".")[0] in blocked else find(name, *rest)
from fedilc.cli import main
main()
"""


def _name(requirement: str) -> str:
    return re.sub(r"[-_.]+", "-", re.match(r"[\w.-]+", requirement)[0]).lower()


def _with_requirements(names: set[str]) -> set[str]:
    """Return distributions and all that they require, without extras."""
    found, left = set(), list(names)
    while left:
        name = left.pop()
        if name not in found:
            found.add(name)
            try:
                needed = requires(name) or []
            except ModuleNotFoundError:  # of another system
                continue
            left += [_name(one) for one in needed if "extra ==" not in one]
    return found


def plain(*words: object, folder: Path, also: str = "") -> subprocess.Popen[str]:
    """Start the command in an interpreter that finds no module but those of the plain packages."""
    allowed = _with_requirements(PLAIN | {also} - {""}) | {"fedilc"}
    modules = packages_distributions().items()
    blocked = {module for module, owners in modules if allowed.isdisjoint(map(_name, owners))}
    assert {"scipy", "matplotlib", "PIL", "pooch", "requests", "numba", "fastapi"} - {also} <= blocked
    return subprocess.Popen(
        [sys.executable, "-c", WITHOUT_OTHERS.format(blocked=blocked), *map(str, words)],
        cwd=folder,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def ended(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    try:
        said, errors = process.communicate(timeout=120)
    finally:
        process.kill()
    return process.returncode, said, errors


def test_the_plain_package_declares_what_a_silo_needs_numba_and_what_torch_brings_anyway() -> None:
    assert set(map(_name, PROJECT["dependencies"])) == PLAIN | {"numba", "jinja2"}
    assert "jinja2" in _with_requirements({"torch"})


def test_what_is_coupled_to_private_names_has_an_upper_bound() -> None:
    needed = {
        _name(one): one for one in [*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["serve"]]
    }
    assert "<" in needed["uvicorn"]
    assert "<" in needed["torch"]


@pytest.fixture
def hospitals(tmp_path: Path) -> Path:
    """Tables of two hospitals, and an experiment whose silos average environments of their own."""
    random = np.random.default_rng(0)
    for name in ("a", "b"):
        age, lab = random.normal(60, 10, 60).round(1), random.normal(5, 1, 60)
        died = np.where(age + random.normal(0, 8, 60) > 60, "yes", "no")
        pl.DataFrame({"age": age, "lab": lab, "died": died}).write_csv(tmp_path / f"{name}.csv")
    (tmp_path / "study.toml").write_text(
        'rounds = 3\nlearning_rate = 0.02\nalgorithm = "fishr-intra-geo"\nenvironment_size = 8\n'
        '[data]\nsource = "remote-tables"\nsilos = ["a", "b"]\nlabel = "died"\npositive = "yes"\n'
        '[model]\nname = "mlp"\nhidden = [6]\n'
    )
    return tmp_path


@pytest.mark.filterwarnings("ignore::fedilc.errors.FedILCWarning")
def test_a_silo_joins_with_the_plain_packages_alone(hospitals: Path) -> None:
    for kind in ("all", "plain"):
        with fleet(hospitals) as processes:
            coordinator, url = processes.serve(hospitals / "study.toml", "--out", hospitals / kind)
            words = [
                ["join", url, "--silo", name, "--data", hospitals / f"{name}.csv", "--yes"] for name in "ab"
            ]
            whole = processes.start(*words[0])
            if kind == "all":
                other = processes.start(*words[1])
                assert other.ended() == 0, other.said
            else:
                code, said, errors = ended(plain(*words[1], folder=hospitals))
                assert code == 0, errors
                assert "the run is over: complete" in said
            assert whole.ended() == 0, whole.said
            assert coordinator.ended() == 0, coordinator.said
    (history, tensors), (other_history, others) = (outcome_of(hospitals / kind) for kind in ("all", "plain"))
    assert len(history) == len(other_history) == 3
    for name, tensor in tensors.items():  # torch adds the terms of small products in another order
        torch.testing.assert_close(others[name], tensor, rtol=1e-4, atol=1e-7)


def test_a_run_is_complete_without_its_picture_and_says_what_would_draw_it(tmp_path: Path) -> None:
    words = ["run", "color-digits", "-a", "fishr-inter-geo", "--rounds", "2", "--out", "run"]
    code, said, errors = ended(plain(*words, folder=tmp_path))
    assert code == 0, errors
    assert "run folder: run" in said
    assert "picture:" not in said
    assert errors.count("\n") == 1
    assert "note: a picture needs matplotlib and pillow and scipy" in errors
    assert "pip install 'fedilc[report]'" in errors
    assert json.loads((tmp_path / "run" / "run.json").read_text())["machines"][0]["numba"] == "not installed"
    fedilc("run", *words[1:-1], tmp_path / "whole")
    assert_same_run(tmp_path / "whole", tmp_path / "run")


@pytest.mark.parametrize(
    ("words", "extra"),
    [
        (["study"], "report"),
        (["report", "."], "report"),
        (["sweep", "lambda"], "report"),
        (["reproduce", "color-digits"], "report"),
        (["data", "fetch", "mnist", "--data-dir", "data"], "benchmarks"),
        (["serve", "color-digits", "--insecure"], "serve"),
        (["run", "pictures.toml"], "images"),
    ],
)
def test_a_missing_extra_is_one_sentence_that_says_what_to_install(
    tmp_path: Path, words: list[str], extra: str
) -> None:
    for silo in "ab":
        for label in "xy":
            (tmp_path / "pictures" / silo / label).mkdir(parents=True)
            (tmp_path / "pictures" / silo / label / "1.png").write_bytes(b"")
    (tmp_path / "pictures.toml").write_text(
        'rounds = 1\nlearning_rate = 0.1\n[data]\nsource = "images"\nfolder = "pictures"\nimage_size = 16\n'
    )
    code, said, errors = ended(plain(*words, folder=tmp_path))
    assert (code, said) == (2, "")
    assert errors.count("\n") == 1
    assert errors.endswith(f"pip install 'fedilc[{extra}]'\n")


def test_a_module_that_is_there_is_not_asked_for() -> None:
    require_extra("report", "this", "json")
    with pytest.raises(
        ConfigError, match=r"^this needs no_such_module and neither, which .*'fedilc\[report\]'$"
    ):
        require_extra("report", "this", "json", "no_such_module", "neither")


def test_a_statistic_that_is_computed_late_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, refusal: Refusal
) -> None:
    def needs_scipy(*_: object, **__: object) -> None:
        raise ModuleNotFoundError("No module named 'scipy.stats'", name="scipy.stats")

    monkeypatch.setattr("fedilc.cli.predict.load_run", needs_scipy)
    assert refusal("evaluate", "run", "table.csv").endswith("run pip install 'fedilc[report]'")
