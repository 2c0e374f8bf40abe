"""Two hundred silos at one coordinator: every round completes, and its memory does not grow with them."""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from fleets import PATIENCE, fleet, forked

from fedilc.runtimes.remote.manifest import Manifest, read_manifest
from fedilc.runtimes.remote.posted import Posted
from fedilc.runtimes.remote.wire import unpack_request
from rest import good_body

SILOS, ROUNDS, CLIENTS = 200, 10, 2
INPUTS, HIDDEN = 100, 180
# Were answers kept, at least four rounds of them would lie between early and late; slack takes less than one.
ANSWERS_OF_A_ROUND = SILOS * 2 * 4 * (INPUTS * HIDDEN + HIDDEN + HIDDEN + 1)
EXPERIMENT = f"""
algorithm = "fishr-inter-geo"
rounds = {ROUNDS}
learning_rate = 0.01
evaluate_every = {ROUNDS}

[data]
source = "remote"
silos = {[f"silo-{number}" for number in range(SILOS)]}
inputs = [{INPUTS}]

[model]
hidden = [{HIDDEN}]
"""


def light_silos(url: str, names: Sequence[str]) -> None:
    """Silos that compute nothing, a thread each."""
    threads = [threading.Thread(target=light_silo, args=(url, name)) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def light_silo(url: str, name: str) -> None:
    place = urlsplit(url)
    line = http.client.HTTPConnection(place.hostname or "", place.port or 0, timeout=PATIENCE)

    def call(method: str, path: str, body: bytes | None = None) -> tuple[int, bytes]:
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                line.request(method, path, body)
                response = line.getresponse()
                return response.status, response.read()
            except (http.client.HTTPException, ConnectionError):
                assert time.monotonic() < deadline
                line.close()
                time.sleep(0.1)

    manifest: Manifest = read_manifest(json.loads(call("GET", "/v1/manifest")[1])["manifest"])
    joining = json.dumps({"manifest": manifest.hash, "examples": 10}).encode()
    assert call("POST", f"/v1/silos/{name}/join", joining)[0] == 200
    have, weights, along = "", {}, False
    while True:
        if not along:
            status, body = call("GET", f"/v1/silos/{name}/task?have={have}&wait=30")
        along = False
        if status == 410:
            return
        if status == 200:
            asked = unpack_request(body, manifest, have, weights)
            have, weights = asked.weights, dict(asked.request.weights)
            posted, request = Posted(asked.request, manifest, have), asked.request
            path = f"/v1/silos/{name}/rounds/{request.round}/{request.phase}?task={posted.name}"
            status, body = call("PUT", f"{path}&have={have}&wait=30", good_body(posted, name))
            assert status in (200, 409, 410)
            along = status == 410 or (status == 200 and not body.startswith(b"{"))


def resident_bytes(pid: int | None) -> int:
    """Of a process; 0 where it has just ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return 1024 * next((int(line.split()[1]) for line in lines if line.startswith("VmRSS")), 0)


@pytest.mark.timeout(900)
def test_two_hundred_silos_complete_every_round_in_memory_that_stays(tmp_path: Path) -> None:
    (tmp_path / "many.toml").write_text(EXPERIMENT)
    names = [f"silo-{number}" for number in range(SILOS)]
    history = tmp_path / "run" / "history.jsonl"
    memory: dict[int, int] = {}
    with fleet(tmp_path) as processes:
        coordinator, url = processes.serve(tmp_path / "many.toml", "--out", tmp_path / "run")
        clients = [forked(light_silos, url, names[part::CLIENTS]) for part in range(CLIENTS)]
        try:
            while coordinator.process.is_alive():
                done = len(history.read_text().splitlines()) if history.exists() else 0
                if done < ROUNDS:
                    memory[done] = max(memory.get(done, 0), resident_bytes(coordinator.process.pid))
                time.sleep(0.01)
            assert coordinator.ended() == 0, coordinator.said
            for client in clients:
                client.join(PATIENCE)
                assert client.exitcode == 0
        finally:
            for client in clients:
                client.kill()
    records = [json.loads(line) for line in history.read_text().splitlines()]
    assert [record["round"] for record in records] == list(range(1, ROUNDS + 1))
    assert all(record["silos_summary"]["count"] == SILOS for record in records)
    early = max(memory[done] for done in memory if 2 <= done <= 4)
    late = max(memory[done] for done in memory if done >= ROUNDS - 2)
    assert late - early < ANSWERS_OF_A_ROUND, memory
