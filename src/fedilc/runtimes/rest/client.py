"""A silo that joins a coordinator: it asks for tasks, computes here, and sends back what it found.

Data never leaves; nothing that comes is run. Whatever happens to the network or to the coordinator, the silo
waits and goes on, as long as it is the same run.
"""

from __future__ import annotations

import random
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import httpx
from torch import nn

from fedilc.data import Federation, Silo
from fedilc.errors import ConfigError, FedILCError, ProtocolError
from fedilc.evaluation import measure
from fedilc.federation import Request
from fedilc.federation.silo import SiloWorker
from fedilc.gradients import Loss, Workbench
from fedilc.runtimes.rest.manifest import Manifest, read_manifest
from fedilc.runtimes.rest.wire import MEDIA_TYPE, pack_reply, unpack_request

POLL_SECONDS = 25.0
LONGEST_PAUSE = 30.0


class CoordinatorError(FedILCError):
    """The coordinator refuses this silo, or is not the one it joined."""


@dataclass
class Line:
    """A connection that is made again whenever it breaks, with pauses that grow and vary."""

    url: str
    token: str | None
    authority: Path | None = None
    give_up_after: float | None = None
    tell: Callable[[str], None] = lambda _: None
    sleep: Callable[[float], None] = time.sleep
    _client: httpx.Client = field(init=False)
    _dice: random.Random = field(default_factory=random.Random)

    def __post_init__(self) -> None:
        headers = {"Authorization": f"Bearer {self.token}"} if self.token else {}
        try:
            trusted = ssl.create_default_context(cafile=str(self.authority)) if self.authority else True
        except (OSError, ssl.SSLError) as error:
            raise ConfigError(
                f"the authority's certificate {self.authority} cannot be used: {error}"
            ) from error
        timeout = httpx.Timeout(20.0, read=POLL_SECONDS + 60.0, write=120.0)
        try:
            self._client = httpx.Client(
                base_url=self.url, headers=headers, verify=trusted, timeout=timeout, trust_env=False
            )
            scheme = self._client.base_url.scheme
        except (httpx.InvalidURL, ValueError) as error:
            raise ConfigError(f"{self.url!r} is not an address like https://host:8443 ({error})") from error
        if scheme not in ("http", "https"):
            raise ConfigError(f"{self.url!r} is not an address; it begins with https://")

    def close(self) -> None:
        """Hang up."""
        self._client.close()

    def call(self, method: str, path: str, **options: Any) -> httpx.Response:
        """A request that is made until it is answered; 5xx and 429 are waited out as well."""
        since, pause = time.monotonic(), 0.2
        while True:
            wait = 0.0
            try:
                response = self._client.request(method, path, **options)
                if response.status_code < 500 and response.status_code != 429:
                    return response
                trouble = f"it answers {response.status_code}"
                wait = float(response.headers.get("retry-after", 0) or 0)
            except httpx.TransportError as error:
                trouble = str(error) or type(error).__name__
                if "CERTIFICATE_VERIFY_FAILED" in trouble:
                    raise CoordinatorError(
                        f"the certificate of {self.url} is not to be trusted: {trouble}; name its authority "
                        "with --ca FILE"
                    ) from error
            if self.give_up_after is not None and time.monotonic() - since > self.give_up_after:
                raise CoordinatorError(
                    f"{self.url} could not be reached for {self.give_up_after:g} s: {trouble}"
                )
            self.tell(f"waiting for the coordinator ({trouble})")
            self.sleep(max(wait, pause * self._dice.uniform(0.5, 1.5)))
            pause = min(LONGEST_PAUSE, 2 * pause)


