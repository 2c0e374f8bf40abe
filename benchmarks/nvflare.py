"""A round over a deployment of NVIDIA FLARE against the same round in this process.

A real server and three real sites, provisioned with certificates of their own, each with its processes on
loopback and one thread, on the Color-MNIST network with so few examples that a round is mostly travel. Both
sides have the round as `fedilc` counts it: all steps, and evaluation in every silo. Overhead is the
deployed round minus the local one, in which the silos compute one after another.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from benchmarks.timing import Row
from benchmarks.travel import (
    PROVIDER,
    free_port,
    local_seconds,
    overhead_row,
    seconds_per_round,
    write_experiment,
)
from fedilc import algorithms

SILOS = 3
NAMES = [f"silo-{number}" for number in range(SILOS)]
OVERHEAD_SECONDS = 0.5
SETTINGS = {"learning_rate": 3e-4, "weight_decay": 0.01, "penalty_weight": 15.0, "environment_size": 32}
PATIENCE_SECONDS = 1200.0
ADMIN = "admin@nvidia.com"


def rows(quick: bool) -> list[Row]:
    """The overhead of each algorithm, all in one job."""
    if find_spec("nvflare") is None:
        print("nvflare is not installed (pip install 'fedilc[nvflare]'); the group is left out")
        return []
    rounds = 10 if quick else 30
    with tempfile.TemporaryDirectory() as folder:
        runs = deployed(rounds, Path(folder))
        local = {
            name: local_seconds(SILOS, name, rounds, SETTINGS, Path(folder) / "local" / name)
            for name in algorithms.PAPER
        }
        return [
            overhead_row(
                *("nvflare", f"{name}, deployed round minus local"),
                *(seconds_per_round(runs / name), local[name], OVERHEAD_SECONDS),
            )
            for name in algorithms.PAPER
        ]


def deployed(rounds: int, folder: Path, algorithm: str = "all") -> Path:
    """Run as one job of a deployment, with each algorithm in turn; the folder of the runs."""
    from nvflare.fuel.flare_api.flare_api import new_secure_session

    from fedilc.runtimes.nvflare import FedILCRecipe

    write_experiment(folder / "nvflare.toml", NAMES, {"rounds": rounds, **SETTINGS})
    job = FedILCRecipe(folder / "nvflare.toml", algorithm=algorithm, out="measured").write(folder / "jobs")
    kits = _provisioned(folder)
    with _processes(kits, folder):
        session = new_secure_session(ADMIN, str(kits / ADMIN), timeout=PATIENCE_SECONDS)
        try:
            while len(session.get_system_info().client_info) < SILOS:
                time.sleep(0.5)
            session.monitor_job(session.submit_job(str(job)), timeout=PATIENCE_SECONDS)
        finally:
            session.close()
    return kits / "server" / "fedilc-runs" / "measured"


def _provisioned(folder: Path) -> Path:
    """Kits of a server, the sites and an admin, each with a certificate of its own."""
    from nvflare.tool.poc.poc_commands import prepare_poc_provision

    from fedilc.runtimes.nvflare.recipe import write_poc_project

    local = {name: {"provider": PROVIDER} for name in NAMES}
    project = write_poc_project(folder, NAMES, local, free_port())
    prepare_poc_provision([], SILOS, str(folder / "poc"), "", project_conf_path=str(project))
    return folder / "poc" / "fedilc" / "prod_00"


@contextlib.contextmanager
def _processes(kits: Path, folder: Path) -> Iterator[None]:
    """The server and the sites, ended with all that they started."""
    import psutil

    own = {
        "HOME": str(folder),
        "OMP_NUM_THREADS": "1",
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(Path(__file__).parents[1]),
    }
    started = []
    try:
        for name in ("server", *NAMES):
            command = ["bash", str(kits / name / "startup" / "sub_start.sh")]
            with (folder / f"{name}.log").open("wb") as log:
                process = subprocess.Popen(
                    command, stdout=log, stderr=log, env=os.environ | own, start_new_session=True
                )
            started.append(process)
        yield
    finally:
        for process in started:
            first = psutil.Process(process.pid)
            for one in (first, *first.children(recursive=True)):
                with contextlib.suppress(psutil.NoSuchProcess):
                    one.kill()
            process.wait()
