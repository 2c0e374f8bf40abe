"""Write an app folder for `flwr run`; the code itself is in the installed fedilc."""

from __future__ import annotations

import json
import re
from pathlib import Path

from fedilc import __version__
from fedilc.config import Experiment, read_experiment, shipped_experiments
from fedilc.data.sources import Tables
from fedilc.errors import ConfigError, writing
from fedilc.runtimes.remote.silo_client import refuse_many_silos
from fedilc.storage.templating import templates

_FILES = ("pyproject.toml", "server_app.py", "client_app.py", "README.md")


def new_app(folder: Path, experiment: str) -> int:
    """Write the app folder of an experiment; return how many silos it has."""
    settings, own_folder = read_experiment(experiment)
    settings.refuse_secure()
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"{folder} exists and is not an empty folder; choose another one")
    silos = _silos(settings, own_folder)
    own = "" if experiment in shipped_experiments() else Path(experiment).name
    copied = "experiment.toml" if own == "pyproject.toml" else own
    values = {
        "name": _app_name(folder),
        "experiment": experiment,
        "experiment_name": settings.name,
        "version": __version__,
        "silos": silos,
        "copied": copied,
        "files": [name for name in ("*.py", "*.md", copied) if name],
        "own_folder": str(own_folder.absolute()),
        "device": settings.device,
        "out": str(Path("runs", folder.resolve().name).absolute()),
    }
    found = templates(__package__, json=json.dumps)
    files = {name: found.get_template(f"{name}.jinja").render(values) for name in _FILES}
    if copied:
        files[copied] = Path(experiment).read_text()
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (folder / name).write_text(text)
    return silos


def _silos(settings: Experiment, folder: Path) -> int:
    """Return how many silos there are, from the settings alone if they say so: the data may come later."""
    data = settings.data
    refuse_many_silos(data, "Flower needs a node")
    if isinstance(data, Tables):
        if data.silo_column is None:
            return len(data.reader(folder).files.keys() - {data.test, *data.exclude_sites})
        return len(data.store(settings.seed, folder).silos)
    for key in ("silos", "flips", "angles"):
        given = getattr(data, key, None)
        if given is not None:
            return given if isinstance(given, int) else len(given)
    return len(data.store(settings.seed, folder).silos)


def _app_name(folder: Path) -> str:
    """Return a name that Flower accepts: letters, digits and hyphens, a letter first.

    >>> _app_name(Path("my_app.2"))
    'my-app-2'
    """
    name = re.sub("[^A-Za-z0-9]+", "-", folder.resolve().name).strip("-")[:40].strip("-")
    return name if name[:1].isalpha() else f"app-{name}".strip("-")
