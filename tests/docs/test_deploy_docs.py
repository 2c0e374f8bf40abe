"""The tutorial on three machines says what works: files, options, certificates and commands."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import pytest
import torch
import typer
from needs import need

from fedilc import Federation, Silo
from fedilc.algorithms import find_algorithm
from fedilc.cli.app import app
from fedilc.cli.serve_study import read_remote_study
from fedilc.config import Options, read_experiment
from fedilc.data.sources import Remote
from fedilc.evaluation import measure
from fedilc.federation import Program, Request
from fedilc.gradients import Loss, ModelRunner
from fedilc.models import build_model
from fedilc.runtimes.local import LocalRuntime

DOCS = Path(__file__).parents[2] / "docs"
PAGE_FILE = DOCS / "tutorials" / "three-machines.md"
PAGE = PAGE_FILE.read_text()
UNITS = sorted((DOCS / "deploy").glob("*.service"))
HOST = "coordinator.example.org"
SILOS = ("north", "south")


def blocks(language: str) -> list[str]:
    """The page's fenced blocks of a language, lines continued by a backslash joined."""
    found = re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    return [block.replace("\\\n", " ") for block in found]


def commands() -> list[str]:
    """Every `fedilc ...` of the page's blocks and of the units, up to a redirection or a comment."""
    texts = [*blocks("sh"), *blocks("ini"), *(unit.read_text().replace("\\\n", " ") for unit in UNITS)]
    lines = [line.removeprefix("ExecStart=/opt/fedilc/bin/") for text in texts for line in text.splitlines()]
    return [re.split(r"[>#|]", line)[0].strip() for line in lines if line.startswith("fedilc ")]


def command(*words: str) -> str:
    """The first of those commands that has all these words."""
    return next(line for line in commands() if set(words) <= set(line.split()))


def test_the_page_has_the_commands_that_the_tests_below_look_at() -> None:
    assert len(commands()) >= 14
    assert {line.split()[1] for line in commands()} == {"list", "token", "serve", "join"}
    assert len(UNITS) == 2


def test_the_experiment_of_the_page_is_that_of_the_file_and_is_valid() -> None:
    settings, _ = read_experiment(str(DOCS / "deploy" / "hospitals.toml"))
    assert isinstance(settings.data, Remote)
    assert settings.data.silos == ["north", "south"]
    whole = tomllib.loads((DOCS / "deploy" / "hospitals.toml").read_text())
    shown = tomllib.loads(blocks("toml")[0])
    assert shown == {key: whole[key] for key in shown}
    assert set(whole) - set(shown) == {"summary", "seed"}


def test_the_study_of_the_page_is_valid(tmp_path: Path) -> None:
    file = tmp_path / "study.toml"
    file.write_text(blocks("toml")[1])
    found = read_remote_study(str(file))
    assert found is not None
    assert found.source.silos == ["north", "south", "west"]
    assert found.settings == {"rounds": 100, "on_lost": "wait"}


@pytest.mark.parametrize("line", commands())
def test_every_command_of_the_page_is_one_that_the_program_takes(line: str) -> None:
    _, name, *words = shlex.split(line)
    group = typer.main.get_command(app)
    found = group.commands[name]
    found.make_context(name, words).close()


def test_every_file_that_the_page_links_to_is_there() -> None:
    links = [link for link in re.findall(r"\]\(([^)#]+)\)", PAGE) if not link.startswith("http")]
    assert links
    assert [link for link in links if not (PAGE_FILE.parent / link).exists()] == []


def test_the_page_says_that_gradients_leak_and_what_is_not_there() -> None:
    assert "Gradients leak" in PAGE
    assert "There is no differential privacy in this version." in PAGE


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_systemd_finds_nothing_wrong_with_the_unit(unit: Path, tmp_path: Path) -> None:
    need("systemd-analyze", "systemd", "checks the units that the page gives out")
    copy = tmp_path / unit.name
    copy.write_text(unit.read_text().replace("/opt/fedilc/bin/fedilc", "/bin/true"))
    done = subprocess.run(["systemd-analyze", "verify", copy], capture_output=True, text=True)
    assert unit.name not in done.stderr


