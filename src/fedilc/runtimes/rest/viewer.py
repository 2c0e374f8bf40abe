"""Serve a run folder of any runtime: its page, and its model, which silos can evaluate."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fastapi import Depends, FastAPI, HTTPException
from fastapi.responses import FileResponse

from fedilc.errors import ConfigError
from fedilc.federation import Record
from fedilc.federation.outliers import against_sentence
from fedilc.runtimes.remote.wire import MEDIA_TYPE
from fedilc.runtimes.rest.address import Address
from fedilc.runtimes.rest.auth import Auth, TokenFile, Tokens
from fedilc.runtimes.rest.coordinator import listening, make_app
from fedilc.runtimes.rest.http_client import PUBLISHED_WEIGHTS
from fedilc.runtimes.rest.membership import Progress, SiloStatus
from fedilc.runtimes.rest.request_limits import refusals
from fedilc.storage.run_folder import RunFolder
from fedilc.training.loaded_model import read_preprocessing

_PUBLISHED = ("federation", "model", "loss", "classes", "columns", "label", "seed")


class FolderView:
    """A run folder in the form in which the page shows a run."""

    def __init__(self, folder: Path) -> None:
        run_folder = RunFolder(folder)
        self.settings = run_folder.settings()
        self.silos = tuple(self.settings["silos"])
        self.history: list[Record] = run_folder.history()
        self.revision = 0

    def about(self) -> dict[str, Any]:
        """Return the run's settings, in place of a manifest."""
        return {"manifest": self.settings, "hash": None}

    def is_over(self) -> bool:
        """Return True: a folder is read once, and does not change."""
        return True

    def listen(self, _listener: Callable[[], None]) -> None:
        """Do nothing: a folder does not change while it is shown."""

    def snapshot(self) -> dict[str, Any]:
        """Return the state of the run after its last round."""
        last: Record = self.history[-1] if self.history else {"round": 0}
        rounds, done = int(self.settings["rounds"]), int(last["round"])
        outcome = "complete" if done >= rounds else f"{done} of {rounds} rounds are done"
        return {
            "run": self.settings.get("experiment") or self.settings.get("federation"),
            "algorithm": self.settings.get("algorithm"),
            "rounds": rounds,
            "secure": bool(self.settings.get("secure")),
            "completed": done,
            **asdict(Progress(done, "ended", None, outcome=outcome)),
            "seconds_left": None,
            "silos": [self._silo(name, last) for name in self.silos],
        }

    def _silo(self, name: str, last: Record) -> dict[str, Any]:
        numbers, against = last.get("silos", {}).get(name, {}), last.get("against", {})
        reasons = [
            f"set aside in round {record['round']}: {record['set_aside'][name]}"
            for record in self.history
            if name in record.get("set_aside", {})
        ]
        status = SiloStatus(
            name,
            "answered" if numbers or self.settings.get("secure") else "lost",
            numbers.get("examples"),
            loss=numbers.get("train_loss"),
            reason=reasons[-1] if reasons else None,
            notice=against_sentence(against[name]) if name in against else None,
        )
        return asdict(status) | {"bytes_received": None, "bytes_sent": None}


def publish_model(app: FastAPI, folder: Path, tokens: Tokens | TokenFile | None) -> None:
    """Let silos download the run's model, to evaluate it on their own examples."""
    settings, made = RunFolder(folder).settings(), read_preprocessing(folder)
    published = {
        "run": {key: settings.get(key) for key in _PUBLISHED},
        "preprocessing": made and made.model_dump(mode="json"),
    }
    auth, refused = Auth(tokens, settings["silos"]), refusals(401, 403, 404, 429)
    silos = [Depends(auth.require_any_silo)]

    @app.get("/v1/model", dependencies=silos, responses=refused)
    async def about() -> dict[str, Any]:
        """Return what the model's inputs and outputs mean, and nothing about silos; for silos only."""
        return published

    @app.get("/v1/model/weights", dependencies=silos, responses=refused, response_class=FileResponse)
    async def weights() -> FileResponse:
        """Return the weights of the round that validation chose; for silos only."""
        if not (folder / PUBLISHED_WEIGHTS).is_file():
            raise HTTPException(404, "no round was chosen by validation")
        return FileResponse(folder / PUBLISHED_WEIGHTS, media_type=MEDIA_TYPE)


def show(
    folder: Path, address: Address, tokens: Tokens | TokenFile | None, ready: Callable[[str], None]
) -> None:
    """Serve the page of a run folder until interrupted."""
    address.require_safe(tokens)
    if not RunFolder(folder).settings_file.exists():
        raise ConfigError(f"{folder} holds no run (there is no run.json); name a run folder")
    app = make_app(FolderView(folder), tokens)
    publish_model(app, folder, tokens)
    with listening(app, address) as port:
        ready(address.url(port))
        while True:
            time.sleep(3600)
