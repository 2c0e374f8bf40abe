"""The wheel works outside the repository, installed in an empty environment and run in an empty folder."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import urllib.request
import venv
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from ports import free_port

pytestmark = pytest.mark.slow

REPOSITORY = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("dist")
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out)]
    subprocess.run([*build, str(REPOSITORY)], check=True, capture_output=True)
    (found,) = out.glob("fedilc-*.whl")
    return found


@pytest.fixture(scope="module")
def command(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Return the installed command of an environment that has the wheel, and its dependencies by path."""
    place = tmp_path_factory.mktemp("environment")
    venv.create(place, with_pip=False)
    python = place / "bin" / "python"
    install = [sys.executable, "-m", "pip", "--python", str(python), "install", "--no-deps", "--no-index"]
    subprocess.run([*install, "--disable-pip-version-check", str(wheel)], check=True, capture_output=True)
    (packages,) = place.glob("lib/python*/site-packages")
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib"))
    return [str(place / "bin" / "fedilc")]


@pytest.fixture
def run(command: list[str], tmp_path: Path) -> Callable[..., str]:
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}

    def run(*words: str) -> str:
        done = subprocess.run(
            [*command, *words], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


def test_the_wheel_holds_the_package_and_nothing_else(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0].split("-")[0] for name in names} == {"fedilc"}
    for needed in (
        "py.typed",
        "experiments/color-digits.toml",
        "data/embedded_files/digits.csv.gz",
        "data/embedded_files/heart-disease/ATTRIBUTION.md",
        "data/embedded_files/heart-disease/processed.va.data.gz",
        "report/html/templates/page.html.jinja",
        "report/html/templates/page.css",
        "runtimes/flower/templates/client_app.py.jinja",
        "runtimes/rest/page/index.html",
        "training/templates/model-card.md.jinja",
    ):
        assert f"fedilc/{needed}" in names


def test_the_installed_command_lists_trains_reports_and_shows_a_run(
    command: list[str], run: Callable[..., str], tmp_path: Path
) -> None:
    assert "fishr-inter-geo" in run("list")
    assert "run folder: one" in run("run", "color-digits", "-a", "fedsgd", "--rounds", "2", "--out", "one")
    assert "fedsgd" in (tmp_path / "one" / "model-card.md").read_text()
    run("report", "one", "-o", "report.html")
    assert "</html>" in (tmp_path / "report.html").read_text()
    run("flower", "new", "app")
    assert "make_silo" in (tmp_path / "app" / "client_app.py").read_text()
    port = free_port()
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    serving = subprocess.Popen(
        [*command, "serve", "--view", "one", "--insecure", "--port", str(port)],
        cwd=tmp_path,
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert serving.stdout is not None
        assert f":{port}" in serving.stdout.readline()
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=10) as page:
            assert b"<title>" in page.read()
    finally:
        serving.terminate()
        serving.wait(20)
