"""The model of a finished run, which `fedilc serve --view RUN` publishes for silos to evaluate."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fedilc.errors import ConfigError
from fedilc.federation import RunFolder
from fedilc.federation.run_folder import PREPROCESSING
from fedilc.runtimes.rest.http_client import CoordinatorError, HttpClient, Response

WEIGHTS = "best-validation.safetensors"
MAX_BYTES = 2 << 30
_FACTS = ("federation", "model", "loss", "classes", "columns", "label", "seed")


def about_model(folder: Path) -> dict[str, Any]:
    """Return what a silo needs to use a run's model; nothing about other silos."""
    facts = RunFolder(folder).settings()
    path = folder / PREPROCESSING
    made = json.loads(path.read_bytes()) if path.exists() else None
    return {"run": {key: facts.get(key) for key in _FACTS}, "preprocessing": made}


def fetch_run(client: HttpClient, folder: Path) -> None:
    """Download the files of a published run that `fedilc.load` needs into a folder."""
    about = _get(client, "/v1/model").json()
    if not isinstance(about, dict) or not isinstance(about.get("run"), dict):
        raise CoordinatorError(f"{client.url} does not respond with a model")
    (folder / "run.json").write_text(json.dumps(about["run"]))
    if about.get("preprocessing") is not None:
        (folder / PREPROCESSING).write_text(json.dumps(about["preprocessing"]))
    (folder / WEIGHTS).write_bytes(_get(client, "/v1/model/weights").body)


def _get(client: HttpClient, path: str) -> Response:
    response = client.call("GET", path, MAX_BYTES)
    if response.status in (401, 403):
        raise ConfigError(f"{client.url} refuses the model: {response.reason}; give a silo's --token-file")
    if response.status != 200:
        raise CoordinatorError(
            f"{client.url} publishes no model ({response.reason}); its operator does so with `fedilc serve "
            "--view RUN`"
        )
    return response
