"""How much a silo counts: equally by default, by its examples if asked, and what is said of it."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from command import Refusal, fedilc
from networks import mlp
from steps import stepped_gradient
from torch import Tensor, nn
from torch.nn import functional

from fedilc import Algorithm, Federation, Silo, algorithms, train
from fedilc.aggregation import AndMask, Mean
from fedilc.config import Options
from fedilc.errors import ConfigError, FedILCWarning
from fedilc.evaluation import measure
from fedilc.federation import Program, Reply, Request
from fedilc.federation.step_sums import Examples, SiloWeights
from fedilc.gradients import Loss, ModelRunner
from fedilc.gradients.environments import lay_out
from fedilc.runtimes.local import LocalRuntime
from fedilc.storage.run_folder import RunFolder
from fedilc.training.loop import make_server

SIZES = (11, 4, 14)
LAMBDA = 3.0
MEANS = [name for name in algorithms.PAPER if algorithms.get(name).inter == "mean"]


def federation_of(generator: torch.Generator, sizes: tuple[int, ...] = SIZES) -> Federation:
    silos = []
    for e, examples in enumerate(sizes):
        x = torch.randn(examples, 6, generator=generator, dtype=torch.float64) + 0.4 * e
        silos.append(Silo(f"s{e}", x, torch.randint(0, 2, (examples,), generator=generator)))
    return Federation("f", silos)


def losses(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return functional.binary_cross_entropy_with_logits(model(x)[:, 0], y.double(), reduction="none")


def gradients(model: nn.Module, value: Tensor) -> list[Tensor]:
    return list(torch.autograd.grad(value, list(model.parameters()), retain_graph=True))


def geometric(stack: Tensor) -> Tensor:
    result = torch.zeros_like(stack[0])
    for sign in (1.0, -1.0):
        side = stack * sign > 0
        members = side.double().sum(0)
        product = stack.abs().where(side, 1.0).prod(0)
        result += sign * members / len(stack) * product ** (1 / members.clamp(min=1))
    return result


def penalty_of(model: nn.Module, federation: Federation, reduction: str) -> Tensor:
    """The plain mean (or sum) over silos of ||C_e - mean C||^2, whatever the sizes of the silos."""
    variances = []
    for silo in federation.silos:
        samples = [
            torch.cat(
                [g.flatten() for g in torch.autograd.grad(v, [*model[-1].parameters()], create_graph=True)]
            )
            for v in losses(model, silo.x, silo.y)
        ]
        variances.append(torch.stack(samples).var(0, unbiased=False))
    stack = torch.stack(variances)
    distances = (stack - stack.mean(0)).square().sum(1)
    return distances.mean() if reduction == "mean" else distances.sum()


def derived(name: str, model: nn.Module, federation: Federation, size: int, reduction: str) -> list[Tensor]:
    """sum_e n_e/n g_e + lambda grad L, by autograd."""
    total = [torch.zeros_like(p) for p in model.parameters()]
    examples = sum(len(silo) for silo in federation.silos)
    for silo in federation.silos:
        groups = [torch.arange(len(silo))]
        if algorithms.get(name).intra != "whole":
            order = lay_out(len(silo), size, 10**6, 0, 1, silo.name).order
            groups = list((torch.arange(len(silo)) if order is None else order).split(size))
        votes = [gradients(model, losses(model, silo.x[g], silo.y[g]).mean()) for g in groups]
        for place, column in enumerate(zip(*votes, strict=True)):
            stack = torch.stack(column)
            own = geometric(stack) if algorithms.get(name).intra == "geometric" else stack.mean(0)
            total[place] += len(silo) / examples * own
    if algorithms.get(name).penalty:
        fishr = gradients(model, penalty_of(model, federation, reduction))
        total = [g + LAMBDA * p for g, p in zip(total, fishr, strict=True)]
    return total


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("name", MEANS)
def test_weights_by_examples_weigh_the_gradients_and_not_the_penalty(
    name: str, reduction: str, generator: torch.Generator, tmp_path: Path
) -> None:
    federation, model = federation_of(generator), mlp().double()
    expected = derived(name, model, federation, 4, reduction)
    settings = {"penalty_weight": LAMBDA, "environment_size": 4, "fishr_reduction": reduction}
    found, result = stepped_gradient(
        federation, model, name, tmp_path / "run", silo_weights="examples", **settings
    )
    for value, right in zip(found.values(), expected, strict=True):
        torch.testing.assert_close(value, right, rtol=1e-9, atol=1e-12)
    together = torch.cat([losses(model, silo.x, silo.y) for silo in federation.silos])
    assert result.history[0]["train_loss"] == pytest.approx(together.mean().item(), rel=1e-9)
    if algorithms.get(name).penalty:
        right = penalty_of(model, federation, reduction).item()
        assert result.history[0]["penalty"] == pytest.approx(right, rel=1e-9)
    assert RunFolder(tmp_path / "run").settings()["silo_weights"] == "examples"


def test_by_examples_fedsgd_is_training_on_all_examples_together(generator: torch.Generator) -> None:
    federation, model = federation_of(generator), mlp().double()
    x, y = (torch.cat([getattr(silo, part) for silo in federation.silos]) for part in ("x", "y"))
    together = Federation("one", [Silo("all", x, y)])
    found = [
        train(given, model, "fedsgd", rounds=5, learning_rate=0.01, silo_weights="examples")
        for given in (federation, together)
    ]
    for one, other in zip(found[0].history, found[1].history, strict=True):
        assert one["train_loss"] == pytest.approx(other["train_loss"], rel=1e-9)


@pytest.mark.parametrize("name", MEANS)
def test_silos_of_one_size_count_alike_either_way(name: str, generator: torch.Generator) -> None:
    federation, model = federation_of(generator, (8, 8, 8)), mlp().double()
    by_examples, equal = (
        train(federation, model, name, rounds=3, learning_rate=0.01, environment_size=4, silo_weights=weights)
        for weights in ("examples", "equal")
    )
    for one, other in zip(by_examples.model.parameters(), equal.model.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12)


class Flaky(LocalRuntime):
    """Loses the last silo after it has given its statistics."""

    def ask(self, request: Request) -> Iterator[Reply]:
        for reply in super().ask(request):
            if request.step != "matched-update" or reply.silo != "s2":
                yield reply


def test_weights_are_over_the_silos_that_answer(generator: torch.Generator) -> None:
    federation, model = federation_of(generator), mlp().double()
    options = Options(rounds=1, learning_rate=0.01, penalty_weight=LAMBDA, min_silos=2, classifier="5")
    algorithm = Algorithm(penalty="fishr", silo_weights="examples")
    program = Program.of(algorithm, "binary", options, model)
    steps = []
    for runtime, silos in ((Flaky, federation.silos), (LocalRuntime, federation.silos[:2])):
        runner = ModelRunner(mlp().double(), Loss("binary"), "5")
        asked = runtime(Federation("f", silos), runner, program, partial(measure, runner.loss))
        server = make_server(runner.model, asked, program, options)
        server.round(1, evaluate=False)
        steps.append(server.weights)
    for name, value in steps[0].items():
        assert torch.equal(value, steps[1][name])


def test_a_mean_with_weights_is_the_mean_of_repeated_values(generator: torch.Generator) -> None:
    values = [{"w": torch.randn(3, generator=generator)} for _ in range(3)]
    mean = Mean()
    weighted, repeated = mean.zero(values[0]), mean.zero(values[0])
    for value, weight in zip(values, (3, 1, 2), strict=True):
        mean.accumulate(weighted, value, "a", weight)
        for _ in range(weight):
            mean.accumulate(repeated, value, "a")
    torch.testing.assert_close(mean.finalize(weighted).value, mean.finalize(repeated).value)


@pytest.mark.parametrize("choice", ["geometric", "fishr-inter-geo", "and-mask", AndMask()])
def test_weights_by_examples_are_refused_where_silos_are_not_averaged(choice: object) -> None:
    known = algorithms.get(choice) if isinstance(choice, str) else None
    inter = known.inter if known else choice
    with pytest.raises(
        ConfigError, match=r"silo_weights='examples' needs a mean.*counts silos equally.*fedsgd"
    ):
        Algorithm(inter=inter, silo_weights="examples")


def test_the_command_refuses_them_before_anything_is_trained(refusal: Refusal, tmp_path: Path) -> None:
    said = refusal("run", "-a", "geometric", "--set", "silo_weights=examples", "--out", tmp_path / "run")
    assert "inter='geometric' is not a mean" in said
    words = ("--set", "algorithm=fedsgd", "--set", "silo_weights=examples", "--out", tmp_path / "run")
    assert "inter='geometric' is not a mean" in refusal("run", "-a", "all", *words)
    assert not (tmp_path / "run").exists()
    assert "silo_weights='exampels' is not valid" in refusal("run", "--set", "silo_weights=exampels")


def test_a_weight_for_each_silo_weighs_its_gradient(generator: torch.Generator, tmp_path: Path) -> None:
    federation, model = federation_of(generator), mlp().double()
    given = {"s0": 2, "s1": 0.5, "s2": 1.5}
    found, result = stepped_gradient(federation, model, "fedsgd", tmp_path, silo_weights=given)
    means = [losses(model, silo.x, silo.y).mean() for silo in federation.silos]
    total = sum(weight * mean for weight, mean in zip(given.values(), means, strict=True)) / 4
    for value, right in zip(found.values(), gradients(model, total), strict=True):
        torch.testing.assert_close(value, right, rtol=1e-9, atol=1e-12)
    assert result.history[0]["train_loss"] == pytest.approx(total.item())


@pytest.mark.parametrize(
    ("weights", "said"),
    [
        ({"s0": 1, "s1": 1, "s9": 1}, r"none is given for it: 's2'; the silos are s0, s1, s2"),
        ({"s0": 1, "s1": 1, "s2": 1, "s9": 1}, "there is no such silo: 's9'"),
        (
            {"s0": 1, "s1": 1, "s2": 0},
            "is not valid: give one of equal, .* or a number above 0 for each silo",
        ),
        ({}, "is not valid: give one of equal"),
    ],
)
def test_weights_that_do_not_fit_the_silos_are_refused(
    weights: dict[str, float], said: str, generator: torch.Generator
) -> None:
    with pytest.raises(ConfigError, match=said):
        train(
            federation_of(generator),
            mlp().double(),
            "fedsgd",
            rounds=1,
            learning_rate=0.1,
            silo_weights=weights,
        )


def test_weights_by_name_are_refused_for_a_geometric_mean(generator: torch.Generator) -> None:
    given = {"s0": 1.0, "s1": 1.0, "s2": 2.0}
    with pytest.raises(
        ConfigError, match=r"silo_weights=\{'s0'.*needs a mean across silos.*counts silos equally"
    ):
        train(federation_of(generator), mlp().double(), rounds=1, learning_rate=0.1, silo_weights=given)


def write_silo(path: Path, examples: int, mislabelled: bool, random: np.random.Generator) -> None:
    x = random.normal(size=(examples, 2))
    y = (x[:, 0] > 0) != mislabelled
    rows = [f"{a:.4f},{b:.4f},{int(label)}" for (a, b), label in zip(x, y, strict=True)]
    path.write_text("\n".join(["a,b,ill", *rows]) + "\n")


@pytest.fixture
def unlike(tmp_path: Path) -> Path:
    """A large silo, and a small one whose labels are wrong."""
    random = np.random.default_rng(0)
    write_silo(tmp_path / "city.csv", 400, mislabelled=False, random=random)
    write_silo(tmp_path / "town.csv", 6, mislabelled=True, random=random)
    write_silo(tmp_path / "elsewhere.csv", 300, mislabelled=False, random=random)
    toml = """
        rounds = 60
        learning_rate = 0.02
        [data]
        source = "files"
        label = "ill"
        silos = { city = "city.csv", town = "town.csv" }
        test = "elsewhere.csv"
        validation_share = 0.0
        [model]
        hidden = [4]
    """
    (tmp_path / "unlike.toml").write_text(toml)
    return tmp_path / "unlike.toml"


def test_a_run_over_silos_of_unlike_sizes_says_that_they_count_equally(unlike: Path) -> None:
    said = "'town' has 6 training examples and 'city' has 400, and each silo counts equally; set silo_weights"
    out = unlike.parent / "equal"
    with pytest.warns(FedILCWarning, match=said):
        fedilc("run", unlike, "-a", "fedsgd", "--out", out)
    fedilc(
        "run", unlike, "-a", "fedsgd", "--set", "silo_weights=examples", "--out", unlike.parent / "examples"
    )
    equal, examples = (
        RunFolder(unlike.parent / name).history()[-1]["test_accuracy"] for name in ("equal", "examples")
    )
    assert examples > 0.9
    assert examples > equal + 0.05


def test_the_note_says_what_a_geometric_mean_can_and_cannot_do(unlike: Path) -> None:
    with pytest.warns(
        FedILCWarning, match=r"counts equally; an algorithm that takes a mean.*leave very small"
    ):
        fedilc("run", unlike, "-a", "geometric", "--rounds", 1, "--out", unlike.parent / "run")


def test_the_note_begins_at_ten_times(generator: torch.Generator) -> None:
    settings = {"algorithm": "fedsgd", "rounds": 1, "learning_rate": 0.1}
    train(federation_of(generator, (3, 29)), mlp().double(), **settings)
    with pytest.warns(FedILCWarning, match="counts equally"):
        train(federation_of(generator, (3, 30)), mlp().double(), **settings)


def test_the_loss_is_a_mean_with_the_weights_of_the_updates() -> None:
    answers = {"a": {"loss": 1.0, "examples": 30}, "b": {"loss": 4.0, "examples": 10}}
    assert SiloWeights().mean_loss(answers) == 2.5
    assert Examples().mean_loss(answers) == 1.75