class Shell:
    """Runs the page's lines in a study's folder, where `fedilc` is the one under test."""

    def __init__(self, folder: Path) -> None:
        self.study = folder / "study"
        self.study.mkdir()
        program = folder / "bin" / "fedilc"
        program.parent.mkdir()
        program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m fedilc "$@"\n')
        program.chmod(0o755)
        path = f"{program.parent}{os.pathsep}{os.environ['PATH']}"
        self.environment = os.environ | {"PATH": path, "OMP_NUM_THREADS": "1"}

    def run(self, lines: str) -> str:
        """What the lines print; every one of them must succeed."""
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", lines.replace(HOST, "localhost")],
            cwd=self.study,
            env=self.environment,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    @contextmanager
    def start(self, line: str) -> Iterator[subprocess.Popen[str]]:
        """A command that goes on while the context lasts, and no longer."""
        process = subprocess.Popen(
            ["bash", "-c", f"exec {line}"],
            cwd=self.study,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        with process:
            try:
                yield process
            finally:
                process.kill()


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Shell:
    """A study's folder with the page's tokens and certificates, for this machine's own name."""
    need("bash", "bash", "runs the page's lines")
    need("openssl", "openssl", "makes the page's certificates")
    shell = Shell(tmp_path_factory.mktemp("deploy"))
    for block in blocks("sh"):
        if "openssl" in block or "--viewer" in block:
            shell.run(block)
    return shell


def test_the_certificate_lasts_and_its_key_is_nobody_elses(shell: Shell) -> None:
    assert "localhost" in shell.run("openssl x509 -in coordinator.pem -noout -ext subjectAltName")
    secrets = ["ca.key", "coordinator.key", "north.token", "tokens.json"]
    assert [oct((shell.study / name).stat().st_mode & 0o777) for name in secrets] == ["0o600"] * 4


def test_nginx_takes_the_site(shell: Shell, tmp_path: Path) -> None:
    nginx = need("nginx", "nginx", "checks the site that the page gives out")
    site = (DOCS / "deploy" / "nginx.conf").read_text().replace("/etc/fedilc/", f"{shell.study}/")
    (tmp_path / "site.conf").write_text(site)
    places = " ".join(
        f"{kind}_temp_path {tmp_path}/{kind};"
        for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    whole = (
        f"pid {tmp_path}/pid; error_log stderr; events {{}} http {{ {places} include {tmp_path}/site.conf; }}"
    )
    (tmp_path / "nginx.conf").write_text(whole)
    shell.run(f"{nginx} -t -p {tmp_path} -c {tmp_path}/nginx.conf")


@pytest.mark.long
def test_the_pages_own_commands_train_over_tls_with_tokens(shell: Shell) -> None:
    made = [sys.executable, DOCS / "deploy" / "example_data.py", shell.study]
    subprocess.run(made, check=True, env=shell.environment)
    for name in ("hospitals.toml", "own_silo.py"):
        shutil.copy(DOCS / "deploy" / name, shell.study)
    serve = command("serve", "--cert", "--out").replace("0.0.0.0", "127.0.0.1")
    with ExitStack() as running:
        coordinator = running.enter_context(shell.start(f"{serve} --port 0 --rounds 3"))
        assert coordinator.stdout is not None
        said = coordinator.stdout.readline()
        port = re.search(r"https://127\.0\.0\.1:(\d+)", said)
        assert port is not None, said + coordinator.communicate(timeout=10)[1]
        joins = (command("join", silo).replace(f"{HOST}:8443", f"localhost:{port[1]}") for silo in SILOS)
        silos = [running.enter_context(shell.start(join)) for join in joins]
        for name, silo in zip(SILOS, silos, strict=True):
            out, err = silo.communicate(timeout=200)
            assert f"{name}: the run is over: complete" in out, err
        _, err = coordinator.communicate(timeout=60)
        assert coordinator.returncode == 0, err
    records = [json.loads(line) for line in (shell.study / "run" / "history.jsonl").read_text().splitlines()]
    assert [record["round"] for record in records] == [1, 2, 3]
    assert [record["silos"][name]["examples"] for record in records for name in SILOS] == [840, 500] * 3
    assert records[-1]["test_loss"] < records[0]["test_loss"]


def test_the_gradient_of_a_silo_with_one_patient_is_that_patient() -> None:
    """What the page says of reconstruction: the first layer's gradient, divided by its bias's."""
    patient = torch.tensor([[0.7, 1.0, -0.2, 1.4, 2.1, 0.0]])
    silo = Silo("north", patient, torch.ones(1))
    options, loss = Options(rounds=1, learning_rate=0.1), Loss("binary")
    model = build_model("mlp", (6,), 1, seed=0, hidden=[32, 32])
    program = Program.of(find_algorithm("fedsgd")[1], "binary", options, model)
    runner = ModelRunner(model, loss)
    runtime = LocalRuntime(Federation("one", [silo]), runner, program, partial(measure, loss))
    weights = {name: parameter.detach() for name, parameter in model.named_parameters()}
    (reply,) = runtime.ask(Request("update", 1, 0, ("north",), weights))
    rows, biases = reply.tensors["gradient"]["1.weight"], reply.tensors["gradient"]["1.bias"]
    unit = int(biases.abs().argmax())
    torch.testing.assert_close(rows[unit] / biases[unit], patient[0], rtol=1e-4, atol=1e-5)
