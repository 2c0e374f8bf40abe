"""Hundreds of silos that compute nothing, and the memory of the process that they keep busy."""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlsplit

from fedilc.runtimes.remote.manifest import Manifest, read_manifest
from fedilc.runtimes.remote.open_request import OpenRequest
from fedilc.runtimes.remote.wire import unpack_request
from rest import good_body

PATIENCE = 120.0


def light_silos(url: str, names: Sequence[str], late: float = 0.0) -> None:
    """Silos that compute nothing, a thread each; the first waits `late` seconds before it answers."""
    waits = [late, *[0.0] * len(names)]
    threads = [
        threading.Thread(target=light_silo, args=(url, name, wait))
        for name, wait in zip(names, waits, strict=False)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def light_silo(url: str, name: str, late: float = 0.0) -> None:
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
            have, weights = asked.weights_digest, dict(asked.request.weights)
            time.sleep(late)
            open_request, request = OpenRequest(asked.request, manifest, have), asked.request
            path = f"/v1/silos/{name}/rounds/{request.round}/{request.step}?task={open_request.name}"
            status, body = call("PUT", f"{path}&have={have}&wait=30", good_body(open_request, name))
            assert status in (200, 409, 410)
            along = status == 410 or (status == 200 and not body.startswith(b"{"))


def resident_bytes(pid: int | None) -> int:
    """Of a process; 0 where it has just ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return 1024 * next((int(line.split()[1]) for line in lines if line.startswith("VmRSS")), 0)
