"""A job on a deployment of Flower: a SuperLink and SuperNodes on loopback, in an environment of their own."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from collections.abc import Mapping
from pathlib import Path

from benchmarks.processes import ONE_THREAD, wait_until
from benchmarks.travel import free_port, write_experiment

HOST = "127.0.0.1"
PATIENCE_SECONDS = 900.0
ALONE = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    **ONE_THREAD,
}


def deployed(settings: Mapping[str, object], silos: int, folder: Path, python: Path) -> None:
    """Run the app that `fedilc flower new` writes, on nodes without TLS; the run folder is `run`."""
    write_experiment(folder / "study.toml", [f"silo-{number}" for number in range(silos)], settings)
    port, log = free_port(), folder / "superlink.log"
    stage = _Stage(folder, python, port)

    def said(words: str) -> int:
        return log.read_text(errors="replace").count(words)

    try:
        stage.start("superlink", "flower-superlink", "--insecure", "--host", HOST, "--port", str(port))
        wait_until(lambda: _is_listening(port), PATIENCE_SECONDS, "the SuperLink")
        for number in range(silos):
            config = f"partition-id={number} num-partitions={silos}"
            config += ' make-silo="benchmarks.travel:make_partition"'
            place = ["--superlink", f"{HOST}:{port}", "--host", HOST, "--port", str(free_port())]
            stage.start(f"node{number}", "flower-supernode", "--insecure", *place, "--node-config", config)
        wait_until(lambda: said("Activated node_id=") == silos, PATIENCE_SECONDS, "the SuperNodes")
        stage.call("fedilc", "flower", "new", "app", "study.toml")
        stage.call("flwr", "run", "app", "here", "--run-config", f'out="{folder / "run"}"')
        wait_until(lambda: said("Finished task") > 0, PATIENCE_SECONDS, "the run")
    finally:
        stage.end()


class _Stage:
    """Flower's processes, each with a log of its own."""

    def __init__(self, folder: Path, python: Path, port: int) -> None:
        self.folder = folder
        self._started: list[subprocess.Popen[bytes]] = []
        home = folder / "home"
        home.mkdir()
        (home / "config.toml").write_text(f'[superlink.here]\naddress = "{HOST}:{port}"\ninsecure = true\n')
        self._environment = os.environ | ALONE
        self._environment["FLWR_HOME"] = str(home)
        self._environment["PATH"] = f"{python.parent}{os.pathsep}{os.environ['PATH']}"
        self._environment["PYTHONPATH"] = str(Path(__file__).parents[1])

    def start(self, name: str, *words: str) -> None:
        with (self.folder / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(
                words, stdout=log, stderr=log, env=self._environment, cwd=self.folder, start_new_session=True
            )
        self._started.append(process)

    def call(self, *words: str) -> None:
        subprocess.run(words, check=True, capture_output=True, env=self._environment, cwd=self.folder)

    def end(self) -> None:
        for process in reversed(self._started):
            os.killpg(process.pid, signal.SIGTERM)
            process.wait()


def _is_listening(port: int) -> bool:
    with socket.socket() as tried:
        return tried.connect_ex((HOST, port)) == 0
