"""A round over a deployment of NVIDIA FLARE against the same round in this process.

A real server and three real sites, provisioned with certificates of their own, each with its processes on
loopback and one thread, on the Color-MNIST network with so few examples that a round is mostly travel. Both
sides have the round as `fedilc` counts it: phases, step, and evaluation in every silo. Overhead is the
deployed round minus the local one, where the silos compute one after another.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import torch

from benchmarks.federations import color_mnist_like, color_mnist_mlp
from benchmarks.timing import Row, at_most
from fedilc import Federation, Silo, algorithms, train

SILOS, EXAMPLES = 3, 64
NAMES = [f"silo-{number}" for number in range(SILOS)]
OVERHEAD_SECONDS = 0.5
SETTINGS = {"learning_rate": 3e-4, "weight_decay": 0.01, "penalty": 15.0, "environment_size": 32}
WARM_UP = 2
PATIENCE_SECONDS = 1200.0
ADMIN = "admin@nvidia.com"


def federation() -> Federation:
    """Three small silos; half of each one's examples are for validation."""
    made = color_mnist_like(SILOS, 2 * EXAMPLES)
    silos = [Silo(s.name, s.x[:EXAMPLES], s.y[:EXAMPLES], s.x[EXAMPLES:], s.y[EXAMPLES:]) for s in made.silos]
    return Federation("nvflare", silos)


def make_silo(name: str) -> Silo:
    """What every site names as its provider: benchmarks.nvflare:make_silo."""
    return next(silo for silo in federation().silos if silo.name == name)


def rows(quick: bool) -> list[Row]:
    """The overhead of each algorithm, all in one job."""
    if find_spec("nvflare") is None:
        print("nvflare is not installed (pip install 'fedilc[nvflare]'); the group is left out")
        return []
    rounds = 10 if quick else 30
    with tempfile.TemporaryDirectory() as folder:
        runs = _deployed(rounds, Path(folder))
        return [_row(name, _local(name, rounds, Path(folder) / "local"), runs / name) for name in algorithms]


def _row(name: str, local: float, run: Path) -> Row:
    deployed = _seconds(run)
    overhead = deployed - local
    detail = f"{1e3 * deployed:.0f} ms - {1e3 * local:.0f} ms = {1e3 * overhead:.0f} ms"
    what, against = f"{name}, deployed round minus local", f"{1e3 * OVERHEAD_SECONDS:.0f} ms"
    return at_most("nvflare", what, against, overhead / OVERHEAD_SECONDS, 1, detail)


def _local(name: str, rounds: int, out: Path) -> float:
    """Seconds a round in this process, on one thread as each silo has."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        train(federation(), color_mnist_mlp(), name, rounds=rounds, **SETTINGS, out=out / name)
    finally:
        torch.set_num_threads(threads)
    return _seconds(out / name)


def _seconds(run: Path) -> float:
    """The median of a run folder's rounds, without the first, which also wait for sites and kernels."""
    lines = (run / "timing.jsonl").read_text().splitlines()[WARM_UP:]
    return statistics.median(json.loads(line)["seconds"] for line in lines)


def _deployed(rounds: int, folder: Path) -> Path:
    """Run all algorithms as one job of a deployment; the folder of their runs."""
    from nvflare.fuel.flare_api.flare_api import new_secure_session

    from fedilc.runtimes.nvflare import FedILCRecipe

    lines = [f"{key} = {json.dumps(value)}" for key, value in {"rounds": rounds, **SETTINGS}.items()]
    lines += ["[data]", 'source = "remote"', f"silos = {json.dumps(NAMES)}", "inputs = [2, 14, 14]"]
    (folder / "nvflare.toml").write_text("\n".join(lines) + "\n")
    job = FedILCRecipe(folder / "nvflare.toml", algorithm="all", out="measured").write(folder / "jobs")
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

    from fedilc.runtimes.nvflare.proof import project_file

    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    local = {name: {"provider": "benchmarks.nvflare:make_silo"} for name in NAMES}
    project = project_file(folder, NAMES, local, port)
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
