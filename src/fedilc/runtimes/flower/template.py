"""Write an app folder for `flwr run`; the code itself is in the installed fedilc."""

from __future__ import annotations

import json
import re
from pathlib import Path
from string import Template

from fedilc import __version__
from fedilc.config import Experiment, read_experiment, shipped_experiments
from fedilc.data.tables.numeric_files import matching
from fedilc.errors import ConfigError, writing
from fedilc.runtimes.remote.builders import refuse_many_silos

_PYPROJECT = Template("""\
[project]
name = "$name"
version = "1.0.0"
description = $description
license = "Apache-2.0"
requires-python = ">=3.11"
# Install fedilc beside Flower wherever this runs; Flower installs nothing.
dependencies = ["flwr[simulation]>=1.41,<1.42"]

[tool.flwr.app]
publisher = "fedilc"
fab-include = [$files]

[tool.flwr.app.components]
serverapp = "server_app:app"
clientapp = "client_app:app"

# Change these with --run-config 'algorithm="fedsgd" rounds=5'. If empty or 0, the experiment's value is used.
[tool.flwr.app.config]
algorithm = ""
rounds = 0
seed = 0
min-silos = 0
set = ""            # other settings: "penalty_weight=5 model.hidden=[16]"
timeout = 600.0     # seconds that an exchange with the nodes may take
wire = "exact"      # or float16, for half the bytes
out = $out          # the run folder, where the ServerApp runs; an interrupted run continues there
""")

_SERVER = Template('''\
"""The ServerApp: it trains the experiment over the nodes, and writes a checkpoint per round."""

$imports

EXPERIMENT = $experiment
app = make_server_app(EXPERIMENT$folder)
''')

_CLIENT = Template('''\
"""The ClientApp: it computes for the silo of its node. The examples stay there."""

$imports

EXPERIMENT = $experiment


def make_silo(partition_id: int, seed: int = 0) -> Silo:
    """Return the silo of the node with this partition-id: put your own data here.

    It is fedilc.Silo(name, x, y, x_val, y_val): inputs with examples first, labels 0/1 or class numbers.
    As written, it takes the silo from the experiment, for a trial.
    """
    return silo_of(EXPERIMENT, partition_id, seed$folder)


app = make_client_app(make_silo$device)
''')

_README = Template("""\
# $name

$experiment_name with fedilc $version on Flower. Fill in `make_silo` in `client_app.py`. In simulation:

```sh
export FLWR_TELEMETRY_ENABLED=0 FLWR_DISABLE_UPDATE_CHECK=1 RAY_USAGE_STATS_ENABLED=0
export FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION=1
flwr run . --stream --federation-config "num-supernodes=$silos client-resources-num-cpus=1"
```

On real nodes: `docs/flower.md` of fedilc.
""")


def new_app(folder: Path, experiment: str) -> int:
    """Write the app folder of an experiment; return how many silos it has."""
    settings, own_folder = read_experiment(experiment)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"{folder} exists and is not an empty folder; choose another one")
    silos = _silos(settings, own_folder)
    shipped = experiment in shipped_experiments()
    own = "" if shipped else Path(experiment).name
    copied = "experiment.toml" if own == "pyproject.toml" else own
    fields = {
        "name": _app_name(folder),
        "experiment_name": settings.name,
        "description": json.dumps(f"{settings.name} with fedilc on Flower"),
        "version": __version__,
        "silos": str(silos),
        "files": ", ".join(json.dumps(name) for name in ("*.py", "*.md", copied) if name),
        "out": json.dumps(str(Path("runs", folder.resolve().name).absolute())),
        "experiment": json.dumps(experiment)
        if shipped
        else f"Path(__file__).with_name({json.dumps(copied)})",
        "device": "" if settings.device == "auto" else f", device={json.dumps(settings.device)}",
        "folder": "" if shipped else f", folder={json.dumps(str(own_folder.absolute()))}",
    }
    paths = "" if shipped else "from pathlib import Path\n\n"
    server = f"{paths}from fedilc.runtimes.flower import make_server_app"
    client = f"{paths}from fedilc import Silo\nfrom fedilc.runtimes.flower import make_client_app, silo_of"
    files = {
        "pyproject.toml": _PYPROJECT.substitute(fields),
        "server_app.py": _SERVER.substitute(fields, imports=server),
        "client_app.py": _CLIENT.substitute(fields, imports=client),
        "README.md": _README.substitute(fields),
    }
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
    for key in ("silos", "flips", "angles"):
        given = getattr(data, key, None)
        if isinstance(given, str):
            return len(matching(given, folder))
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
