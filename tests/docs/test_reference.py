"""Generated parts of the reference explain every setting and error, and the picture is that of its script."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Annotated, Literal

import pytest

import fedilc.privacy.secure_sums
import fedilc.runtimes.remote.open_request
import fedilc.runtimes.remote.wire
import fedilc.runtimes.rest.http_client
import fedilc.runtimes.torchrun
import fedilc.studies.study.run
import fedilc.studies.worker_pool  # noqa: F401  (errors are found among subclasses)
from fedilc.errors import FedILCError

ROOT = Path(__file__).parents[2]
pytest.importorskip("sphinx", reason="the site is built with Sphinx; pip install 'fedilc[docs]'")


@pytest.fixture(scope="module")
def reference() -> ModuleType:
    """Return docs/site/reference.py."""
    spec = importlib.util.spec_from_file_location("reference", ROOT / "docs" / "site" / "reference.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_mark_of_a_page_is_a_function_and_every_function_is_used(reference: ModuleType) -> None:
    pages = [page.read_text() for page in (ROOT / "docs" / "reference").glob("*.md")]
    marks = {mark for page in pages for mark in re.findall(r"<!-- generated: (\w+) -->", page)}
    assert marks == reference.GENERATED.keys()


def test_every_setting_has_a_meaning(reference: ModuleType) -> None:
    for name in ("run", "local", "part", "model", "study", "data", "table"):
        text = reference.GENERATED[f"{name}_settings"]()
        assert text.count("\n| `") >= 2, name
        assert [line for line in text.splitlines() if line.endswith("| - |")] == []


def test_every_command_says_what_it_does(reference: ModuleType) -> None:
    sections = reference.commands().split("\n## ")
    assert len(sections) > 20
    for section in sections:
        assert re.search(r"`fedilc [\w -]+`\n\n[A-Z].*\.", section), section[:80]


def test_every_error_has_a_cause_and_a_remedy() -> None:
    page = (ROOT / "docs" / "reference" / "errors.md").read_text()
    rows = re.findall(r"^\| (`\w+Error`.*?) \|[^|]+\|[^|]+\|$", page, re.MULTILINE)
    named = set(re.findall(r"`(\w+Error)`", " ".join(rows)))

    def below(kind: type) -> set[str]:
        found = {one.__name__ for one in kind.__subclasses__() if not one.__name__.startswith("_")}
        return found.union(*(below(one) for one in kind.__subclasses__()))

    assert {name for name in below(FedILCError) if hasattr_in_package(name)} <= named


def hasattr_in_package(name: str) -> bool:
    """Return whether the package itself defines an error; tests define others."""
    return any(f"class {name}(" in file.read_text() for file in (ROOT / "src").rglob("*.py"))


def test_a_type_is_spelled_as_a_file_would_name_it(reference: ModuleType) -> None:
    assert reference.spelled(dict[str, list[str]]) == "dict[text, list[text]]"
    assert reference.spelled(Annotated[int, "bounds"]) == "int"
    assert reference.spelled(Literal["ema", "last"] | None) == '"ema" | "last" | none'


def test_the_picture_of_agreement_and_matching_is_that_of_its_script(tmp_path: Path) -> None:
    script = ROOT / "docs" / "pictures" / "agreement_and_matching.py"
    subprocess.run([sys.executable, script, tmp_path], check=True)
    for name in ("light", "dark"):
        file = f"agreement-and-matching-{name}.svg"
        assert (tmp_path / file).read_text() == (ROOT / "docs" / "images" / file).read_text()
