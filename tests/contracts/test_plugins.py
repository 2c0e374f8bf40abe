"""Parts, a loss, a metric and a data source of another package: one file, and every door is open to them."""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from networks import mlp
from torch import nn

import fedilc as package
from fedilc import Algorithm, EarlyStopping, Federation, Silo, train
from fedilc.algorithms.loss_registry import LOSSES
from fedilc.algorithms.metric_registry import METRICS
from fedilc.algorithms.parts import AGGREGATORS, OPTIMIZERS, PENALTIES
from fedilc.config import read_experiment
from fedilc.config.experiment import SOURCES
from fedilc.errors import CheckpointError, ConfigError, DataError, FedILCWarning
from fedilc.report.run_tables import run_table
from fedilc.report.tables import markdown

PARTS = '''
from typing import Annotated

import torch
from pydantic import Field

from fedilc import Federation, Silo, aggregation, config, penalties
from fedilc.data.sources import Source
from fedilc.evaluation import metrics
from fedilc.gradients import losses
from fedilc import optimizers


class Scaled(penalties.VREx):
    """Match mean losses, alpha times."""

    def __init__(self, alpha: Annotated[float, Field(gt=0)] = 1.0) -> None:
        self.alpha = alpha

    def numbers(self, chunk):
        return self.alpha * super().numbers(chunk)


class Shrunk(aggregation.Mean):
    """The mean, shrunk."""

    def __init__(self, shrink: aggregation.base.Share = 1.0) -> None:
        self.shrink = shrink

    def finish(self, count, sums):
        value, measured = super().finish(count, sums)
        return self.shrink * value, measured


class PowerSGD(torch.optim.Optimizer):
    """Gradient descent with gradients to a power."""

    def __init__(self, params, lr=0.1, weight_decay=0.0, power: float = 1.0) -> None:
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay, "power": power})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                p.sub_(group["lr"] * p.grad.sign() * p.grad.abs() ** group["power"])


def tilted(logits, y):
    """Cross-entropy in which positives count three times."""
    weights = 1 + 2 * y
    return torch.nn.functional.binary_cross_entropy_with_logits(logits, y, weights, reduction="none")


def specificity(logits, y):
    """Share of negatives that are found."""
    return (logits[y < 0.5] <= 0).double().mean()


class Waves(Source):
    """Two silos of noise."""

    source: str = "waves"
    examples: int = Field(20, ge=2)

    def build(self, seed, folder):
        generator = torch.Generator().manual_seed(seed)
        silos = []
        for name in ("north", "south"):
            x = torch.randn(2 * self.examples, 3, generator=generator)
            y = x[:, 0] > 0
            silos.append(Silo(name, *(part[: self.examples] for part in (x, y)),
                              *(part[self.examples :] for part in (x, y))))
        return Federation("waves", silos)


losses.register("tilted", tilted)
metrics.register("specificity", specificity, higher_is_better=True, heading="TNR")
config.register_source("waves", Waves)
penalties.register("scaled", Scaled)
aggregation.register("shrunk", Shrunk)
optimizers.register("power-sgd", PowerSGD)
'''
TOML = """
algorithm = "fedsgd"
penalty = "scaled"
alpha = 3.0
inter = "shrunk"
shrink = 0.5
optimizer = "power-sgd"
power = 2.0
rounds = 2
learning_rate = 0.5
penalty_weight = 2.0
loss = "tilted"
metrics = ["specificity"]

[data]
source = "waves"
examples = 30

[model]
hidden = [4]
"""
SILOS = ("north", "south")


def installed(folder: Path) -> Path:
    """A package with these parts and its entry point, as pip would leave it in a folder."""
    about = folder / "own_parts-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: own-parts\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[fedilc.plugins]\nown = own_parts\n")
    (folder / "own_parts.py").write_text(PARTS)
    (folder / "own.toml").write_text(TOML)
    return folder


