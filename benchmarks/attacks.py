"""Rounds per second and memory of a coordinator that strangers attack, and its memory with 300 silos.

A real coordinator with tokens and three real silos, each a process on loopback. Strangers without a token,
and then a viewer and a silo who misuse theirs, come and go in turns, so that other work on the machine hits
both sides alike. They are of low priority, because their own work would be another machine's. Forged
summaries of tables are sent before round 1, so there the other silos' requests per second are measured.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import httpx

from benchmarks.processes import MIB, finish, memory, started, url_of, wait_until
from benchmarks.timing import Row, at_least, at_most
from benchmarks.travel import PROVIDER, write_experiment
from fedilc.runtimes.rest.auth import add_token

HELPERS = Path(__file__).parents[1] / "tests" / "helpers"
SILOS, MANY_SILOS = 3, 300
LATE_SECONDS = 10
MOST_MIB, MOST_MIB_OF_MANY = 50, 200
LEAST_SPEED = 0.8
SETTINGS = {"learning_rate": 3e-4, "penalty_weight": 15.0}
START = b"GET /v1/health HTTP/1.1\r\nHost: localhost\r\n"
BODY = START.replace(b"GET /v1/health", b"PUT /v1/silos/silo-0/rounds/1/update?task=x")
VIEWER, SILO = "viewer", "intruder"
TOKEN = b"Authorization: Bearer TOKEN\r\n"
HISTORY = START.replace(b"/v1/health", b"/v1/history") + TOKEN + b"\r\n"
DEEP = b'{"leaves":' + b"[" * 10_000
JOIN = START.replace(b"GET /v1/health", b"POST /v1/silos/intruder/join") + TOKEN
SUMMARY = START.replace(b"GET /v1/health", b"PUT /v1/silos/intruder/summary") + TOKEN
LONG = "7" * 899
DEEP_JOIN = JOIN + b"Content-Length: %d\r\n\r\n%b" % (len(DEEP), DEEP)


@dataclass(frozen=True)
class Attack:
    """Connections that send a start and then something without end, and that come back when they are cut.

    Those with the token of a `holder` send it in place of the word TOKEN; some read no response.
    """

    connections: int
    start: bytes = b""
    more: bytes = b""
    pause: float = 0.0
    again: float = 0.1
    holder: str = ""
    reads: bool = True


def _forged(**changed: object) -> Attack:
    """Summaries of a silo's table, each a lie that must be read to the end to be refused."""
    honest = {"name": SILO, "rows": 900, "labels": {"no": 500, "yes": 400}, "columns": []}
    body = json.dumps(honest | changed).encode()
    more = SUMMARY + b"Content-Length: %d\r\n\r\n%b" % (len(body), body)
    return Attack(8, more=more, pause=0.05, holder=SILO)


def _columns(count: int, **changed: object) -> list[dict[str, object]]:
    column = {"kind": "number", "count": 900, "numbers": 900, **changed}
    return [{"name": f"x{place}", "place": place, **column} for place in range(count)]


FORGED = {
    "forged summaries of 45,000 columns": _forged(columns=_columns(45_000)),
    "forged sums of 1e890": _forged(columns=_columns(2000, total=LONG, squares=f"{LONG}/{LONG[1:]}")),
    "forged summaries of 1e30 rows": _forged(rows=1e30),
    "forged summaries of 900 labels": _forged(labels={f"y{place}": 20 for place in range(900)}),
}
ATTACKS = {
    "1,100 silent connections": Attack(1100, pause=1.0, again=5.0),
    "500 slow ones": Attack(500, START + b"X: ", b"x", pause=0.5, again=5.0),
    "endless headers": Attack(8, START + b"X: ", b"x" * 65_536),
    "endless URLs": Attack(8, b"GET /", b"x" * 65_536),
    "endless bodies": Attack(8, BODY + b"Content-Length: 99999999999\r\n\r\n", b"x" * 65_536),
    "a silo's deep JSON": Attack(8, more=DEEP_JOIN, pause=0.05, holder=SILO),
    "a viewer's history again and again": Attack(8, more=HISTORY, pause=0.05, holder=VIEWER),
    "120 unread histories of a viewer": Attack(120, more=HISTORY, pause=1.0, holder=VIEWER, reads=False),
}


