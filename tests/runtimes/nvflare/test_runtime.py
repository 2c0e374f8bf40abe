"""The runtime against members in this process: as local, with losses, returns and bad answers."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor
from worked_examples import OTHERS

from fedilc import algorithms
from fedilc.config import read_experiment
from fedilc.errors import CheckpointError, ConfigError, SilosLostError
from fedilc.runtimes.nvflare.executor import SiteConfig
from fedilc.runtimes.remote.run import RemoteRun, RoundLog
from fedilc.runtimes.remote.wire import read_header
from fedilc.storage.run_folder import RunFolder

pytest.importorskip("nvflare", reason="NVIDIA FLARE is not installed: pip install 'fedilc[nvflare]'")

from fedilc.runtimes.nvflare.controller import NVFlareRuntime
from fedilc.runtimes.nvflare.executor import JOIN, STEP, Site

SITES = ("site-1", "site-2", "site-3")
SILOS = ("flip-0.20", "flip-0.50", "flip-0.80")
Answer = tuple[str, bytes | None]


class Sites:
    """Sites in this process; `meddle` may change, drop or refuse what a site answers."""

    def __init__(self, experiment: Path, silos: tuple[str, ...] = SILOS) -> None:
        self.said: list[str] = []
        self.sent: list[tuple[str, int]] = []
        self.meddle: Callable[[str, str, bytes], bytes | type[Exception] | None] = lambda *given: given[2]
        self.runtime: NVFlareRuntime | None = None
        self.members = {
            site: Site(site, SiteConfig(silo=silo, experiment=str(experiment)), Path(), self.said.append)
            for site, silo in zip(SITES, silos, strict=True)
        }

    def carry(self, task: str, body: bytes, sites: list[str]) -> Iterator[Answer]:
        step = read_header(body, len(body))[1]["step"] if task == STEP else task
        self.sent.append((step, len(body)))
        for site in reversed(sites):
            answer = self.meddle(site, step, self.members[site].execute(task, body))
            if answer is not TimeoutError:
                yield site, answer

    def train(self, experiment: Path, out: Path, *changes: str) -> None:
        settings, _ = read_experiment(str(experiment), changes)
        run = RemoteRun.of(settings, out.parent)
        self.runtime = NVFlareRuntime(run.manifest, SITES, run.needed, self.carry, self.said.append)
        run.train(run.training(self.runtime), "nvflare", out, [RoundLog(self.said.append)])


@pytest.mark.parametrize("algorithm", [*algorithms.PAPER, *OTHERS])
def test_every_algorithm_gives_the_weights_of_local(
    algorithm: str,
    experiment: Path,
    tmp_path: Path,
    locally: Callable[..., dict[str, Tensor]],
    same_weights: Callable[[Path, dict[str, Tensor], int], None],
) -> None:
    Sites(experiment).train(experiment, tmp_path / "run", f"algorithm={algorithm}", "rounds=10")
    same_weights(tmp_path / "run", locally(algorithm, 10), 10)


@pytest.mark.parametrize("average", ["ema", "last"])
def test_averaged_weights_are_those_of_local(
    average: str,
    experiment: Path,
    tmp_path: Path,
    locally: Callable[..., dict[str, Tensor]],
    same_weights: Callable[[Path, dict[str, Tensor], int], None],
) -> None:
    changes = "algorithm=fedavg", "rounds=6", f"average={average}"
    Sites(experiment).train(experiment, tmp_path / "run", *changes)
    same_weights(tmp_path / "run", locally("fedavg", 6, f"average={average}"), 6)


def test_weights_travel_once_for_each_step(experiment: Path, tmp_path: Path) -> None:
    sites = Sites(experiment)
    sites.train(experiment, tmp_path / "run", "algorithm=fishr-inter-geo", "rounds=2")
    settings, folder = read_experiment(str(experiment))
    model = settings.model.build(settings.data.store(0, folder), 0)
    weights = sum(4 * parameter.numel() for parameter in model.parameters())
    with_weights = [task for task, size in sites.sent if task != JOIN and size > weights]
    assert [task for task, _ in sites.sent] == [JOIN, *2 * ["statistics", "matched-update", "evaluate"]]
    assert with_weights == ["statistics", "evaluate", "evaluate"]


def test_a_silo_lost_between_the_steps_is_left_out_of_both(experiment: Path, tmp_path: Path) -> None:
    sites = Sites(experiment)
    sites.meddle = lambda site, task, answer: (
        TimeoutError if (site, task) == ("site-2", "matched-update") else answer
    )
    sites.train(experiment, tmp_path / "run", "algorithm=fishr-inter-geo", "min_silos=2", "rounds=2")
    first = [task for task, _ in sites.sent][:6]
    assert first == [JOIN, "statistics", "matched-update", "statistics", "matched-update", "evaluate"]
    for record in RunFolder(tmp_path / "run").history():
        assert set(record["silos"]) == {"flip-0.20", "flip-0.80"}


def test_a_silent_silo_that_asks_for_work_again_is_in_the_next_round(
    experiment: Path, tmp_path: Path
) -> None:
    sites = Sites(experiment)
    late: list[str] = []

    def meddle(site: str, task: str, answer: bytes) -> Any:
        if task == "matched-update" and site == "site-3" and not late:
            late.append(site)
            return TimeoutError
        if task == "evaluate" and late:
            assert sites.runtime is not None
            sites.runtime.mark_present("site-3")
        return answer

    sites.meddle = meddle
    sites.train(experiment, tmp_path / "run", "algorithm=fedcurv", "min_silos=2", "rounds=3")
    present = [set(record["silos"]) for record in RunFolder(tmp_path / "run").history()]
    assert present == [{"flip-0.20", "flip-0.50"}, set(SILOS), set(SILOS)]


@pytest.mark.parametrize("answer", [None, b"", b"nonsense", TimeoutError])
def test_without_enough_silos_the_run_ends_with_a_sentence_and_goes_on_later(
    answer: Any,
    experiment: Path,
    tmp_path: Path,
    locally: Callable[..., dict[str, Tensor]],
    same_weights: Callable[[Path, dict[str, Tensor], int], None],
) -> None:
    sites = Sites(experiment)
    seen: list[str] = []

    def meddle(site: str, task: str, good: bytes) -> Any:
        seen.append(task)
        return answer if site == "site-1" and seen.count("matched-update") > 6 else good

    sites.meddle = meddle
    with pytest.raises(SilosLostError, match=r"flip-0\.20.* of 3 silos, fewer than min_silos=3"):
        sites.train(experiment, tmp_path / "run", "algorithm=fishr-inter-geo")
    assert len(RunFolder(tmp_path / "run").history()) == 2
    again = Sites(experiment)
    again.train(experiment, tmp_path / "run", "algorithm=fishr-inter-geo")
    assert any("continues after round 2" in sentence for sentence in again.said)
    same_weights(tmp_path / "run", locally("fishr-inter-geo"), 5)


def test_a_complete_run_submitted_again_asks_nobody(experiment: Path, tmp_path: Path) -> None:
    Sites(experiment).train(experiment, tmp_path / "run", "rounds=1")
    again = Sites(experiment)
    again.train(experiment, tmp_path / "run", "rounds=1")
    assert again.sent == []


def test_a_run_of_other_settings_is_not_continued(experiment: Path, tmp_path: Path) -> None:
    Sites(experiment).train(experiment, tmp_path / "run", "rounds=1")
    with pytest.raises(CheckpointError, match=r"learning_rate was 0\.01 there and is 0\.5 here"):
        Sites(experiment).train(experiment, tmp_path / "run", "rounds=1", "learning_rate=0.5")


def test_a_gradient_that_is_not_finite_is_refused(experiment: Path, tmp_path: Path) -> None:
    sites = Sites(experiment)
    worker_of = sites.members["site-2"]
    sites.meddle = lambda site, task, answer: (
        worker_of.joined[1].silo.x.fill_(float("nan")) is None or answer
        if task == JOIN and site == "site-2"
        else answer
    )
    with pytest.raises(SilosLostError, match=r"flip-0\.50"):
        sites.train(experiment, tmp_path / "run", "algorithm=fedsgd")
    assert any("NaN" in sentence and "flip-0.50" in sentence for sentence in sites.said)


def test_a_silo_whose_answer_was_refused_does_not_come_back(experiment: Path, tmp_path: Path) -> None:
    sites = Sites(experiment)

    def meddle(site: str, task: str, answer: bytes) -> Any:
        if sites.runtime is not None:
            sites.runtime.mark_present(site)
        return b"nonsense" if (site, task) == ("site-3", "update") else answer

    sites.meddle = meddle
    sites.train(experiment, tmp_path / "run", "algorithm=fedsgd", "min_silos=2", "rounds=3")
    assert [task for task, _ in sites.sent].count("update") == 4
    for record in RunFolder(tmp_path / "run").history():
        assert set(record["silos"]) == {"flip-0.20", "flip-0.50"}


def test_two_sites_cannot_be_one_silo(experiment: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"'site-2' and 'site-1' are both silo 'flip-0\.20'"):
        Sites(experiment, ("flip-0.20", "flip-0.20", "flip-0.80")).train(experiment, tmp_path / "run")


@pytest.mark.parametrize("answer", [None, b"{}", b"[1]", b"\xff", json.dumps({"silo": 7}).encode()])
def test_a_site_that_does_not_say_which_silo_it_is_is_left_out(
    answer: bytes | None, experiment: Path, tmp_path: Path
) -> None:
    sites = Sites(experiment)
    sites.meddle = lambda site, task, good: answer if (site, task) == ("site-2", JOIN) else good
    sites.train(experiment, tmp_path / "run", "min_silos=2", "rounds=1")
    (record,) = RunFolder(tmp_path / "run").history()
    assert set(record["silos"]) == {"flip-0.20", "flip-0.80"}