@pytest.fixture
def parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The parts in this process, for one test."""
    monkeypatch.syspath_prepend(installed(tmp_path))
    importlib.import_module("own_parts")
    yield
    del sys.modules["own_parts"]
    for registry, name in (
        *((PENALTIES, "scaled"), (AGGREGATORS, "shrunk"), (OPTIMIZERS, "power-sgd")),
        *((LOSSES, "tilted"), (METRICS, "specificity"), (SOURCES, "waves")),
    ):
        registry.unregister(name)


@pytest.fixture
def federation(generator: torch.Generator) -> Federation:
    x = torch.randn(12, 6, generator=generator)
    return Federation("f", [Silo("a", x, x[:, 0] > 0), Silo("b", x + 1, x[:, 1] > 0)])


def weights(federation: Federation, algorithm: str | Algorithm = "fedsgd", **options: Any) -> torch.Tensor:
    settings = {"rounds": 3, "learning_rate": 0.5, "optimizer": "sgd"} | options
    torch.manual_seed(0)
    found = train(federation, mlp().double(), algorithm, **settings)
    return torch.cat([p.flatten() for p in found.model.parameters()])


@pytest.mark.usefixtures("parts")
@pytest.mark.parametrize(
    ("ours", "same"),
    [
        ({"penalty": "scaled", "alpha": 3.0}, {"penalty": "vrex", "penalty_weight": 9.0}),
        ({"inter": "shrunk", "shrink": 0.5}, {"learning_rate": 0.25}),
        ({"optimizer": "power-sgd", "power": 1.0}, {}),
        ({"optimizer": "power-sgd", "optimizer_options": {"power": 1.0}}, {}),
    ],
    ids=["penalty", "aggregation", "optimiser", "optimiser, nested"],
)
def test_train_gives_an_option_to_the_part_that_declares_it(
    federation: Federation, ours: dict[str, Any], same: dict[str, Any]
) -> None:
    torch.testing.assert_close(weights(federation, **ours), weights(federation, **same))
    option = list(ours)[1]
    other = {"power": 0.7} if option == "optimizer_options" else 0.7
    assert not torch.allclose(weights(federation, **ours), weights(federation, **ours | {option: other}))


@pytest.mark.usefixtures("parts")
def test_an_object_has_its_own_options(federation: Federation) -> None:
    scaled = PENALTIES.build("scaled", alpha=3.0)
    by_object = weights(federation, Algorithm(penalty=scaled))
    assert torch.equal(by_object, weights(federation, Algorithm(penalty="scaled"), alpha=3.0))


@pytest.mark.usefixtures("parts")
def test_toml_and_changes_reach_the_part_and_mistakes_are_named(tmp_path: Path) -> None:
    file = str(tmp_path / "own.toml")
    assert read_experiment(file)[0].part_options == {"alpha": 3.0, "shrink": 0.5, "power": 2.0}
    assert read_experiment(file, ["alpha=4"])[0].options()["alpha"] == 4
    for change, sentence in {
        "alpha=0": "alpha=0 is not valid: input should be greater than 0",
        "shrink=2": "shrink=2 is not valid: input should be less than or equal to 1",
        "alhpa=2": "the key 'alhpa' is unknown; did you mean 'alpha'",
        "metrics=['specificty']": "metric 'specificty' is unknown; did you mean 'specificity'",
        "loss=tiltd": "loss 'tiltd' is unknown; did you mean 'tilted'",
        "data.source=wave": "data.source='wave' is unknown; did you mean 'waves'",
        "data.examples=1": "data.examples=1 is not valid: input should be greater than or equal to 2",
    }.items():
        with pytest.raises(ConfigError, match=sentence):
            read_experiment(file, [change])


def test_an_option_is_unknown_if_the_part_is_not_installed(federation: Federation) -> None:
    with pytest.raises(ConfigError, match="the key 'shrink' is unknown"):
        weights(federation, shrink=0.5)


@pytest.mark.usefixtures("parts")
def test_an_option_of_a_part_that_the_algorithm_lacks_changes_nothing_and_is_noted(
    federation: Federation,
) -> None:
    with pytest.warns(
        FedILCWarning, match=r"alpha=3.0 has no effect in fedsgd: none of its parts has this option"
    ):
        weights(federation, alpha=3.0)


@pytest.mark.usefixtures("parts")
def test_the_run_folder_records_it_and_a_resumed_run_must_have_the_same(
    federation: Federation, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    first = weights(federation, penalty="scaled", alpha=3.0, out=out)
    facts = json.loads((out / "run.json").read_text())
    assert facts["alpha"] == 3.0
    assert facts["choices"]["penalty"] == {"name": "scaled", "alpha": 3.0}
    again = {"penalty": "scaled", "rounds": 4, "out": out, "resume": True}
    with pytest.raises(CheckpointError, match=r"choices\.penalty\.alpha was 3.0 there and is 2.0 here"):
        weights(federation, alpha=2.0, **again)
    assert not torch.equal(weights(federation, alpha=3.0, **again), first)
    assert "| alpha | 3.0 |" in (out / "model-card.md").read_text()


@pytest.mark.usefixtures("parts")
def test_a_loss_is_chosen_with_the_data_or_for_the_run_and_recorded(
    federation: Federation, tmp_path: Path
) -> None:
    own = Federation("f", federation.silos, loss="tilted")
    found = weights(own, out=tmp_path / "run")
    assert torch.equal(found, weights(federation, loss="tilted"))
    assert not torch.allclose(found, weights(federation))
    assert json.loads((tmp_path / "run" / "run.json").read_text())["loss"] == "tilted"
    again = {"rounds": 4, "out": tmp_path / "run", "resume": True}
    with pytest.raises(CheckpointError, match="loss was 'tilted' there and is 'binary' here"):
        weights(federation, **again)
    assert not torch.equal(weights(federation, loss="tilted", **again), found)


@pytest.mark.usefixtures("parts")
def test_a_metric_is_in_the_history_the_tables_and_the_report_and_can_stop_a_run(
    generator: torch.Generator, tmp_path: Path
) -> None:
    every = torch.randn(5, 20, 6, generator=generator)
    pairs = [(part, part[:, 0] + part[:, 1] > 0) for part in every]
    silos = [Silo("a", *pairs[0], *pairs[1]), Silo("b", *pairs[2], *pairs[3])]
    x, y = pairs[4]
    federation = Federation("f", silos, x_test=x, y_test=y)
    given = {"rounds": 4, "learning_rate": 0.5, "metrics": ["specificity"]}
    stopper = EarlyStopping(2, monitor="validation_specificity", min_delta=1.0)
    assert stopper.mode == "max"
    torch.manual_seed(0)
    found = train(federation, mlp(), "fedsgd", **given, callbacks=[stopper], out=tmp_path / "run")
    last = found.history[-1]
    assert last["round"] == 3
    negatives = ~y
    with torch.no_grad():
        called = found.model(x)[:, 0] <= 0
    assert last["test_specificity"] == pytest.approx((called & negatives).sum() / negatives.sum())
    by_silo = [numbers["validation_specificity"] for numbers in last["silos"].values()]
    assert last["validation_specificity"] == pytest.approx(sum(by_silo) / 2)
    assert json.loads((tmp_path / "run" / "run.json").read_text())["metrics"] == ["specificity"]
    text = markdown(run_table("run", found.history))
    assert "| OOD TNR |" in text
    assert "| validation TNR |" in text
    again = {"rounds": 5, "learning_rate": 0.5, "out": tmp_path / "run", "resume": True}
    torch.manual_seed(0)
    network = mlp()
    with pytest.raises(CheckpointError, match=r"metrics was \['specificity'\] there and is None here"):
        train(federation, network, "fedsgd", **again)
    resumed = train(federation, network, "fedsgd", metrics=["specificity"], **again)
    assert resumed.history[-1]["test_specificity"] is not None


@pytest.mark.usefixtures("parts")
def test_a_metric_of_another_task_or_with_a_mistake_is_named(federation: Federation) -> None:
    numbers = Federation("f", federation.silos, loss="regression")
    with pytest.raises(ConfigError, match="'specificity' is for binary labels, not for regression labels"):
        weights(numbers, metrics=["specificity"])
    METRICS.register("broken", replace(METRICS.get("specificity"), function=lambda logits, _: logits[:, 7]))
    try:
        silo = federation.silos[0]
        validated = Federation("f", [Silo("a", silo.x, silo.y, silo.x + 0.5, silo.y)])
        with pytest.raises(ConfigError, match="the metric 'broken' fails for 12 examples: IndexError"):
            weights(validated, metrics=["broken"])
    finally:
        METRICS.unregister("broken")


def test_a_loss_a_metric_and_a_source_are_unknown_if_they_are_not_installed(
    federation: Federation, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match="loss 'tilted' is unknown"):
        weights(federation, loss="tilted")
    with pytest.raises(ConfigError, match="metric 'specificity' is unknown"):
        weights(federation, metrics=["specificity"])
    with pytest.raises(DataError, match="loss='tilted' is unknown"):
        Federation("f", federation.silos, loss="tilted")
    with pytest.raises(ConfigError, match=r"data\.source='waves' is unknown"):
        read_experiment(str(installed(tmp_path) / "own.toml"))


@pytest.mark.usefixtures("parts")
def test_a_part_that_loses_an_option_says_how_to_keep_it(federation: Federation, tmp_path: Path) -> None:
    class Forgetful(PENALTIES.get("scaled")):
        def __init__(self, alpha: float = 1.0, beta: float = 1.0) -> None:
            super().__init__(alpha)

    PENALTIES.register("forgetful", Forgetful)
    try:
        with pytest.raises(ConfigError, match=r"does not keep its option 'beta'; set self\.beta"):
            weights(federation, Algorithm(penalty="forgetful"), out=tmp_path / "run")
    finally:
        PENALTIES.unregister("forgetful")


@pytest.mark.usefixtures("parts")
def test_a_name_is_registered_once() -> None:
    for register, name in ((PENALTIES.register, "fishr"), (AGGREGATORS.register, "shrunk")):
        with pytest.raises(ConfigError, match=f"{name!r}; choose another name"):
            register(name, nn.Module)
    with pytest.raises(ConfigError, match="there is already a source 'tables'; choose another name"):
        SOURCES.register("tables", SOURCES.get("waves"))
    with pytest.raises(TypeError, match=r"give a subclass of fedilc\.data\.sources\.Source"):
        SOURCES.register("seven", int)
    with pytest.raises(TypeError, match="give the class of the penalty"):
        PENALTIES.register("seven", 7)


def command(folder: Path, *words: object) -> subprocess.Popen[str]:
    source = Path(package.__file__).parents[1]
    environment = os.environ | {"PYTHONPATH": f"{folder}{os.pathsep}{source}", "OMP_NUM_THREADS": "1"}
    line = [sys.executable, "-m", "fedilc", *map(str, words)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    return subprocess.Popen(line, env=environment, text=True, cwd=folder, **pipes)


def finished(process: subprocess.Popen[str]) -> str:
    said, _ = process.communicate(timeout=300)
    assert process.returncode == 0, said
    return said


def digest(run: Path) -> str:
    return hashlib.sha256((run / "history.jsonl").read_bytes()).hexdigest()


@pytest.mark.slow
def test_commands_find_an_installed_package_and_silos_train_with_their_own_copy(tmp_path: Path) -> None:
    folder = installed(tmp_path)
    said = finished(command(folder, "list"))
    for summary in (
        *("Match mean losses, alpha times", "positives count three times", "Two silos of noise"),
        "negatives that are found; higher is better",
    ):
        assert summary in said
    assert "examples = 20" in finished(command(folder, "list", "waves"))
    assert "alpha = 1.0" in finished(command(folder, "list", "scaled"))
    finished(command(folder, "run", "own.toml", "--set", "alpha=2.5", "--out", "local"))
    coordinator = command(
        folder,
        *("serve", "own.toml", "--set", "alpha=2.5", "--out", "served", "--insecure", "--port", 0),
    )
    assert coordinator.stdout is not None
    url = next(line.split()[3].rstrip(",") for line in coordinator.stdout if "silos join at" in line)
    joined = [command(folder, "join", url, "--silo", silo, "--experiment", "own.toml") for silo in SILOS]
    for process in (*joined, coordinator):
        finished(process)
    assert digest(folder / "local") == digest(folder / "served")
    facts = json.loads((folder / "served" / "run.json").read_text())
    assert (facts["loss"], facts["federation"]) == ("tilted", "waves")
    records = (folder / "served" / "history.jsonl").read_text().splitlines()
    assert 0 <= json.loads(records[-1])["validation_specificity"] <= 1
    assert "TNR" in finished(command(folder, "report", "served"))
    page = folder / "report.html"
    finished(command(folder, "report", "served", "local", "-o", page))
    assert "validation TNR" in page.read_text()
    assert facts["choices"]["penalty"] == {"name": "scaled", "alpha": 2.5}
