"""All pages: the links lead somewhere, and the modules, commands and options that are named exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import typer

from fedilc.cli.app import app

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "fedilc"
WRITTEN = [page for page in sorted((ROOT / "docs").glob("**/*.md")) if "_build" not in page.parts]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md", *WRITTEN]
FOLDERS = (
    ROOT,
    ROOT / "docs",
    PACKAGE,
    PACKAGE / "runtimes",
    *(path for path in PACKAGE.iterdir() if path.is_dir()),
)
OTHER_FILES = {"client_app.py", "server_app.py", "wards.py"}  # that a user has

every_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)


def anchors(page: Path) -> set[str]:
    """Return the anchors of the headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@every_page
def test_links_lead_to_files_and_headings(page: Path) -> None:
    for target, anchor in re.findall(r"\]\(([^)#\s]*)#?([^)\s]*)\)", page.read_text()):
        if not target.startswith("http"):
            file = (page.parent / target) if target else page
            assert file.exists(), target
            assert not anchor or anchor in anchors(file), f"{target}#{anchor}"


@every_page
def test_modules_that_are_named_exist(page: Path) -> None:
    text = page.read_text()
    made = set(re.findall(r"^(?:# |cat > |touch )([\w/]+\.py)\b", text, re.MULTILINE))
    for name in set(re.findall(r"[\w/]+\.py\b", text)) - OTHER_FILES - made:
        found = any((folder / name.lstrip("/").removeprefix("fedilc/")).exists() for folder in FOLDERS)
        assert found or list((ROOT / "docs" / "deploy").glob(Path(name).name)), name


@every_page
def test_commands_and_their_options_exist(page: Path) -> None:
    text = page.read_text().replace("\\\n", " ")
    lines = re.findall(r"^(?:sudo )?fedilc (.*)$", text, re.MULTILINE) + re.findall(r"`fedilc ([^`]*)`", text)
    for line in lines:
        command, words = typer.main.get_command(app), re.split(r"\s+#|&&|>|\|", line)[0].split()
        while words and words[0] in getattr(command, "commands", {}):
            command = command.commands[words.pop(0)]
        known = {name for option in command.params for name in (*option.opts, *option.secondary_opts)}
        given = {re.split("[=,]", word)[0] for word in words if re.match("--?[a-z]", word)}
        assert given <= known | {"--help"}, line
        assert not hasattr(command, "commands") or not words or not words[0].isidentifier(), line
