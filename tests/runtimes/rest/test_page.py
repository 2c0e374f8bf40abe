"""The page as people meet it, in a real browser: live, finished, long, crowded, hostile, on a phone."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from browser import Browser, browser, record, silo, staged
from fleets import Fleet, Member, fleet
from typer.testing import CliRunner

from fedilc import Federation, Silo, train
from fedilc.cli.app import app
from fedilc.data.silo_store import SiloStore
from fedilc.errors import FedILCWarning
from fedilc.evaluation import select
from fedilc.runtimes.local import LocalRuntime
from fedilc.runtimes.rest.address import Address
from fedilc.runtimes.rest.auth import Tokens, add_token
from fedilc.runtimes.rest.coordinator import listening, make_app
from fedilc.runtimes.rest.viewer import FolderView
from rest import queue_of

SILOS = ("flip-0.15", "flip-0.30", "flip-0.45", "flip-0.60", "flip-0.75")
HOSTILE = "<img src=x onerror=alert(1)>"
PHONE = {"width": 360, "height": 740}

Finished = tuple[str, list[dict[str, Any]]]


@pytest.fixture(scope="module")
def tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browser(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


@contextmanager
def shown(tab: Browser, run: Any, tokens: Tokens | None = None) -> Iterator[str]:
    """The address of a staged run; the tab leaves before the server goes, which waits for viewers."""
    with listening(make_app(run, tokens), Address(port=0, insecure=True)) as port:
        try:
            yield f"http://127.0.0.1:{port}/"
        finally:
            tab.leave()


def open_run(tab: Browser, url: str, **window: Any) -> None:
    tab.open(url, **window)
    tab.until(lambda: tab.shows("#silos tbody tr"), "the run is not shown")


class Live:
    """A coordinator with tokens and five silos, each a process, that go on until the test ends."""

    def __init__(self, processes: Fleet) -> None:
        self.processes, self.folder = processes, processes.folder
        self.viewer = add_token(self.folder / "tokens.json", "me", "viewers")
        for name in SILOS:
            (self.folder / name).write_text(add_token(self.folder / "tokens.json", name))

    def serve(self, port: int | None = None) -> tuple[Member, str]:
        """The coordinator and its address; on the same port it goes on with the same run."""
        chosen = ("--rounds", 100_000, "--set", "model.hidden=[8]", "--out", "run", "--tokens", "tokens.json")
        return self.processes.serve("color-digits", *chosen, port=port)

    def join(self, url: str) -> None:
        """All silos."""
        for name in SILOS:
            who = ("--silo", name, "--token-file", name, "--experiment", "color-digits")
            self.processes.start("join", url, *who)


def round_of(tab: Browser) -> int:
    return int(tab.text("#round").replace(",", ""))


def test_a_live_run_asks_for_a_token_moves_and_is_found_again_after_its_coordinator_was_killed(
    tab: Browser, tmp_path: Path
) -> None:
    with fleet(tmp_path) as processes:
        live = Live(processes)
        coordinator, url = live.serve()
        live.join(url)
        _enter_with_token(tab, url, live)
        tab.until(lambda: round_of(tab) > 5, "the run does not move")
        before = round_of(tab)
        tab.until(lambda: round_of(tab) > before and tab.shows("#loss .curve.test"), "it stopped")
        _everything_live_is_there(tab, url)
        coordinator.kill()
        tab.until(lambda: tab.shows("#trouble"), "the page does not notice that the coordinator is gone")
        assert "does not respond" in tab.text("#trouble p")
        assert tab.text("#connection") == "reconnecting"
        live.serve(int(url.rpartition(":")[2]))
        tab.until(lambda: tab.text("#connection") == "live", "the page did not come back by itself")
        assert round_of(tab) >= before - 1
        assert not tab.shows("#trouble")


def _enter_with_token(tab: Browser, url: str, live: Live) -> None:
    tab.open(url)
    tab.until(lambda: tab.shows("#token-form"), "the page does not ask for a token")
    assert tab.console() == []
    tab.type("#token", "wrong", "\n")
    tab.until(lambda: "not a viewer token" in tab.text("#token-answer"), "a wrong token is not refused")
    assert not tab.shows("#run")
    tab.run("document.querySelector('#token').value = ''")
    tab.console()
    tab.type("#token", live.viewer, "\n")
    tab.until(lambda: tab.shows("#run"), "a good token is not taken")
    assert not tab.shows("#token-form")
    assert tab.run("return [localStorage.length, document.cookie, location.href]") == [0, "", f"{url}/"]


def _everything_live_is_there(tab: Browser, url: str) -> None:
    assert tab.text("#name") == "color-digits"
    assert tab.text("#algorithm") == "fishr-inter-geo"
    assert tab.text("#connection") == "live"
    assert tab.text("#left").startswith("about ")
    assert tab.all("#silos tbody th") == list(SILOS)
    assert tab.text("#silos .summary") == "5 silos, all here"
    assert set(tab.all("#silos tbody td:nth-child(4)")) == {"200"}
    assert all(re.fullmatch(r"[\d.]+ [kM]B", size) for size in tab.all("#silos tbody td:nth-child(6)"))
    assert tab.shows("#penalty .curve")
    assert tab.shows("#layers .fill")
    assert tab.console() == []
    assert {address.split("/page/")[0].split("/v1/")[0].rstrip("/") for address in tab.requests()} == {url}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Finished]:
    """The address of a finished run, and its history."""
    folder = tmp_path_factory.mktemp("finished")
    words = [
        "run",
        "color-digits",
        "--rounds",
        "12",
        "--out",
        str(folder / "run"),
        "--set",
        "model.hidden=[8]",
    ]
    assert CliRunner().invoke(app, words).exit_code == 0
    history = [json.loads(line) for line in (folder / "run" / "history.jsonl").read_text().splitlines()]
    with fleet(folder) as processes:
        viewer = processes.start("serve", "--view", "run", "--insecure", "--port", 0)
        yield viewer.wait_until(r"http://[\d.:]+")[0], history


def test_a_finished_run_can_be_browsed_to_its_last_number(tab: Browser, finished: Finished) -> None:
    url, history = finished
    open_run(tab, url)
    assert tab.text("#outcome") == "The run has ended: complete."
    assert round_of(tab) == 12
    chosen = [select(history, criterion) for criterion in ("oracle", "validation", "last")]
    assert tab.all("#chosen tbody td:nth-child(2)") == [str(one["round"]) for one in chosen]
    assert tab.all("#chosen tbody td:nth-child(3)") == [f"{one['test_loss']:.3f}" for one in chosen]
    assert tab.all("#loss .name") == [
        f"{name}: round {one['round']}" for name, one in zip(("oracle", "validation"), chosen, strict=False)
    ]
    tab.click("#numbers summary")
    tab.until(lambda: tab.shows("#numbers td"), "no numbers")
    assert tab.all("#numbers tbody th") == [str(one["round"]) for one in reversed(history)]
    assert tab.all("#numbers td:nth-child(4)") == [f"{one['test_loss']:.3f}" for one in reversed(history)]
    assert tab.all("#layers .value") == [f"{v:.2f}" for v in history[-1]["sign_agreement"].values()]
    assert not tab.shows("#silos .contact")
    assert tab.console() == []


def test_the_curves_are_read_by_keyboard_and_by_pointer(tab: Browser, finished: Finished) -> None:
    url, history = finished
    open_run(tab, url)
    for keys, place in (("\ue011", 0), ("\ue014", 1), ("\ue010", 11), ("\ue012", 10)):
        tab.type("#reader", keys)
        losses = [f"{history[place][key]:.3f}" for key in ("train_loss", "validation_loss", "test_loss")]
        assert tab.text("#loss .at") == f"round {place + 1}"
        assert tab.all("#loss .legend .value") == losses
        spoken = tab.run("return document.querySelector('#reader').getAttribute('aria-valuetext')")
        assert spoken == "round {}: train {}, validation {}, OOD {}".format(place + 1, *losses)
    tab.run("document.activeElement.blur()")
    tab.run(
        "const chart = document.querySelector('#accuracy .chart svg'), box = chart.getBoundingClientRect();"
        "chart.dispatchEvent(new PointerEvent('pointermove', {clientX: box.left + 40}))"
    )
    assert tab.text("#loss .at") == "round 1"
    summary = tab.run("return document.querySelector('#loss svg[role=img]').ariaLabel")
    assert summary.startswith(
        f"Loss over 12 rounds. Latest: train {history[-1]['train_loss']:.3f} in round 12,"
    )


@pytest.mark.parametrize("dark", [False, True])
def test_every_text_has_enough_contrast(tab: Browser, finished: Finished, dark: bool) -> None:
    open_run(tab, finished[0], dark=dark)
    background = tab.run("return getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, re.findall(r"\d+", background))) < 200) == dark
    contrasts = tab.contrasts()
    assert {"Loss", "oracle", "OOD loss", "0.20"} & contrasts.keys()
    assert {text: ratio for text, ratio in contrasts.items() if ratio < 4.5} == {}


def test_names_from_elsewhere_are_text_and_never_html(tab: Browser) -> None:
    trouble = {"state": "set aside", "strikes": 3, "reason": HOSTILE}
    run = staged([silo(HOSTILE, **trouble)], [record(1, sign_agreement={HOSTILE: 0.5})], run=HOSTILE)
    run.manifest = {HOSTILE: HOSTILE}
    run.add(record(2, sign_agreement={HOSTILE: 0.5}), algorithm=HOSTILE, phase=HOSTILE, outcome=HOSTILE)
    with shown(tab, run) as url:
        open_run(tab, url)
        for place in ("#name", "#algorithm", "#phase", "tbody th", ".reason", ".layer", ".settings dd"):
            assert HOSTILE in tab.all(place)
        assert tab.run("return document.images.length") == 0
        assert tab.console() == []


def test_two_hundred_silos_with_long_names_fit_a_phone_and_trouble_is_found_among_them(tab: Browser) -> None:
    silos = [silo(f"{'St-Mary-of-the-very-long-name' * 3}-{i}") for i in range(200)]
    silos[7] |= {"state": "lost", "reason": "did not reply in time", "last_seen": time.time() - 630}
    silos[8] |= {"state": "waiting", "strikes": 2, "reason": f"sent {'nonsense' * 40}"}
    with shown(tab, staged(silos, [record(i) for i in range(1, 4)])) as url:
        open_run(tab, url, **PHONE)
        assert tab.overflow() <= 0
        assert tab.text("#silos .summary") == "200 silos: 199 here, 1 lost"
        tab.click("#silos .choice input")
        rows = "#silos tbody tr:not([hidden])"
        assert tab.all(f"{rows} td:nth-child(3)") == ["10 min ago", "just now"]
        assert tab.all(f"{rows} .reason") == [silos[7]["reason"], silos[8]["reason"]]
        open_run(tab, url)
        assert tab.overflow() <= 0


def test_an_answer_that_was_set_aside_is_shown_with_its_round_and_reason_live_and_afterwards(
    tab: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LocalRuntime, "sets_aside", True)
    reason = "its gradient has norm 1e+30, typically 0.5"
    queue = queue_of()
    queue.set_aside_in_round(3, {"b": reason})
    with shown(tab, queue) as url:
        open_run(tab, url)
        assert tab.all("#silos .reason") == ["", f"set aside in round 3: {reason}"]
    generator = torch.Generator().manual_seed(0)
    silos = [Silo(name, torch.randn(6, 2, generator=generator), [0, 1] * 3) for name in "abc"]
    silos[1].x.mul_(1e9)
    run = SiloStore.of(Federation("f", silos))
    settings = {"rounds": 2, "learning_rate": 0.1, "min_silos": 2, "out": tmp_path / "run"}
    with pytest.warns(FedILCWarning, match="continued without silo 'b'"):
        train(run, torch.nn.Linear(2, 1), "fedsgd", **settings)
    with shown(tab, FolderView(tmp_path / "run")) as url:
        open_run(tab, url)
        (last,) = filter(None, tab.all("#silos .reason"))
        assert last.startswith("set aside in round 2: its gradient has norm")


CLIPPED = """
return [...document.querySelectorAll("#silos th, #silos td")].filter((e) =>
  e.getClientRects().length && (e.scrollWidth > e.clientWidth + 1
    || e.getBoundingClientRect().right > document.documentElement.clientWidth + 1)).map((e) => e.textContent);
