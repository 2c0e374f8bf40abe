"""Gradients of environments by rules and vmap, against one backward pass for each environment."""

from __future__ import annotations

import pytest
import torch
from computations import computation_of
from networks import Awkward, Convolutions, TransformerBlock, mlp, paper_cnn, redraw
from torch import Tensor, nn
from torch.nn import functional

from fedilc.aggregation import AGGREGATORS, Mean, WeightedGeometricMean
from fedilc.data import Silo
from fedilc.errors import ModelError
from fedilc.gradients import Loss, ModelRunner, SiloComputation, register_rule
from fedilc.gradients.per_example import RULES

CASES = {
    "mlp": (lambda: mlp(), (6,), "binary"),
    "mlp of ten classes": (lambda: mlp(10), (6,), "multiclass"),
    "cnn of the paper": (lambda: paper_cnn(), (3, 16, 16), "multiclass"),
    "transformer block": (lambda: redraw(TransformerBlock()), (7,), "binary"),
    "convolutions": (lambda: redraw(Convolutions()), (2, 7, 6), "binary"),
    "layers without a rule": (lambda: redraw(Awkward()), (6,), "binary"),
}
every_case = pytest.mark.parametrize("case", CASES)


def make(case: str, examples: int, generator: torch.Generator) -> tuple[nn.Module, Silo, str]:
    build, shape, loss = CASES[case]
    if case == "transformer block":
        x = torch.randint(0, 11, (examples, *shape), generator=generator)
        x[0, :3] = 5
    else:
        x = torch.randn(examples, *shape, generator=generator)
    classes = 2 if loss == "binary" else 10
    return build(), Silo("s", x, torch.randint(0, classes, (examples,), generator=generator)), loss


def in_float64(model: nn.Module, silo: Silo) -> tuple[nn.Module, Silo]:
    x = silo.x.double() if silo.x.is_floating_point() else silo.x
    return model.double(), Silo("s", x, silo.y)


def plain_loss(model: nn.Module, x: Tensor, y: Tensor, loss: str) -> Tensor:
    if loss == "binary":
        return functional.binary_cross_entropy_with_logits(model(x)[:, 0], y.to(model(x).dtype))
    return functional.cross_entropy(model(x), y)


def oracle(model: nn.Module, silo: Silo, loss: str, groups: list[Tensor]) -> dict[str, Tensor]:
    """One backward pass for each environment, then the weighted geometric mean in float64 by hand."""
    rows: dict[str, list[Tensor]] = {name: [] for name, _ in model.named_parameters()}
    for group in groups:
        model.zero_grad()
        plain_loss(model, silo.x[group], silo.y[group], loss).backward()
        for name, parameter in model.named_parameters():
            gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            rows[name].append(gradient.detach().double().clone())
    result = {}
    for name, values in rows.items():
        stack = torch.stack(values)
        mean = torch.zeros_like(stack[0])
        for sign in (1, -1):
            side = stack * sign > 0
            members = side.double().sum(0)
            logs = stack.abs().log().where(side, 0.0).sum(0)
            mean += sign * members / len(stack) * torch.exp(logs / members.clamp(min=1))
        result[name] = mean
    return result


def stream(
    model: nn.Module, silo: Silo, loss: str, size: int, chunk_bytes: int = 1 << 28
) -> tuple[dict[str, Tensor], SiloComputation, float]:
    runner = ModelRunner(model, Loss(loss), chunk_bytes=chunk_bytes)
    computation = computation_of(runner, silo, size, WeightedGeometricMean())
    computed = computation.gradients(1)
    return computed.gradient, computation, computed.loss


def assert_close_in_norm(found: dict[str, Tensor], expected: dict[str, Tensor], tolerance: float) -> None:
    assert set(found) == set(expected)
    for name, tensor in expected.items():
        difference = (found[name].double() - tensor).norm()
        assert float(difference) <= tolerance * float(tensor.norm()) + 1e-12, name


@every_case
def test_single_examples_equal_one_backward_each(case: str, generator: torch.Generator) -> None:
    """In float32, with the oracle's own forward of one example at a time.

    torch's convolutions round differently in a batch, and where an example's gradient is a rounding
    error away from zero its sign, and with it the weighted geometric mean of that coordinate, may
    turn: no float32 computation can be held to 1e-4 across batch sizes. In float64 it is, below.
    """
    model, silo, loss = make(case, 12, generator)
    chunk_bytes = 1 if "cnn" in case else 1 << 28
    found, _, _ = stream(model, silo, loss, 1, chunk_bytes)
    groups = [torch.tensor([row]) for row in range(12)]
    assert_close_in_norm(found, oracle(model, silo, loss, groups), 1e-4)


@every_case
def test_single_examples_are_exact_in_float64(case: str, generator: torch.Generator) -> None:
    model, silo, loss = make(case, 12, generator)
    model, silo = in_float64(model, silo)
    found, _, _ = stream(model, silo, loss, 1)
    groups = [torch.tensor([row]) for row in range(12)]
    assert_close_in_norm(found, oracle(model, silo, loss, groups), 1e-9)


@every_case
@pytest.mark.parametrize("size", [3, 5])
def test_mini_batches_equal_one_backward_each(case: str, size: int, generator: torch.Generator) -> None:
    model, silo, loss = make(case, 12, generator)
    found, computation, _ = stream(model, silo, loss, size)
    order = computation.layout(1).order
    assert order is not None
    assert_close_in_norm(found, oracle(model, silo, loss, list(order.split(size))), 1e-4)