def rows(quick: bool) -> list[Row]:
    """Speed and memory under each attack; without `quick`, memory with many silos as well."""
    seconds, turns = (3.0, 2) if quick else (5.0, 4)
    found = [*_attacked(seconds, turns), *_surveyed(seconds, turns)]
    over = 0
    for algorithm in () if quick else ("fedsgd", "fishr-inter-geo"):
        over = _many_silos(algorithm)
        what = f"coordinator's memory over idle, {MANY_SILOS} silos of 1.2 MB, {algorithm}"
        ratio, against = over / MIB / MOST_MIB_OF_MANY, f"{MOST_MIB_OF_MANY} MiB"
        found.append(at_most("attacks", what, against, ratio, 1, f"{over / MIB:.0f} MiB"))
    if not quick:
        late = _many_silos("fishr-inter-geo", LATE_SECONDS)
        what = f"the same, the first silo {LATE_SECONDS} s after the others"
        detail = f"{late / MIB:.0f} / {over / MIB:.0f} MiB"
        found.append(at_most("attacks", what, "it answers first", late / over, 1.1, detail))
    return found


def _attacked(seconds: float, turns: int) -> list[Row]:
    found = []
    with _federation() as (coordinator, url, history):
        for name in ATTACKS:
            count = partial(_rounds, history, seconds)
            found += _compared(name, coordinator, url, history.parents[1], count, "rounds", seconds, turns)
    return found


def _surveyed(seconds: float, turns: int) -> list[Row]:
    """Speed and memory of a survey of tables while a silo forges its summary."""
    found = []
    with _survey() as (coordinator, url, folder):
        token = (folder / "silo-0").read_text()
        with httpx.Client(base_url=url, headers={"Authorization": f"Bearer {token}"}, timeout=60) as silo:
            for name in FORGED:
                count = partial(_polls, silo, seconds)
                found += _compared(name, coordinator, url, folder, count, "requests", seconds, turns)
            asked = silo.get("/v1/manifest").raise_for_status().json()
            if SILO not in asked["missing"]:
                raise RuntimeError("a forged summary was believed")
    return found


def _compared(
    name: str,
    coordinator: subprocess.Popen[str],
    url: str,
    folder: Path,
    count: Callable[[], int],
    unit: str,
    seconds: float,
    turns: int,
) -> list[Row]:
    """What is counted in some seconds with an attack beside without, in turns, and the most memory."""
    calm, busy, before, most = 0, 0, memory(pid=coordinator.pid), 0
    for _ in range(turns):
        calm += count()
        holder = (ATTACKS | FORGED)[name].holder
        token = (folder / holder).read_text() if holder else ""
        with started("benchmarks.attacks", "attack", name, url, token) as attacker:
            assert attacker.stdout is not None
            attacker.stdout.readline()
            busy += count()
            most = max(most, memory(pid=coordinator.pid))
    detail = f"{busy / turns / seconds:.1f} / {calm / turns / seconds:.1f} {unit} per second"
    grown = (most - before) / MIB
    what, against = f"{name}, memory", f"{MOST_MIB} MiB"
    return [
        at_least("attacks", name, "undisturbed", busy / calm, LEAST_SPEED, detail),
        at_most("attacks", what, against, grown / MOST_MIB, 1, f"{grown:+.1f} MiB"),
    ]


def _polls(silo: httpx.Client, seconds: float) -> int:
    """How many requests of an honest silo, which asks twenty times per second, are answered in this time."""
    end, count = time.monotonic() + seconds, 0
    while time.monotonic() < end:
        silo.get("/v1/manifest").raise_for_status()
        count += 1
        time.sleep(0.05)
    return count


def _rounds(history: Path, seconds: float) -> int:
    """How many rounds are completed in this time."""
    before = history.read_bytes().count(b"\n")
    time.sleep(seconds)
    return history.read_bytes().count(b"\n") - before


@contextlib.contextmanager
def _federation() -> Iterator[tuple[subprocess.Popen[str], str, Path]]:
    """A coordinator whose run goes on until the context ends, its address and its history."""
    names = [f"silo-{number}" for number in range(SILOS)]
    with tempfile.TemporaryDirectory() as place, contextlib.ExitStack() as stack:
        folder = Path(place)
        write_experiment(
            folder / "a.toml",
            names,
            {**SETTINGS, "algorithm": "fedsgd", "rounds": 1_000_000, "evaluate_every": 1000},
        )
        (folder / VIEWER).write_text(add_token(folder / "tokens.json", VIEWER, "viewers"))
        for name in (*names, SILO):
            (folder / name).write_text(add_token(folder / "tokens.json", name))
            (folder / name).chmod(0o600)
        options = ["--insecure", "--port", "0", "--tokens", folder / "tokens.json", "--out", folder / "run"]
        coordinator = stack.enter_context(started("fedilc", "serve", folder / "a.toml", *options))
        url = url_of(coordinator)
        for name in names:
            who = ["--silo", name, "--token-file", folder / name, "--provider", PROVIDER]
            stack.enter_context(started("fedilc", "join", url, *who, output=subprocess.DEVNULL))
        history = folder / "run" / "history.jsonl"
        wait_until(lambda: history.exists() and history.read_bytes().count(b"\n") > 20, 120, "round 20")
        yield coordinator, url, history


