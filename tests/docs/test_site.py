"""The site builds without a warning, needs nothing from elsewhere, and every link in it leads somewhere."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

import fedilc

pytest.importorskip("sphinx", reason="the site is built with Sphinx; pip install 'fedilc[docs]'")
bs4 = pytest.importorskip("bs4", reason="pages are read with Beautiful Soup, which the site's theme brings")

pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(1200)]
ROOT = Path(__file__).parents[2]
VERSION = fedilc.__version__
LOADED = {"script": "src", "link": "href", "img": "src", "iframe": "src", "source": "src", "video": "src"}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the site into a folder of its own."""
    folder = tmp_path_factory.mktemp("site")
    made = [sys.executable, ROOT / "docs" / "site" / "build.py", folder]
    done = subprocess.run(made, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr + done.stdout
    return folder


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, bs4.BeautifulSoup]:
    """Return every page of the site by its file."""
    found = {file: bs4.BeautifulSoup(file.read_text(), "html.parser") for file in site.rglob("*.html")}
    assert len(found) > 30
    return found


def test_every_internal_link_and_anchor_leads_somewhere(pages: dict[Path, bs4.BeautifulSoup]) -> None:
    anchors = {file: {tag["id"] for tag in page.find_all(id=True)} for file, page in pages.items()}
    broken = []
    for file, page in pages.items():
        found = [tag[key] for tag in page.find_all(True) for key in ("href", "src") if tag.get(key)]
        for link in found:
            parts = urlsplit(link)
            if parts.scheme:
                continue
            target = (file.parent / unquote(parts.path)).resolve() if parts.path else file
            target = target / "index.html" if target.is_dir() else target
            missing = parts.fragment and unquote(parts.fragment) not in anchors.get(target, parts.fragment)
            if not target.exists() or missing:
                broken.append(f"{file.name}: {link}")
    assert broken == []


def test_no_page_loads_anything_from_elsewhere(site: Path, pages: dict[Path, bs4.BeautifulSoup]) -> None:
    for page in pages.values():
        for tag in page.find_all(list(LOADED)):
            assert not re.match("https?:|//", tag.get(LOADED[tag.name], "")), tag
    for sheet in site.rglob("*.css"):
        assert not re.search(r"(?:url\(|@import)\s*['\"]?(?:https?:)?//", sheet.read_text()), sheet
    for script in (site / VERSION / "_static").rglob("*.js"):
        assert not re.search(r"(?:fetch|import)\(\s*['\"`]https?:", script.read_text()), script


def test_formulas_are_mathml(site: Path, pages: dict[Path, bs4.BeautifulSoup]) -> None:
    assert "mathjax" not in " ".join(str(page.head).lower() for page in pages.values())


def test_the_search_finds_names_settings_and_words_of_errors_without_a_server(site: Path) -> None:
    index = (site / VERSION / "searchindex.js").read_text()
    assert index.startswith("Search.setIndex(")
    for word in ("penalty_weight", "silos_per_round", "weighted_geometric_mean", "batchnorm"):
        assert word.lower() in index.lower(), word


def test_every_page_has_the_version_and_the_switch(site: Path, pages: dict[Path, bs4.BeautifulSoup]) -> None:
    assert (site / "versions.js").read_text() == f'const fedilcVersions = ["{VERSION}"];\n'
    for file, page in pages.items():
        if file.parent != site:
            assert VERSION in page.title.text, file
            assert page.find(id="versions") is not None, file


def test_every_public_name_is_in_the_reference(pages: dict[Path, bs4.BeautifulSoup]) -> None:
    identifiers = {tag["id"] for page in pages.values() for tag in page.find_all("dt", id=True)}
    names = {identifier.rpartition(".")[2] for identifier in identifiers}
    described_elsewhere = {"__version__", "algorithms", "Geometric"}  # Geometric is WeightedGeometricMean
    assert set(fedilc.__all__) - described_elsewhere <= names
