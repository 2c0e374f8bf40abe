"""The report as one page: what it says, that it needs nothing else, and how it looks in a browser."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Iterator
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch
from browser import Browser, browser
from hospitals import hospitals
from html_pages import Page
from typer.testing import CliRunner

from fedilc import Federation, Silo, train
from fedilc.cli.app import app
from fedilc.errors import ConfigError
from fedilc.evaluation import select
from fedilc.report.html.report import write_html_report
from fedilc.report.run_tables import run_groups

HOSTILE = "<img src=x onerror=alert(1)>"
COMMAND = ["/usr/bin/fedilc", "study", "my patients.csv", "--label", "died"]


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a small study; a hospital and a column have names that are HTML."""
    folder = tmp_path_factory.mktemp("study")
    frame = hospitals(4).with_columns(pl.col("hospital").replace({"H1": HOSTILE})).rename({"age": HOSTILE})
    frame.write_csv(folder / "patients.csv")
    about = ["--silo-column", "hospital", "--label", "died", "--missing", "lactate=-9"]
    small = ["--seeds", "1", "--rounds", "2", "--learning-rates", "0.01", "--penalty-weights", "1"]
    small += ["--hidden", "32", "--network-decays", "0", "--averages", "none"]
    few = ["-a", "fedavg", "-a", "fishr-inter-geo", "--hold-out", "H0", "--hold-out", HOSTILE]
    words = ["study", str(folder / "patients.csv"), *about, *small, *few, "--choose-by", "validation"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", COMMAND)
        done = CliRunner().invoke(app, [*words, "--jobs", "1", "--out", str(folder / "out")])
    assert done.exit_code == 0, done.output
    assert f"fedilc report {folder / 'out'} -o report.html" in done.output.replace("\n", "")
    return folder / "out"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of run folders: two algorithms, two seeds, the same data."""
    folder = tmp_path_factory.mktemp("runs")
    generator = torch.Generator().manual_seed(0)

    def examples(count: int) -> tuple[torch.Tensor, torch.Tensor]:
        x = torch.randn(count, 3, generator=generator)
        return x, (x[:, 0] + torch.randn(count, generator=generator) > 0).float()

    silos = [Silo(name, *examples(30), *examples(20)) for name in ("north", "south", HOSTILE)]
    federation = Federation("clinics", silos, *examples(40))
    for algorithm in ("fedsgd", "geometric"):
        for seed in (0, 1):
            torch.manual_seed(seed)
            model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, 1))
            out = folder / f"{algorithm}-{seed}"
            train(federation, model, algorithm, rounds=5, learning_rate=0.05, seed=seed, out=out)
    return folder


@pytest.fixture(scope="module")
def written(study: Path, runs: Path) -> Path:
    """A report of everything."""
    path = study.parent / "report.html"
    done = CliRunner().invoke(app, ["report", str(study), str(runs), "-o", str(path)])
    assert done.exit_code == 0, done.output
    return path


def test_the_verdict_comes_first_and_every_part_and_the_command_are_there(written: Path, study: Path) -> None:
    text = written.read_text()
    found = Page(text)
    headings = found.all("h1", "h2", "h3")
    facts = json.loads((study / "study.json").read_text())
    assert headings[:3] == ["Report: patients, clinics", "Verdict", "patients: study"]
    sentences = found.all("p")
    assert [s for s in sentences if s in facts["verdict"]] == facts["verdict"]
    for title in (
        *("All methods: mean over held-out sites", "Each held-out site"),
        *("Compared with fedavg", "Curves"),
        *("Calibration", "Agreement by layer and round", "How the silos' columns differ", "Scores"),
        *("Each silo that was trained on", "Settings and command", "Settings and commands"),
    ):
        assert title in headings
    assert found.all("pre")[0] == "fedilc study 'my patients.csv' --label died"
    captions = found.all("caption")
    for site in facts["held_out"]:
        value = facts["sites"][site]["fedavg"]["auroc"]
        assert any(caption.startswith(f"{site} (") for caption in captions)
        assert f"{value['value']:.3f}† [{value['low']:.3f}, {value['high']:.3f}]" in found.all("td")


def test_names_are_text_and_never_html(written: Path) -> None:
    found = Page(written.read_text())
    assert found.attributes("img", "script") == []
    assert HOSTILE in found.all("th")
    assert any(HOSTILE in caption for caption in found.all("caption"))


def test_the_page_needs_no_other_file_and_is_read_aloud_in_order(written: Path) -> None:
    found = Page(written.read_text())
    links = [a.get("href") or "" for a in found.attributes("a", "link")]
    assert all(link.startswith("#") or link == "data:," for link in links)
    assert not any("url(" in style for style in found.all("style"))
    identities = [a["id"] for _, a, _ in found.elements if "id" in a]
    assert len(identities) == len(set(identities))
    assert {link[1:] for link in links if link.startswith("#")} <= set(identities)
    levels = [int(tag[1]) for tag, _, _ in found.elements if tag in ("h1", "h2", "h3", "h4")]
    assert levels[0] == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))
    assert len(found.all("caption")) == len(found.all("table")) > 10
    assert all(a.get("scope") for a in found.attributes("th"))
    for attributes in found.attributes("svg"):
        assert attributes.get("aria-hidden") == "true" or len(attributes["aria-label"] or "") > 20


def test_runs_that_differ_by_seed_alone_are_one_method_and_the_verdict_is_on_their_mean(
    runs: Path, written: Path
) -> None:
    (group,) = run_groups(sorted(runs.iterdir()))
    assert {method: sorted(seeds) for method, seeds in group.methods.items()} == {
        "fedsgd": [0, 1],
        "geometric": [0, 1],
    }
    losses = {
        method: np.mean([select(run.history)["test_loss"] for run in seeds.values()])
        for method, seeds in group.methods.items()
    }
    best, other = sorted(losses, key=losses.__getitem__)
    sentence = f"{best} has the lowest loss of 2 methods: {losses[best]:.3f} ({other} {losses[other]:.3f})."
    assert any(sentence in said for said in Page(written.read_text()).all("p"))


def test_the_command_of_a_run_is_kept_as_it_was_typed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["run", "--rounds", "1", "--set", "model.hidden=[2]", "--out", str(tmp_path / "a run")]
    monkeypatch.setattr("sys.argv", ["/opt/fedilc/__main__.py", *words])
    assert CliRunner().invoke(app, words).exit_code == 0
    write_html_report(tmp_path / "report.html", [tmp_path])
    assert Page((tmp_path / "report.html").read_text()).all("pre") == [shlex.join(["fedilc", *words])]


def test_what_cannot_be_reported_is_said_in_a_sentence(study: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nothing to report in .*give the folder of a study"):
        write_html_report(tmp_path / "report.html", [tmp_path])
    facts = json.loads((study / "study.json").read_text())
    (tmp_path / "study.json").write_text(json.dumps(facts | {"format": 99}))
    with pytest.raises(ConfigError, match="its format is 99"):
        write_html_report(tmp_path / "report.html", [tmp_path])
    (tmp_path / "study.json").unlink()
    (tmp_path / "inspection.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"damaged .*inspect the tables again"):
        write_html_report(tmp_path / "report.html", [tmp_path])
    assert not (tmp_path / "report.html").exists()
    done = CliRunner().invoke(app, ["report", str(tmp_path)])
    assert "an inspection is reported with -o report.html" in str(done.exception)


@pytest.fixture(scope="module")
def tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browser(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


def axe() -> str:
    """The script of axe-core: that of the environment's AXE_CORE, or of the package axe-core-python."""
    package = find_spec("axe_core_python")
    if given := os.environ.get("AXE_CORE"):
        return Path(given).read_text()
    if package is None or package.origin is None:
        pytest.skip("needs axe-core: pip install 'fedilc[dev]', or name axe.min.js in AXE_CORE")
    return (Path(package.origin).parent / "axe.min.js").read_text()


WINDOWS = [(1280, False), (1280, True), (390, False), (390, True)]


@pytest.mark.parametrize(("width", "dark"), WINDOWS)
def test_a_browser_shows_it_without_error_request_or_too_little_contrast(
    tab: Browser, written: Path, width: int, dark: bool
) -> None:
    tab.open(written.as_uri(), width=width, dark=dark)
    assert tab.console() == []
    assert set(tab.requests()) <= {written.as_uri(), "data:,"}
    assert tab.overflow() <= 0
    contrasts = tab.contrasts()
    assert len(contrasts) > 100
    assert {text: ratio for text, ratio in contrasts.items() if ratio < 4.5} == {}


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (390, True)])
def test_axe_finds_no_violation(tab: Browser, written: Path, width: int, dark: bool) -> None:
    script = axe()
    tab.open(written.as_uri(), width=width, dark=dark)
    tab.run("document.querySelectorAll('details').forEach((e) => { e.open = true; })")
    tab.run(script)
    tab.driver.set_script_timeout(120)
    found = tab.driver.execute_async_script("axe.run().then(arguments[0])")
    assert len(found["passes"]) > 20
    assert [(one["id"], one["nodes"][0]["html"]) for one in found["violations"]] == []


def test_print_is_black_on_white_and_shows_what_is_folded(tab: Browser, written: Path) -> None:
    tab.open(written.as_uri(), dark=True)
    tab.command("Emulation.setEmulatedMedia", media="print")
    assert tab.run("return getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert not tab.shows("nav")
    heights = tab.run("return [...document.querySelectorAll('details')].map((e) => e.offsetHeight)")
    assert min(heights) > 60