@contextlib.contextmanager
def _survey() -> Iterator[tuple[subprocess.Popen[str], str, Path]]:
    """A coordinator that waits for summaries of tables, its address, and the folder of the tokens."""
    with tempfile.TemporaryDirectory() as place:
        folder, names = Path(place), ["silo-0", SILO]
        for name in names:
            (folder / name).write_text(add_token(folder / "tokens.json", name))
        data = f'[data]\nsource = "remote-tables"\nlabel = "died"\nsilos = {json.dumps(names)}\n'
        model = '[model]\nname = "mlp"\nhidden = [4]\n'
        (folder / "a.toml").write_text(f"rounds = 1\nlearning_rate = 0.1\n{data}{model}")
        options = ["--insecure", "--port", "0", "--tokens", folder / "tokens.json", "--out", folder / "run"]
        with started("fedilc", "serve", folder / "a.toml", *options) as coordinator:
            yield coordinator, url_of(coordinator), folder


def _many_silos(algorithm: str, late: int = 0) -> int:
    """The coordinator's most bytes in a run of six rounds, over what it had when silos could join.

    The first silo answers at once, or `late` seconds after it was asked.
    """
    names = [f"silo-{number}" for number in range(MANY_SILOS)]
    with tempfile.TemporaryDirectory() as place, contextlib.ExitStack() as stack:
        folder = Path(place)
        settings = {**SETTINGS, "algorithm": algorithm, "rounds": 6, "evaluate_every": 6}
        write_experiment(folder / "many.toml", names, settings)
        options = ["--insecure", "--port", "0", "--out", folder / "run"]
        coordinator = stack.enter_context(started("fedilc", "serve", folder / "many.toml", *options))
        url = url_of(coordinator)
        idle = most = memory(pid=coordinator.pid)
        for part in range(2):
            stack.enter_context(
                started("benchmarks.attacks", "silos", url, 0 if part else late, *names[part::2])
            )
        deadline = time.monotonic() + 900
        while coordinator.poll() is None and time.monotonic() < deadline:
            most = max(most, memory("VmHWM", coordinator.pid))
            time.sleep(0.2)
        finish(coordinator)
    return most - idle


async def _attack(attack: Attack, url: str) -> None:
    place = urlsplit(url)
    lines = [
        _again_and_again(attack, place.hostname or "", place.port or 0) for _ in range(attack.connections)
    ]
    tasks = [asyncio.ensure_future(line) for line in lines]
    await asyncio.sleep(2.0)
    print("begun", flush=True)
    await asyncio.gather(*tasks)


async def _again_and_again(attack: Attack, host: str, port: int) -> None:
    while True:
        with contextlib.suppress(OSError):
            reader, writer = await asyncio.open_connection(host, port)
            try:
                await _send(attack, reader, writer)
            finally:
                writer.transport.abort()
        await asyncio.sleep(attack.again)


async def _send(attack: Attack, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Send without end, until the other side ends the connection."""
    gone = asyncio.ensure_future(_discard(reader) if attack.reads else asyncio.Event().wait())
    writer.write(attack.start)
    while not gone.done():
        if attack.pause:
            await asyncio.wait([gone], timeout=attack.pause)
        writer.write(attack.more)
        sent = asyncio.ensure_future(writer.drain())
        await asyncio.wait([gone, sent], return_when=asyncio.FIRST_COMPLETED)
        if sent.done():
            sent.result()
        sent.cancel()
    with contextlib.suppress(OSError):
        await gone


async def _discard(reader: asyncio.StreamReader) -> None:
    while await reader.read(1 << 20):
        pass


def main() -> None:
    """Be what attacks, or silos that compute nothing, until killed."""
    kind, first, *others = sys.argv[1:]
    if kind == "attack":
        os.nice(15)
        attack = (ATTACKS | FORGED)[first]
        more = attack.more.replace(b"TOKEN", others[1].encode())
        asyncio.run(_attack(replace(attack, more=more), others[0]))
    else:
        sys.path.insert(0, str(HELPERS))
        from light_silos import light_silos

        light_silos(first, others[1:], float(others[0]))


if __name__ == "__main__":
    main()
