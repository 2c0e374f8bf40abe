"""A real browser without a window, and runs to look at in it."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

CHROMIUM, DRIVER = Path("/usr/bin/chromium"), Path("/usr/bin/chromedriver")
FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
PATIENCE = 120.0

CONTRASTS = """
const channel = (v) => (v /= 255) <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
const light = ([r, g, b]) => 0.2126 * channel(r) + 0.7152 * channel(g) + 0.0722 * channel(b);
const parts = (colour) => colour.match(/[\\d.]+/g).map(Number);
const numbers = (colour) => parts(colour).map((n, i) => colour.startsWith("color(") && i < 3 ? 255 * n : n);
const behind = (element) => {
  for (let e = element; e; e = e.parentElement) {
    const found = numbers(getComputedStyle(e).backgroundColor);
    if (found.length === 3 || found[3] > 0) return found;
  }
};
return [...document.querySelectorAll("body *")].filter((e) => e.getClientRects().length
    && [...e.childNodes].some((n) => n.nodeType === 3 && n.data.trim())).map((e) => {
  const style = getComputedStyle(e);
  const own = light(numbers(e instanceof SVGElement ? style.fill : style.color));
  const [low, high] = [own, light(behind(e))].sort((a, b) => a - b);
  return [(high + 0.05) / (low + 0.05), e.textContent.trim()];
});
"""


class Browser:
    """A tab, with what it showed, said on its console and asked the network for."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver
        self.width = 0

    def open(self, url: str, width: int = 1280, height: int = 900, dark: bool = False) -> None:
        """Show a page as if for the first time."""
        self.width = width
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.leave()
        self.driver.get_log("browser")
        self.driver.get_log("performance")
        self.command("Emulation.setEmulatedMedia", features=[scheme])
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self.command("Emulation.setDeviceMetricsOverride", **size)
        self.driver.get(url)

    def leave(self) -> None:
        """Show nothing, and hang up."""
        self.driver.get("about:blank")

    def command(self, name: str, **options: Any) -> Any:
        """A command of Chromium's own."""
        return self.driver.execute_cdp_cmd(name, options)

    def run(self, script: str, *arguments: object) -> Any:
        """What a script returns."""
        return self.driver.execute_script(script, *arguments)

    def all(self, selector: str) -> list[str]:
        """The texts of all elements, shown or not."""
        found = "return [...document.querySelectorAll(arguments[0])].map((e) => e.textContent.trim())"
        return [str(text) for text in self.run(found, selector)]

    def text(self, selector: str) -> str:
        """The text of one element."""
        (found,) = self.all(selector)
        return found

    def shows(self, selector: str) -> bool:
        """Whether an element is there for people to see."""
        return bool(
            self.run("return document.querySelector(arguments[0])?.getClientRects().length > 0", selector)
        )

    def until(self, condition: Callable[[], bool], what: str) -> None:
        """Wait for something to come true, and fail where it does not."""
        deadline = time.monotonic() + PATIENCE
        while not condition():
            assert time.monotonic() < deadline, f"{what}; the page says {self.all('body')}"
            time.sleep(0.05)

    def type(self, selector: str, *keys: str) -> None:
        """Press keys at an element."""
        self.driver.find_element("css selector", selector).send_keys(*keys)

    def click(self, selector: str) -> None:
        """Click on an element."""
        self.driver.find_element("css selector", selector).click()

    def console(self) -> list[str]:
        """What the console says since it was last asked."""
        return [entry["message"] for entry in self.driver.get_log("browser")]

    def requests(self) -> list[str]:
        """The addresses asked for since the page was opened."""
        events = [json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance")]
        return [
            event["params"]["request"]["url"]
            for event in events
            if event["method"] == "Network.requestWillBeSent"
        ]

    def overflow(self) -> int:
        """By how many pixels the page is wider than the screen, however far a phone would zoom out."""
        return int(self.run("return document.documentElement.scrollWidth")) - self.width

    def contrasts(self) -> dict[str, float]:
        """The contrast of each text that is shown with what is behind it."""
        return {text: float(ratio) for ratio, text in self.run(CONTRASTS)}


@contextmanager
def browser(folder: Path) -> Iterator[Browser]:
    """Chromium with a new profile in `folder`; skips where there is none."""
    selenium = pytest.importorskip(
        "selenium.webdriver", reason="needs selenium, which looks at the page: pip install 'fedilc[dev]'"
    )
    for program in (CHROMIUM, DRIVER):
        if not program.exists():
            pytest.skip(f"needs {program}, to look at the page: install chromium and chromium-driver")
    options = selenium.ChromeOptions()
    options.binary_location = str(CHROMIUM)
    for flag in (*FLAGS, f"--user-data-dir={folder}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = selenium.Chrome(options, selenium.ChromeService(str(DRIVER)))
    try:
        yield Browser(driver)
    finally:
        driver.quit()


@dataclass
class Staged:
    """A run whose state a test sets."""

    status: dict[str, Any]
    history: list[dict[str, Any]] = field(default_factory=list)
    manifest: dict[str, Any] = field(default_factory=dict)
    silos: tuple[str, ...] = ()
    revision: int = 0
    listeners: list[Callable[[], None]] = field(default_factory=list)

    def about(self) -> dict[str, Any]:
        return {"manifest": self.manifest, "hash": "0" * 64}

    def snapshot(self) -> dict[str, Any]:
        return self.status

    def is_over(self) -> bool:
        return self.status["outcome"] is not None

    def listen(self, listener: Callable[[], None]) -> None:
        self.listeners.append(listener)

    def add(self, *records: dict[str, Any], **status: object) -> None:
        """Complete rounds and change the status, as a queue does."""
        self.history.extend(records)
        self.status = self.status | {"completed": len(self.history), "round": len(self.history)} | status
        self.revision += 1
        for listener in self.listeners:
            listener()


def staged(silos: list[dict[str, Any]], records: list[dict[str, Any]], **status: object) -> Staged:
    """A run with these silos and records, and whatever else of its status matters."""
    done = len(records)
    usual = {
        "run": "staged",
        "algorithm": "fishr-inter-geo",
        "rounds": 9000,
        "completed": done,
        "round": done,
    }
    usual |= {"phase": "update", "started": 1.0, "seconds_a_round": None, "outcome": None}
    return Staged(usual | {"seconds_left": None, "silos": silos} | status, records)


def silo(name: str, **numbers: object) -> dict[str, Any]:
    """A silo that is here and well, except for what is said."""
    usual: dict[str, Any] = {"name": name, "state": "waiting", "examples": 200, "last_seen": time.time()}
    usual |= {"loss": 0.5, "bytes_received": 1_234_567, "bytes_sent": 0, "strikes": 0, "reason": None}
    return usual | numbers


def record(number: int, **more: object) -> dict[str, Any]:
    """A completed round."""
    loss = 1 / number
    return {"round": number, "train_loss": loss, "validation_loss": 1 + loss, "test_loss": 2 + loss, **more}