@dataclass
class Participant:
    """One silo in one run, from joining to the end."""

    line: Line
    name: str
    make_silo: Callable[[Manifest], Silo]
    build: Callable[[Manifest], nn.Module] | None = None
    tell: Callable[[str], None] = lambda _: None

    def take_part(self) -> str:
        """Work until the run is over; returns how it ended."""
        manifest = self._manifest()
        if self.name not in manifest.silos:
            names = ", ".join(manifest.silos)
            raise CoordinatorError(f"the run {manifest.run!r} has no silo {self.name!r}, only {names}")
        worker = self._worker(manifest)
        have, weights = -1, None
        self._join(manifest, worker)
        while True:
            response = self.line.call(
                "GET", f"/v1/silos/{self.name}/task", params={"have": have, "wait": POLL_SECONDS}
            )
            if response.status_code == 204:
                continue
            if response.status_code == 410:
                return str(response.json().get("detail", "the run is over"))
            if response.status_code == 409:
                self._require_same(manifest)
                self._join(manifest, worker)
                continue
            if response.status_code != 200:
                self._refused(response)
            request, task, run = unpack_request(response.content, manifest.like(), weights)
            if run != manifest.hash:
                self._require_same(manifest)
            have, weights = request.version, dict(request.weights)
            self._answer(worker, manifest, request, task)

    def _answer(self, worker: SiloWorker, manifest: Manifest, request: Request, task: str) -> None:
        self.tell(f"round {request.round} of {manifest.rounds}: {request.phase}")
        body = pack_reply(worker.answer(request), manifest.wire)
        response = self.line.call(
            "PUT",
            f"/v1/silos/{self.name}/rounds/{request.round}/{request.phase}",
            params={"task": task},
            content=body,
            headers={"Content-Type": MEDIA_TYPE},
        )
        if response.status_code not in (200, 409, 410):
            self._refused(response)

    def _manifest(self) -> Manifest:
        response = self.line.call("GET", "/v1/manifest")
        if response.status_code != 200:
            self._refused(response)
        try:
            found = response.json()
            manifest = read_manifest(found["manifest"])
        except (ValueError, KeyError, TypeError) as error:
            raise ProtocolError(f"{self.line.url} is not a FedILC coordinator") from error
        if manifest.hash != found["hash"]:
            raise CoordinatorError("the manifest does not match its own hash; do not join this coordinator")
        return manifest

    def _require_same(self, manifest: Manifest) -> None:
        if self._manifest().hash != manifest.hash:
            raise CoordinatorError(
                "the coordinator now runs something else than what this silo joined; find out why, and join "
                "again if that is right"
            )

    def _join(self, manifest: Manifest, worker: SiloWorker) -> None:
        body = {"manifest": manifest.hash, "examples": len(worker.silo)}
        response = self.line.call("POST", f"/v1/silos/{self.name}/join", json=body)
        if response.status_code == 409:
            self._require_same(manifest)
        if response.status_code != 200:
            self._refused(response)
        self.tell(f"joined {manifest.run}, {manifest.algorithm}, {manifest.rounds} rounds")

    def _worker(self, manifest: Manifest) -> SiloWorker:
        model = self.build(manifest) if self.build is not None else manifest.model.build()
        manifest.require_fits(model)
        silo = self.make_silo(manifest)
        inputs = list(silo.x.shape[1:])
        if inputs != manifest.model.inputs:
            raise ConfigError(
                f"silo {self.name!r} has inputs of shape {inputs} and the run takes "
                f"{manifest.model.inputs}; give it the columns that the run was agreed on"
            )
        _require_labels(silo, manifest)
        task, loss = manifest.task(), Loss(manifest.loss)
        bench = Workbench(model, loss, task.classifier, task.covariance)
        return SiloWorker(silo, bench, task, partial(measure, loss))

    def _refused(self, response: httpx.Response) -> NoReturn:
        try:
            detail = str(response.json()["detail"])
        except (ValueError, KeyError, TypeError):
            detail = response.text[:200]
        raise CoordinatorError(f"the coordinator refuses silo {self.name!r}: {detail}")


def _require_labels(silo: Silo, manifest: Manifest) -> None:
    Federation(manifest.run, [silo], loss=manifest.loss).check_classes(manifest.model.outputs)