"""
UNREACHABLE = """
return [...document.querySelectorAll("body *")].filter((e) => e.getClientRects().length
  && /auto|scroll/.test(getComputedStyle(e).overflowX + getComputedStyle(e).overflowY)
  && (e.scrollWidth > e.clientWidth + 1 || e.scrollHeight > e.clientHeight + 1)
  && e.tabIndex < 0).map((e) => e.outerHTML.slice(0, 80));
"""
LANDMARKS = """
const name = (e) => e.getAttribute("aria-label")
  || document.getElementById(e.getAttribute("aria-labelledby") || "")?.textContent.trim() || "";
return [...document.querySelectorAll("section, [role=region]")]
  .filter((e) => e.getClientRects().length).map(name);
"""


@pytest.mark.parametrize("width", [320, 768, 1280])
def test_regions_have_names_of_their_own_are_reached_by_keyboard_and_clip_nothing(
    tab: Browser, width: int
) -> None:
    silos = [silo(f"hospital-{i}", bytes_received=123_456_789_012, examples=1_234_567) for i in range(3)]
    silos[0] |= {"state": "set aside", "strikes": 3, "reason": "its loss is not a number from 0 to 1"}
    agreement = {f"layers.{i}.weight": 0.5 for i in range(4)}
    records = [record(i, sign_agreement=agreement) for i in range(1, 4)]
    with shown(tab, staged(silos, records)) as url:
        open_run(tab, url, width=width, height=740)
        names = tab.run(LANDMARKS)
        assert len(names) == len(set(names)), names
        assert all(names)
        assert tab.run(UNREACHABLE) == []
        assert tab.run(CLIPPED) == []
        assert tab.overflow() <= 0


def test_five_thousand_rounds_are_drawn_with_no_more_points_than_pixels_can_show_and_go_on(
    tab: Browser,
) -> None:
    run = staged([silo("one")], [record(i, penalty=i * 1e-9) for i in range(1, 5001)])
    with shown(tab, run) as url:
        open_run(tab, url, **PHONE)
        tab.until(lambda: tab.text("#loss .at") == "round 5,000", "not all rounds are there")
        curves = "return [...document.querySelectorAll('path.curve')].map((e) => "
        lengths = tab.run(f"{curves} e.getTotalLength())")
        points = tab.run(f"{curves} e.getAttribute('d').split('L').length)")
        assert min(lengths) > 200
        assert max(points) <= 4 * PHONE["width"]
        tab.click("#numbers summary")
        tab.until(lambda: len(tab.all("#numbers tbody tr")) == 100, "the numbers are not a page long")
        run.add(record(5001))
        tab.until(lambda: tab.text("#loss .at") == "round 5,001", "a new round does not come")
        assert tab.all("#numbers tbody th")[0] == "5,001"
        assert tab.overflow() <= 0


def test_a_run_of_which_nothing_is_known_yet_says_so_and_tells_rounds_but_not_every_one_aloud(
    tab: Browser,
) -> None:
    unknown = {"state": "not joined", "examples": None, "last_seen": None, "loss": None}
    run = staged([silo("one", **unknown)], [], phase="waiting for silos", rounds=4)
    with shown(tab, run) as url:
        open_run(tab, url, **PHONE)
        assert tab.text("#phase") == "waiting for silos"
        assert tab.text("#silos .summary") == "1 silo: 0 here, 1 not joined"
        assert tab.text("#loss .empty") == "No round is complete yet."
        assert not any(map(tab.shows, ("#reader", "#penalty", "#accuracy", "#layers", "#chosen")))
        for number in range(1, 5):
            run.add({"round": number, "train_loss": None if number == 2 else 0.5, "validation_loss": None})
            tab.until(lambda n=number: round_of(tab) == n, "a round does not come")
        assert tab.text("#news") == "Round 1 of 4"
        assert not re.search("null|NaN|undefined|Infinity", tab.run("return document.body.innerText"))
        run.add(outcome="complete", phase="ended")
        tab.until(lambda: tab.text("#news") == "The run has ended: complete", "the end is not told")
        assert tab.overflow() <= 0
        assert tab.console() == []


def test_who_guesses_tokens_is_told_to_wait(tab: Browser, tmp_path: Path) -> None:
    add_token(tmp_path / "tokens.json", "me", "viewers")
    with shown(tab, staged([silo("one")], []), Tokens.read(tmp_path / "tokens.json")) as url:
        tab.open(url, **PHONE)
        tab.until(lambda: tab.shows("#token-form"), "the page does not ask for a token")
        assert tab.overflow() <= 0

        def waits() -> bool:
            if tab.run("return !document.querySelector('#token-form button').disabled"):
                tab.type("#token", "guess", "\n")
            return "Wait " in tab.text("#token-answer")

        tab.until(waits, "one may guess for ever")
        assert "Too many wrong tokens" in tab.text("#token-answer")
