"""A server and three sites with mutual TLS: they train as `local` does, and what a killed process does."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from fedilc import algorithms
from fedilc.storage.run_folder import RunFolder

pytest.importorskip("nvflare", reason="NVIDIA FLARE is not installed: pip install 'fedilc[nvflare]'")

from fedilc.runtimes.nvflare import FedILCRecipe

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
ROUNDS = 25
Locally = Callable[..., dict[str, Tensor]]
Same = Callable[[Path, dict[str, Tensor], int], None]


def job_folder(deployment: Any, out: str, **more: Any) -> str:
    recipe = FedILCRecipe(deployment.experiment, out=out, **more)
    return str(recipe.write(deployment.folder / "jobs" / out).absolute())


def test_all_six_algorithms_give_the_weights_of_local(
    deployment: Any, locally: Locally, same_weights: Same
) -> None:
    folder = job_folder(deployment, "six", algorithm="all", timeout=120)
    with deployment.admin() as session:
        job = session.submit_job(folder)
        assert deployment.outcome(session, job) == "FINISHED:COMPLETED"
        results = Path(session.download_job_result(job))
    for name in algorithms.PAPER:
        same_weights(deployment.run_folder("six") / name, locally(name), 5)
    downloaded = {path.relative_to(results).as_posix() for path in results.rglob("*.safetensors")}
    assert {path.split("/")[-2] for path in downloaded if "checkpoint" in path} == set(algorithms.PAPER)


@pytest.mark.long
def test_a_killed_job_process_ends_the_job_and_the_same_job_goes_on_to_the_same_weights(
    deployment: Any, locally: Locally, same_weights: Same
) -> None:
    folder = job_folder(
        deployment, "killed", algorithm="fishr-inter-geo", changes=[f"rounds={ROUNDS}"], timeout=60
    )
    with deployment.admin() as session:
        job = session.submit_job(folder)
        deployment.wait_for_round("killed", 3)
        deployment.kill("site-2", "worker_process")
        assert deployment.outcome(session, job) == "FINISHED:EXECUTION_EXCEPTION"
        done = len(RunFolder(deployment.run_folder("killed")).history())
        assert 3 <= done < ROUNDS
        again = session.submit_job(folder)
        assert deployment.outcome(session, again) == "FINISHED:COMPLETED"
    assert f"continues after round {done}" in deployment.said("server")
    same_weights(deployment.run_folder("killed"), locally("fishr-inter-geo", ROUNDS), ROUNDS)


@pytest.mark.long
def test_after_an_abort_and_after_a_killed_server_the_same_job_goes_on_to_the_same_weights(
    deployment: Any, locally: Locally, same_weights: Same
) -> None:
    folder = job_folder(deployment, "cut", algorithm="geometric", changes=[f"rounds={ROUNDS}"], timeout=60)
    done = [0]
    with deployment.admin() as session:
        job = session.submit_job(folder)
        deployment.wait_for_round("cut", 3)
        session.abort_job(job)
        assert deployment.outcome(session, job) == "FINISHED:ABORTED"
        done.append(len(RunFolder(deployment.run_folder("cut")).history()))
        session.submit_job(folder)
        deployment.wait_for_round("cut", done[-1] + 3)
    deployment.kill("server")
    done.append(len(RunFolder(deployment.run_folder("cut")).history()))
    deployment.start("server")
    deployment.wait_for_sites()
    with deployment.admin() as session:
        again = session.submit_job(folder)
        assert deployment.outcome(session, again) == "FINISHED:COMPLETED"
    assert 0 < done[1] < done[2] < ROUNDS
    assert all(f"continues after round {rounds}" in deployment.said("server") for rounds in done[1:])
    same_weights(deployment.run_folder("cut"), locally("geometric", ROUNDS), ROUNDS)


@pytest.mark.long
def test_rounds_go_on_without_a_site_that_is_gone_if_enough_are_left(deployment: Any) -> None:
    folder = job_folder(
        deployment, "gone", min_clients=2, algorithm="fedcurv", changes=[f"rounds={ROUNDS}"], timeout=5
    )
    with deployment.admin() as session:
        job = session.submit_job(folder)
        deployment.wait_for_round("gone", 3)
        deployment.kill("site-3")
        assert deployment.outcome(session, job) == "FINISHED:COMPLETED"
    history = RunFolder(deployment.run_folder("gone")).history()
    assert [record["round"] for record in history] == list(range(1, ROUNDS + 1))
    asked = [set(record["silos"]) for record in history]
    assert asked[0] == {"flip-0.20", "flip-0.50", "flip-0.80"}
    assert asked[-1] == {"flip-0.20", "flip-0.50"}
    timing = (deployment.run_folder("gone") / "timing.jsonl").read_text().splitlines()
    assert max(json.loads(line)["seconds"] for line in timing) < 60
