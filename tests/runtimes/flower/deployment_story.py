"""A SuperLink with TLS and node authentication: a stranger, three nodes, one that dies, a second start."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

SILOS, ROUNDS = 3, 2
MOST_STARTS = 5
STEP_SECONDS = 900.0


class Stage:
    """The processes of one deployment, each with a log of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.given = json.loads((folder / "given.json").read_text())
        self.port = free_port()
        self.address = f"127.0.0.1:{self.port}"
        home = Path(os.environ["FLWR_HOME"])
        home.mkdir(parents=True, exist_ok=True)
        (home / "config.toml").write_text(
            f'[superlink]\ndefault = "test"\n\n[superlink.test]\naddress = "{self.address}"\n'
            f'root-certificates = "{self.given["ca"]}"\n'
        )

    def start(self, name: str, *command: str) -> subprocess.Popen[bytes]:
        with (self.folder / f"{name}.log").open("ab") as log:
            return subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True, cwd=self.folder)

    def superlink(self) -> None:
        given = self.given
        tls = [
            "--ssl-ca-certfile",
            given["ca"],
            "--ssl-certfile",
            given["cert"],
            "--ssl-keyfile",
            given["key"],
        ]
        place = ["--host", "127.0.0.1", "--port", str(self.port)]
        self.start("superlink", "flower-superlink", *tls, *place, "--enable-supernode-auth")
        until(lambda: is_listening(self.port), "the SuperLink listens")

    def supernode(self, name: str, partition: int) -> subprocess.Popen[bytes]:
        config = f"partition-id={partition} num-partitions={SILOS}"
        if name == "node2":
            config += ' make-silo="ward:make_silo"'
        return self.start(
            name,
            *["flower-supernode", "--root-certificates", self.given["ca"], "--superlink", self.address],
            *["--host", "127.0.0.1", "--port", str(free_port()), "--node-config", config],
            *["--auth-supernode-private-key", str(self.folder / name)],
        )

    def flwr(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["flwr", *words], capture_output=True, text=True, timeout=STEP_SECONDS, cwd=self.folder
        )

    def make_key(self, name: str) -> None:
        words = ["ssh-keygen", "-q", "-t", "ecdsa", "-b", "384", "-N", "", "-f", name]
        subprocess.run(words, check=True, cwd=self.folder)

    def said(self, words: str) -> int:
        """How often the SuperLink has said this; its log costs less than a `flwr` for every look."""
        return (self.folder / "superlink.log").read_text(errors="replace").count(words)

    def start_run(self, told: dict[str, Any]) -> str:
        """Submit the app; the run's name. Flower gives up a process that takes 30 s to start: try again."""
        told["starts"] += 1
        assert told["starts"] <= MOST_STARTS, told
        config = f'out="{self.given["out"]}" timeout={self.given["timeout"]}'
        found = self.flwr("run", "app", "test", "--format", "json", "--run-config", config)
        assert found.returncode == 0, found.stdout + found.stderr
        return str(json.loads(found.stdout)["run-id"])

    def status(self, run: str) -> str:
        found = json.loads(self.flwr("ls", "test", "--format", "json").stdout)
        return str(next(entry["status"] for entry in found["runs"] if entry["run-id"] == run))

    def ended(self, run: str) -> bool:
        log = (self.folder / "superlink.log").read_text(errors="replace")
        return re.search(f"Finished task [0-9]+ of run {run}", log) is not None

    def follow(self, run: str, until_round: int = ROUNDS + 1) -> float:
        """Wait until a round is done or the run has ended; how long that took."""
        return until(lambda: self.done() >= until_round or self.ended(run), f"run {run} goes on")

    def log(self, run: str) -> str:
        found = self.flwr("log", run, "test", "--show")
        return found.stdout + found.stderr

    def done(self) -> int:
        history = Path(self.given["out"]) / "history.jsonl"
        return len(history.read_text().splitlines()) if history.exists() else 0


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def is_listening(port: int) -> bool:
    with socket.socket() as tried:
        return tried.connect_ex(("127.0.0.1", port)) == 0


def until(true: Callable[[], bool], what: str, seconds: float = STEP_SECONDS) -> float:
    """Wait until something is so; how long that took."""
    began = time.monotonic()
    while not true():
        if time.monotonic() - began > seconds:
            raise TimeoutError(f"waited {seconds} s in vain until {what}")
        time.sleep(0.5)
    return time.monotonic() - began


def main(folder: Path) -> dict[str, Any]:
    stage = Stage(folder)
    told: dict[str, Any] = {}
    stage.superlink()
    names = [f"node{number}" for number in range(SILOS)]
    for name in [*names, "stranger"]:
        stage.make_key(name)
    for name in names:
        registered = stage.flwr("supernode", "register", f"{name}.pub", "test")
        assert registered.returncode == 0, registered.stdout + registered.stderr
    stranger = stage.supernode("stranger", 0)
    told["stranger_ended"] = stranger.wait(timeout=STEP_SECONDS)
    nodes = {name: stage.supernode(name, number) for number, name in enumerate(names)}
    until(lambda: stage.said("Activated node_id=") == SILOS, "three nodes are there")

    told["starts"], run = 0, ""
    while stage.done() < 1:
        run = stage.start_run(told)
        told["first_round_after"] = stage.follow(run, until_round=1)
    os.killpg(nodes["node1"].pid, signal.SIGKILL)
    told["noticed_after"] = stage.follow(run)
    told["first"] = [stage.status(run), stage.done(), stage.log(run)]

    nodes["node1"] = stage.supernode("node1", 1)
    until(lambda: stage.said("Activated node_id=") == SILOS + 1, "the node is there again")
    while stage.done() < ROUNDS:
        run = stage.start_run(told)
        told["second_took"] = stage.follow(run)
    told["second"] = [stage.status(run), stage.done(), stage.log(run)]
    return told


if __name__ == "__main__":
    where = Path(sys.argv[1])
    (where / "told.json").write_text(json.dumps(main(where)))
