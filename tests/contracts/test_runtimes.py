"""Every runtime trains what the local one does, to the last bit.

NVIDIA FLARE and Flower need environments of their own: tests/runtimes/nvflare and tests/runtimes/flower.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from fleets import as_options, assert_same_run, fleet, outcome_of, run_locally
from ports import free_port
from worked_examples import OWN_ALGORITHM, OWN_PENALTY

import fedilc
from fedilc import algorithms

CHANGES = ["rounds=10", "model.hidden=[16]", "environment_size=32", "penalty_weight=5", "learning_rate=0.01"]


def run_over_http(
    silos: Sequence[str],
    changes: list[str],
    folder: Path,
    *options: str,
    experiment: str | Path = "color-digits",
) -> None:
    """A coordinator and a process for each silo; the run folder is `rest`."""
    with fleet(folder) as processes:
        given = [*as_options(changes), *options]
        coordinator, url = processes.serve("color-digits", *given, "--out", folder / "rest")
        members = [processes.start("join", url, "--silo", name, "--experiment", experiment) for name in silos]
        assert coordinator.ended() == 0, coordinator.said
        assert [member.ended() for member in members] == [0] * len(silos)
        assert all("the run is over: complete" in member.said for member in members)


def run_on_ranks(_silos: Sequence[str], changes: list[str], folder: Path, ranks: int = 2) -> None:
    """Two ranks of torchrun; the run folder is `distributed`."""
    launcher = ["torch.distributed.run", f"--nproc-per-node={ranks}", f"--master-port={free_port()}"]
    run = ["fedilc", "run", "color-digits", *as_options(changes), "--out", str(folder / "distributed")]
    subprocess.run(
        [sys.executable, "-m", *launcher, "-m", *run],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        check=True,
        timeout=240,
        capture_output=True,
    )


RUNTIMES: dict[str, Callable[[Sequence[str], list[str], Path], None]] = {
    "rest": run_over_http,
    "distributed": run_on_ranks,
}
CASES = [
    *(("rest", name, "equal") for name in algorithms.PAPER),
    ("rest", "fedcurv", "examples"),
    ("distributed", "fishr-inter-geo", "equal"),
    ("distributed", "fedcurv", "examples"),
]


@pytest.mark.parametrize(("runtime", "algorithm", "weights"), CASES)
def test_a_runtime_gives_the_bits_of_local(
    runtime: str, algorithm: str, weights: str, tmp_path: Path
) -> None:
    changes = [*CHANGES, f"algorithm={algorithm}", f"silo_weights={weights}"]
    silos = run_locally(changes, tmp_path / "local")
    assert len(silos) == 5
    RUNTIMES[runtime](silos, changes, tmp_path)
    assert_same_run(tmp_path / "local", tmp_path / runtime)


@pytest.mark.parametrize(
    ("runtime", "algorithm"),
    [
        *(("rest", name) for name in ("fedavg", "scaffold", "group-dro", OWN_ALGORITHM, OWN_PENALTY)),
        ("rest", "fedcurv inter=trimmed-mean trim=0.4"),
        ("rest", "fishr-inter-geo average=ema"),
        ("rest", "scaffold average=last average_share=0.5 evaluate_every=2"),
        ("distributed", "scaffold"),
        ("distributed", "fedcurv inter=median"),
        ("distributed", "fishr-inter-geo average=last average_share=0.5"),
        ("distributed", "fedavg average=ema average_decay=0.5"),
    ],
)
def test_so_it_does_with_local_steps_silo_state_adaptive_weights_and_parts_of_ones_own(
    runtime: str, algorithm: str, tmp_path: Path
) -> None:
    name, *more = algorithm.split()
    changes = ["rounds=4", "model.hidden=[8]", "penalty_weight=0.1", f"algorithm={name}", *more]
    silos = run_locally(changes, tmp_path / "local")
    RUNTIMES[runtime](silos, changes, tmp_path)
    assert_same_run(tmp_path / "local", tmp_path / runtime)


@pytest.mark.parametrize("runtime", RUNTIMES)
@pytest.mark.filterwarnings("ignore:round 11:fedilc.errors.FedILCWarning")
def test_a_silo_that_points_against_the_others_is_noticed_in_the_same_rounds(
    runtime: str, tmp_path: Path
) -> None:
    flips = "[0.0, 0.0, 0.0, 0.0, 1.0]"
    changes = ["rounds=12", "model.hidden=[8]", f"data.flips={flips}", "algorithm=geometric"]
    silos = run_locally(changes, tmp_path / "local")
    if runtime == "rest":
        packaged = (Path(fedilc.__file__).parent / "experiments" / "color-digits.toml").read_text()
        file = tmp_path / "flipped.toml"
        file.write_text(re.sub(r"(?m)^flips = .*$", f"flips = {flips}", packaged))
        run_over_http(silos, changes, tmp_path, experiment=file)
    else:
        run_on_ranks(silos, changes, tmp_path)
    assert_same_run(tmp_path / "local", tmp_path / runtime)
    against = [json.loads(line).get("against") for line in outcome_of(tmp_path / runtime)[0]]
    assert against == [None] * 10 + [{silos[-1]: rounds} for rounds in (10, 11)]


def test_halves_on_the_wire_train_nearly_what_local_does(tmp_path: Path) -> None:
    silos = run_locally(CHANGES, tmp_path / "local")
    run_over_http(silos, CHANGES, tmp_path, "--wire", "float16")
    (exact, _), (halved, _) = outcome_of(tmp_path / "local"), outcome_of(tmp_path / "rest")
    assert len(exact) == len(halved) == 10
    assert exact != halved
    for one, other in zip(map(json.loads, exact), map(json.loads, halved), strict=True):
        for loss in ("train_loss", "validation_loss", "test_loss"):
            assert other[loss] == pytest.approx(one[loss], rel=5e-3)
