"""The validator lists every problem at once, each with its fix."""

from __future__ import annotations

import pytest
import torch
from networks import redraw
from steps import stepped_gradient
from torch import Tensor, nn

from fedilc import Federation, Silo, algorithms, train
from fedilc.errors import ModelError
from fedilc.gradients import model_problems


def test_every_module_that_cannot_be_supported_is_listed_with_its_fix() -> None:
    model = nn.Sequential(
        nn.Conv2d(3, 12, 3),
        nn.BatchNorm2d(12),
        nn.InstanceNorm2d(12, track_running_stats=True),
        nn.Embedding(5, 3, max_norm=1.0),
        nn.EmbeddingBag(5, 3, sparse=True, mode="sum"),
        nn.LSTM(3, 3),
        nn.LazyLinear(4),
    )
    found = model_problems(model, environments=True)
    fixes = [
        "GroupNorm(4, 12)",
        "track_running_stats=False",
        "max_norm=None",
        "sparse=False",
        "nn.Linear",
        "call",
    ]
    assert len(found) == len(fixes)
    for number, (problem, fix) in enumerate(zip(found, fixes, strict=True), 1):
        assert problem.startswith(f"'{number}' (")
        assert fix in problem


def test_recurrent_layers_are_a_problem_only_for_environments() -> None:
    assert model_problems(nn.LSTM(3, 3)) == []


def test_a_model_without_trainable_parameters_is_refused() -> None:
    assert "no trainable parameter" in model_problems(nn.Linear(2, 1).requires_grad_(False))[0]


@pytest.mark.parametrize("algorithm", ["fedsgd", "fishr-intra-geo"])
def test_train_refuses_batch_normalisation_and_offers_group_normalisation(algorithm: str) -> None:
    federation = Federation("f", [Silo("a", torch.zeros(3, 4), [0, 1, 0])])
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 1))
    with pytest.raises(ModelError, match=r"'1' \(BatchNorm1d\).*nn.GroupNorm\(8, 8\)"):
        train(federation, model, algorithm, rounds=1, learning_rate=0.1, environment_size=1)


def federation_of(generator: torch.Generator, classes: int = 2) -> Federation:
    silos = []
    for e, examples in enumerate((9, 8)):
        x = torch.randn(examples, 6, generator=generator, dtype=torch.float64) + 0.3 * e
        silos.append(Silo(f"s{e}", x, torch.randint(0, classes, (examples,), generator=generator)))
    return Federation("f", silos, loss="binary" if classes == 2 else "multiclass")


def frozen(norm: nn.Module, generator: torch.Generator) -> nn.Module:
    """Batch normalisation with statistics and weights of its own, as pretraining leaves it."""
    norm = norm.double()
    for tensor in (norm.running_mean, norm.weight.data, norm.bias.data):
        tensor.copy_(torch.randn(tensor.shape, generator=generator, dtype=torch.float64))
    norm.running_var.copy_(0.5 + torch.rand(norm.running_var.shape, generator=generator, dtype=torch.float64))
    return norm.eval().requires_grad_(False)


class FixedAffine(nn.Module):
    """What frozen batch normalisation computes, written out."""

    def __init__(self, norm: nn.BatchNorm1d) -> None:
        super().__init__()
        scale = norm.weight / (norm.running_var + norm.eps).sqrt()
        self.register_buffer("scale", scale.detach().clone())
        self.register_buffer("shift", (norm.bias - norm.running_mean * scale).detach().clone())

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale + self.shift


@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize("name", algorithms.PAPER)
def test_frozen_batch_normalisation_is_a_fixed_affine_map_for_every_algorithm(
    name: str, size: int, generator: torch.Generator, tmp_path_factory: pytest.TempPathFactory
) -> None:
    norm = frozen(nn.BatchNorm1d(5), generator)
    before = {key: value.clone() for key, value in norm.state_dict().items()}
    federation = federation_of(generator)
    steps = []
    for middle in (norm, FixedAffine(norm)):
        model = nn.Sequential(nn.Linear(6, 5), middle, nn.Tanh(), nn.Linear(5, 1)).double()
        with torch.no_grad():
            for layer in (model[0], model[3]):
                redraw(layer)
        out = tmp_path_factory.mktemp("run") / "run"
        found, _ = stepped_gradient(federation, model, name, out, environment_size=size, penalty_weight=3.0)
        steps.append(found)
        assert all(torch.equal(before[key], value) for key, value in norm.state_dict().items())
    for key, value in steps[0].items():
        torch.testing.assert_close(value, steps[1][key], rtol=1e-9, atol=1e-13)


def test_frozen_batch_normalisation_stays_frozen_through_rounds_and_evaluations(
    generator: torch.Generator,
) -> None:
    model = nn.Sequential(nn.Linear(6, 5), frozen(nn.BatchNorm1d(5), generator), nn.Linear(5, 1)).double()
    model.train()
    model[1].eval()
    x = torch.randn(8, 6, generator=generator, dtype=torch.float64)
    silo = Silo("a", x, [0, 1] * 4, x + 1, [0, 1] * 4)
    result = train(Federation("f", [silo], x - 1, [0, 1] * 4), model, "fedcurv", rounds=3, learning_rate=0.1)
    for key, value in model[1].state_dict().items():
        assert torch.equal(result.model[1].state_dict()[key], value)
    assert (model.training, model[1].training) == (True, False)


@pytest.mark.parametrize(
    "half",
    [
        nn.BatchNorm1d(5).eval(),
        nn.BatchNorm1d(5).requires_grad_(False),
        nn.BatchNorm1d(5, track_running_stats=False).requires_grad_(False).eval(),
    ],
)
def test_batch_normalisation_that_is_half_frozen_is_refused_with_what_is_missing(
    half: nn.BatchNorm1d, generator: torch.Generator
) -> None:
    model = nn.Sequential(nn.Linear(6, 5), half, nn.Linear(5, 1)).double()
    with pytest.raises(ModelError, match=r"use nn.GroupNorm\(1, 5\) instead") as refused:
        train(federation_of(generator), model, "fedsgd", rounds=1, learning_rate=0.1)
    freezing = r".eval() and .requires_grad_(False)" in str(refused.value)
    assert freezing == (half.running_mean is not None)
