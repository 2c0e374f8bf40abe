"""The blocks of the tutorials and of some other pages run as they are written, in an empty folder.

A block whose first line is `# name.py` or `# name.toml` is that file. A block after a comment
`<!-- not run: why -->` is left out. Other pages have tests of their own (`OTHERS`).
"""

from __future__ import annotations

import doctest
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from needs import need

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
BLOCK = re.compile(
    r"(?:^<!-- not run: ([^\n]+) -->\n)?^```(sh|bash|python|toml)\n(.*?)^```$", re.DOTALL | re.MULTILINE
)
RUN = [
    *(
        "tutorials/five-minutes.md",
        "tutorials/own-table.md",
        "tutorials/own-model.md",
        "tutorials/plug-in.md",
    ),
    *("tutorials/secure-sums.md", "tutorials/torchrun.md", "how-to/python.md", "how-to/own-files.md"),
    *("how-to/containers.md", "explanation/geometric-mean.md"),
]
OTHERS = {
    "tutorials/three-machines.md": "test_deploy_docs.py",
    "tutorials/nvflare.md": "tests/runtimes/nvflare, with servers and sites as processes",
    "tutorials/flower.md": "tests/runtimes/flower, in an environment of its own",
    "how-to/tasks.md": "test_tasks_page.py",
    "how-to/tables.md": "tests/cli/test_export.py, tests/data",
    "how-to/study.md": "tests/cli/test_study.py; each command takes minutes",
    "research/study-evidence.md": "test_shortcut_maps.py",
    "reference/algorithms.md": "tests/helpers/worked_examples.py",
    "explanation/security.md": "tests/runtimes/rest; the lines are of several machines",
    "explanation/scale.md": "tests/runtimes; the lines take many minutes",
    "research/eicu.md": "tests/paper; the lines need data that users bring",
    "research/reproduction.md": "tests/paper; the lines take hours",
}


def blocks(page: str) -> list[tuple[str, str]]:
    """Return language and text of a page's blocks that are run."""
    return [(language, text) for why, language, text in BLOCK.findall((DOCS / page).read_text()) if not why]


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an empty folder in which `fedilc`, `python` and `torchrun` are those under test."""
    need("bash", "bash", "runs the lines of a page")
    bin_ = tmp_path / "bin"
    bin_.mkdir()
    for name, line in (("fedilc", "-m fedilc"), ("python", ""), ("torchrun", "-m torch.distributed.run")):
        (bin_ / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" {line} "$@"\n')
        (bin_ / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{bin_}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    return work


def test_every_page_with_code_is_run_here_or_by_a_test_of_its_own() -> None:
    with_code = {
        page.relative_to(DOCS).as_posix()
        for page in DOCS.glob("**/*.md")
        if "_build" not in page.parts and BLOCK.search(page.read_text())
    }
    assert with_code == set(RUN) | OTHERS.keys()


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("page", RUN)
def test_the_blocks_of_the_page_run(page: str, shell: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    printed = ""
    session: dict[str, object] = {}
    if page == "tutorials/plug-in.md":
        monkeypatch.setenv("PYTHONPATH", str(shell / "site"))
    for language, text in blocks(page):
        name = re.match(r"# ([\w/]+\.\w+)\n", text)
        if ">>>" in text:
            torch.manual_seed(0)
            example = doctest.DocTestParser().get_doctest(text, session, page, page, 0)
            outcome = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS).run(
                example, clear_globs=False
            )
            session |= example.globs
            assert outcome.failed == 0, page
        elif name is not None:
            (shell / name[1]).write_text(text)
        else:
            assert language in ("sh", "bash"), text
            if page == "tutorials/plug-in.md" and (shell / "steady").exists():
                install(shell)
            words = ["bash", "-euo", "pipefail", "-c", text]
            done = subprocess.run(words, capture_output=True, text=True, check=False)
            assert done.returncode == 0, f"{text}\n{done.stdout}\n{done.stderr}"
            printed += done.stdout + done.stderr
    for line in re.findall(r"^It prints `(.*?)`", (DOCS / page).read_text(), re.MULTILINE):
        assert f"{line}\n" in printed
    if page == "tutorials/own-table.md":
        shown = re.search(r"verdict of this table begins:\n\n((?:> .*\n)+)", (DOCS / page).read_text())
        assert shown is not None
        assert without_numbers(shown[1].replace("> ", "")) in without_numbers(printed)


def without_numbers(text: str) -> str:
    """Return a text as one line with a sign in place of each number: other processors, other last digits."""
    return re.sub(r"[-+]?\d*\.?\d+", "#", " ".join(text.split()))


def install(folder: Path) -> None:
    """Install the package of the page on plug-ins, without a network."""
    if not (folder / "site").exists():
        quiet = ["-q", "--disable-pip-version-check", "--no-build-isolation", "--no-deps", "--no-index"]
        words = [sys.executable, "-m", "pip", "install", *quiet, "--target", "site", "./steady"]
        subprocess.run(words, cwd=folder, check=True, env=os.environ | {"PYTHONPATH": ""})
