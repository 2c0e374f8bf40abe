"""The command as a whole: help, version, and a sentence instead of a traceback if the machine fails."""

from __future__ import annotations

import os
import re
import resource
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from command import Refusal, fedilc, one_sentence
from fleets import PATIENCE, forked

from fedilc import __version__, cli
from fedilc.cli.app import app
from fedilc.errors import FedILCWarning
from fedilc.storage.run_folder import RunFolder, examine

RUN = ["run", "color-digits", "-a", "fedsgd", "--rounds", "4", "--set", "model.hidden=[16]"]


def limited(limit: str, value: int, words: list[str], log: str) -> None:
    """The command under a limit of the kernel's, what it says of errors in a file."""
    file = os.open(log, os.O_WRONLY | os.O_CREAT, 0o600)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    os.dup2(file, 2)
    kind = getattr(resource, limit)
    before = resource.getrlimit(kind)
    resource.setrlimit(kind, (value, before[1]))
    sys.argv = ["fedilc", *words]
    try:
        cli.main()
    finally:
        resource.setrlimit(kind, before)  # coverage writes its own file after the command


def refused_under(limit: str, value: int, folder: Path, *words: object) -> str:
    log = folder / "log.txt"
    process = forked(limited, limit, value, [str(word) for word in words], str(log))
    process.join(PATIENCE)
    assert process.exitcode == 2, log.read_text()
    lines = [line for line in log.read_text().splitlines(keepends=True) if "note: " not in line]
    return one_sentence("".join(lines))


def test_a_disk_without_room_is_one_sentence_and_the_run_goes_on_from_there(tmp_path: Path) -> None:
    """No file may grow larger than settings and history: the kernel then says what a full disk says."""
    whole, short = tmp_path / "whole", tmp_path / "short"
    fedilc(*RUN, "--out", whole)
    fedilc(*RUN, "--out", short, "--rounds", 2)
    room = 1000 + max((whole / name).stat().st_size for name in ("run.json", "history.jsonl"))
    assert room < (short / "checkpoint.safetensors").stat().st_size
    said = refused_under("RLIMIT_FSIZE", room, tmp_path, *RUN, "--out", short, "--resume")
    assert said.startswith(f"{short} cannot be written: File too large; round 3 is lost; correct this")
    assert set(examine(short).values()) == {None}
    assert len(RunFolder(short).load().history) == 2
    fedilc(*RUN, "--out", short, "--resume")
    for name in ("history.jsonl", "checkpoint.safetensors", "best-validation.safetensors"):
        assert (short / name).read_bytes() == (whole / name).read_bytes()


def test_no_descriptors_left_is_one_sentence(tmp_path: Path) -> None:
    said = refused_under("RLIMIT_NOFILE", 4, tmp_path, *RUN, "--out", tmp_path / "run")
    assert "Too many open files" in said


@pytest.mark.parametrize(
    "name", ["best-validation.safetensors.tmp", "timing.jsonl", "loss.png"], ids=["best", "timing", "picture"]
)
def test_a_file_without_which_a_run_is_as_good_does_not_end_it(name: str, tmp_path: Path) -> None:
    out = tmp_path / "run"
    fedilc(*RUN, "--out", out, "--rounds", 1)
    (out / name).unlink(missing_ok=True)
    (out / name / "in the way").mkdir(parents=True)
    with pytest.warns(FedILCWarning, match="cannot be written"):
        fedilc(*RUN, "--out", out, "--resume")
    assert len(RunFolder(out).load().history) == 4


def test_the_bare_command_shows_its_help_without_an_empty_complaint() -> None:
    done = subprocess.run([sys.executable, "-m", "fedilc"], capture_output=True, text=True, check=False)
    assert "Usage: " in done.stdout + done.stderr
    assert "fedilc: (" not in done.stderr


def test_an_unknown_command_points_to_a_help_that_exists(refusal: Refusal) -> None:
    assert "(fedilc --help explains)" in refusal("rnu")


def test_threads_that_wait_sleep_unless_the_user_says_otherwise(tmp_path: Path) -> None:
    own = {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"}
    shown = own | {"OMP_DISPLAY_ENV": "TRUE"}
    for given, policy in (({}, "PASSIVE"), ({"OMP_WAIT_POLICY": "ACTIVE"}, "ACTIVE")):
        command = [sys.executable, "-m", "fedilc", *RUN, "--out", str(tmp_path / policy)]
        done = subprocess.run(command, env=shown | given, capture_output=True, text=True, timeout=PATIENCE)
        assert re.search(rf"OMP_WAIT_POLICY\s*=\s*'{policy}'", done.stderr)


def test_version_is_the_packages_version() -> None:
    assert fedilc("--version") == f"fedilc {__version__}\n"


def test_the_help_names_every_command_and_each_explains_itself() -> None:
    shown = fedilc("--help")
    for name, command in typer.main.get_command(app).commands.items():
        assert re.search(rf"^. {name} +\S", shown, re.MULTILINE), name
        assert "Usage: " in fedilc(name, "--help")
        assert command.help, name


def test_help_comes_without_loading_torch() -> None:
    code = (
        "import sys\n"
        "from fedilc.cli import main\n"
        "sys.argv = ['fedilc', '--help']\n"
        "try:\n    main()\n"
        "finally:\n    heavy = {'torch', 'numpy', 'polars', 'matplotlib'} & set(sys.modules)\n"
        "    print('loaded:', sorted(heavy))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.endswith("loaded: []\n")