@every_case
@pytest.mark.parametrize("size", [1, 5])
def test_chunks_do_not_change_the_result(case: str, size: int, generator: torch.Generator) -> None:
    model, silo, loss = make(case, 12, generator)
    model, silo = in_float64(model, silo)
    whole, _, whole_loss = stream(model, silo, loss, size)
    pieces, computation, loss_of_pieces = stream(model, silo, loss, size, chunk_bytes=1)
    assert len(computation.layout(1).chunks) == 12
    assert_close_in_norm(pieces, {name: tensor.double() for name, tensor in whole.items()}, 1e-9)
    assert loss_of_pieces == pytest.approx(whole_loss, rel=1e-9)


def test_what_has_no_rule_goes_through_vmap_and_the_rest_does_not(generator: torch.Generator) -> None:
    model, silo, loss = make("layers without a rule", 4, generator)
    runner = ModelRunner(model, Loss(loss))
    plan = runner.plan(runner.inputs(silo.x), runner.labels(silo.y))
    assert set(plan.tapped) == {"classifier"}
    assert plan.fallback == ["scale.factor", "twice.weight", "twice.bias", "tied.weight", "tied.bias"]


def test_a_transformer_uses_rules_for_all_but_the_attention(generator: torch.Generator) -> None:
    model, silo, loss = make("transformer block", 4, generator)
    runner = ModelRunner(model, Loss(loss))
    plan = runner.plan(runner.inputs(silo.x), runner.labels(silo.y))
    assert all("self_attn" in name for name in plan.fallback)
    assert {"table", "norm", "classifier", "block.linear1", "block.norm1"} <= set(plan.tapped)


def test_frozen_parameters_are_left_out(generator: torch.Generator) -> None:
    model, silo, loss = make("mlp", 6, generator)
    model[1].weight.requires_grad_(False)
    found, _, _ = stream(model, silo, loss, 1)
    assert "1.weight" not in found
    groups = [torch.tensor([row]) for row in range(6)]
    expected = oracle(model, silo, loss, groups)
    expected.pop("1.weight")
    assert_close_in_norm(found, expected, 1e-4)


def test_other_aggregations_of_single_examples_work_too(generator: torch.Generator) -> None:
    model, silo, loss = make("mlp", 10, generator)
    runner = ModelRunner(model, Loss(loss))
    for name in ("mean", "and-mask", "absolute-geometric"):
        aggregator = AGGREGATORS.build(name)
        found = computation_of(runner, silo, 1, aggregator).gradients(1).gradient
        if isinstance(aggregator, Mean):
            model.zero_grad()
            plain_loss(model, silo.x, silo.y, loss).backward()
            expected = {n: p.grad.double() for n, p in model.named_parameters() if p.grad is not None}
            assert_close_in_norm(found, expected, 1e-5)
        assert all(bool(torch.isfinite(tensor).all()) for tensor in found.values())


def test_a_rule_of_ones_own_is_used(generator: torch.Generator) -> None:
    from networks import Scale

    model, silo, loss = make("layers without a rule", 5, generator)
    register_rule(Scale)(lambda _, a, d: {"factor": (a * d).sum(1)})
    try:
        runner = ModelRunner(model, Loss(loss))
        assert "scale" in runner.plan(runner.inputs(silo.x), runner.labels(silo.y)).tapped
        found, _, _ = stream(model, silo, loss, 1)
    finally:
        del RULES[Scale]
    groups = [torch.tensor([row]) for row in range(5)]
    assert_close_in_norm(found, oracle(model, silo, loss, groups), 1e-4)


def test_a_wrong_rule_is_noticed_and_not_used(generator: torch.Generator) -> None:
    from networks import Scale

    model, silo, loss = make("layers without a rule", 5, generator)
    register_rule(Scale)(lambda _, a, d: {"factor": 2 * (a * d).sum(1)})
    try:
        found, _, _ = stream(model, silo, loss, 1)
    finally:
        del RULES[Scale]
    groups = [torch.tensor([row]) for row in range(5)]
    assert_close_in_norm(found, oracle(model, silo, loss, groups), 1e-4)


class Spoils(nn.Module):
    """Changes a layer's input in place after the layer has used it."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 6)
        self.second = nn.Linear(6, 6)
        self.classifier = nn.Linear(6, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        y = self.second(x)
        x.detach().mul_(3.0)
        return self.classifier(y)


def test_an_input_changed_in_place_is_an_error_that_names_the_layer(generator: torch.Generator) -> None:
    silo = Silo("s", torch.randn(4, 6, generator=generator), torch.tensor([0, 1, 0, 1]))
    model = redraw(Spoils())
    with pytest.raises((ModelError, RuntimeError), match=r"second|modified by an inplace"):
        stream(model, silo, "binary", 1)


class DataDependent(nn.Module):
    """Cannot be vmapped: its control flow depends on the data."""

    def __init__(self) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.ones(6))
        self.classifier = nn.Linear(6, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = x * self.factor if bool((x.sum() > 0).item()) else x + self.factor
        return self.classifier(x)


def test_a_model_that_vmap_cannot_run_gets_a_clear_error(generator: torch.Generator) -> None:
    silo = Silo("s", torch.randn(4, 6, generator=generator), torch.tensor([0, 1, 0, 1]))
    with pytest.raises(ModelError, match=r"factor.*register a rule"):
        stream(redraw(DataDependent()), silo, "binary", 1)
