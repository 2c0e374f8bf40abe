"""Serve the page of a run folder, whichever runtime trained it, finished or not."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fastapi import Depends, FastAPI, HTTPException
from fastapi.responses import FileResponse

from fedilc.errors import ConfigError
from fedilc.federation import Record, RunFolder
from fedilc.runtimes.remote.wire import MEDIA_TYPE
from fedilc.runtimes.rest.app import make_app
from fedilc.runtimes.rest.auth import Auth
from fedilc.runtimes.rest.listener import Address, listening
from fedilc.runtimes.rest.published import WEIGHTS, about_model
from fedilc.runtimes.rest.request_limits import refusals
from fedilc.runtimes.rest.tokens import TokenFile, Tokens


class FolderView:
    """A run folder in the form in which the page shows a run."""

    def __init__(self, folder: Path) -> None:
        run_folder = RunFolder(folder)
        self.settings = run_folder.settings()
        self.history: list[Record] = run_folder.history()
        self.revision = 0

    def about(self) -> dict[str, Any]:
        """Return the run's settings, in place of a manifest."""
        return {"manifest": self.settings, "hash": None}

    def is_over(self) -> bool:
        """Return that nothing changes any more: a folder is read once."""
        return True

    def listen(self, _listener: Callable[[], None]) -> None:
        """Do nothing: a folder does not change while it is shown."""

    def snapshot(self) -> dict[str, Any]:
        """Return the state of the run after its last round."""
        last: Record = self.history[-1] if self.history else {"round": 0, "silos": {}}
        rounds = int(self.settings["rounds"])
        done = int(last["round"])
        return {
            "run": self.settings.get("experiment") or self.settings.get("federation"),
            "algorithm": self.settings.get("algorithm"),
            "rounds": rounds,
            "completed": done,
            "round": done,
            "phase": "ended",
            "started": None,
            "seconds_a_round": None,
            "outcome": "complete" if done >= rounds else f"{done} of {rounds} rounds are done",
            "seconds_left": None,
            "silos": [
                self._silo(name, last.get("silos", {}).get(name, {})) for name in self.settings["silos"]
            ],
        }

    def _silo(self, name: str, numbers: dict[str, Any]) -> dict[str, Any]:
        reasons = [
            f"set aside in round {record['round']}: {record['set_aside'][name]}"
            for record in self.history
            if name in record.get("set_aside", {})
        ]
        return {
            "name": name,
            "state": "answered" if numbers else "lost",
            "examples": numbers.get("examples"),
            "last_seen": None,
            "loss": numbers.get("train_loss"),
            "bytes_received": None,
            "bytes_sent": None,
            "strikes": 0,
            "reason": reasons[-1] if reasons else None,
        }


def publish_model(app: FastAPI, folder: Path, tokens: Tokens | TokenFile | None) -> None:
    """Let silos download the run's model, to evaluate it on their own examples."""
    silos, refused = [Depends(Auth(tokens).require_any_silo)], refusals(401, 404, 429)

    @app.get("/v1/model", dependencies=silos, responses=refused)
    async def about() -> dict[str, Any]:
        """Return what the model's inputs and outputs mean; for silos only."""
        return about_model(folder)

    @app.get("/v1/model/weights", dependencies=silos, responses=refused, response_class=FileResponse)
    async def weights() -> FileResponse:
        """Return the weights of the round that validation chose; for silos only."""
        if not (folder / WEIGHTS).is_file():
            raise HTTPException(404, "no round was chosen by validation")
        return FileResponse(folder / WEIGHTS, media_type=MEDIA_TYPE)


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
