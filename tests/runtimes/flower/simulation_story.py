"""The app of `fedilc flower new` in Flower's simulation: all algorithms, one after another, in one run.

The SuperLink is started here, because `flwr run` gives up one of its own that takes 15 s to start. Ray gives
up after 15 s too, so that on a busy machine the run is started again; it goes on where it was.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from deployment_story import free_port, is_listening, until

MOST_STARTS = 5
LOOP = """
import server_app
from flwr.serverapp import ServerApp

app = ServerApp()

@app.main()
def main(grid, context):
    for algorithm in {algorithms!r}:
        context.run_config |= {{"algorithm": algorithm, "out": "{out}/" + algorithm}}
        server_app.app(grid, context)
"""


def start_superlink(folder: Path) -> None:
    port = free_port()
    home = Path(os.environ["FLWR_HOME"])
    home.mkdir(parents=True, exist_ok=True)
    (home / "config.toml").write_text(f'[superlink.sim]\naddress = "127.0.0.1:{port}"\ninsecure = true\n')
    words = ["flower-superlink", "--insecure", "--simulation", "--host", "127.0.0.1", "--port", str(port)]
    with (folder / "superlink.log").open("wb") as log:
        subprocess.Popen(words, stdout=log, stderr=log, start_new_session=True)
    until(lambda: is_listening(port), "the SuperLink listens")


def main(folder: Path) -> dict[str, Any]:
    given = json.loads((folder / "given.json").read_text())
    app = folder / "app"
    (app / "loop_app.py").write_text(LOOP.format(**given))
    project = (app / "pyproject.toml").read_text()
    (app / "pyproject.toml").write_text(project.replace('"server_app:app"', '"loop_app:app"'))
    start_superlink(folder)
    nodes = f"num-supernodes={given['nodes']} client-resources-num-cpus=1"
    config = f"""rounds={given["rounds"]} set="{given["changes"]}" timeout=300.0"""
    words = ["flwr", "run", "app", "sim", "--stream", "--federation-config", nodes, "--run-config", config]
    listing = ["flwr", "ls", "sim", "--format", "json"]
    found: list[str] = []
    while "finished:completed" not in found and len(found) < MOST_STARTS:
        subprocess.run(words, check=True, cwd=folder)
        listed = subprocess.run(listing, capture_output=True, text=True, check=True).stdout
        found = [run["status"] for run in json.loads(listed)["runs"]]
    return {"status": found}


if __name__ == "__main__":
    where = Path(sys.argv[1])
    (where / "told.json").write_text(json.dumps(main(where)))
