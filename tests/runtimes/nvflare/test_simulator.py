"""NVIDIA FLARE's simulator trains what `local` does, from a user's own script."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from torch import Tensor

from fedilc import algorithms

pytestmark = pytest.mark.slow

pytest.importorskip("nvflare", reason="NVIDIA FLARE is not installed: pip install 'fedilc[nvflare]'")

SCRIPT = """
import sys
from nvflare.recipe import SimEnv
from fedilc.runtimes.nvflare import FedILCRecipe

experiment, out, workspace = sys.argv[1:]
for algorithm, folder in (("all", out), ("fedavg", out + "/fedavg")):
    recipe = FedILCRecipe(experiment, algorithm=algorithm, out=folder, timeout=120)
    recipe.execute(SimEnv(num_clients=3, workspace_root=workspace))
"""


@pytest.mark.timeout(1200)
def test_all_six_algorithms_and_fedavg_give_the_weights_of_local(
    tmp_path: Path,
    experiment: Path,
    locally: Callable[..., dict[str, Tensor]],
    same_weights: Callable[[Path, dict[str, Tensor], int], None],
) -> None:
    (tmp_path / "job.py").write_text(SCRIPT)
    (tmp_path / "longer.toml").write_text(experiment.read_text().replace("rounds = 5", "rounds = 10"))
    done = subprocess.run(
        [sys.executable, "job.py", "longer.toml", "out", tmp_path / "workspace"],
        cwd=tmp_path,
        env=os.environ | {"OMP_NUM_THREADS": "1", "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=1100,
        start_new_session=True,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    for name in (*algorithms.PAPER, "fedavg"):
        same_weights(tmp_path / "out" / name, locally(name, 10), 10)
