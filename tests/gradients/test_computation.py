"""Models that are legal torch and easy to get wrong: each equals one backward an example, or is refused."""

from __future__ import annotations

import copy

import pytest
import torch
from computations import computation_of
from networks import redraw
from torch import Tensor, nn
from torch.nn import functional

from fedilc import Federation, Silo, train
from fedilc.aggregation import Accumulation, WeightedGeometricMean
from fedilc.errors import ConfigError, ModelError
from fedilc.gradients import Loss, ModelRunner


class PositionTable(nn.Module):
    """A learned table of positions, looked up without the example axis."""

    def __init__(self) -> None:
        super().__init__()
        self.position = nn.Embedding(6, 1)
        self.head = nn.Linear(6, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head((x + self.position(torch.arange(6))[:, 0]).tanh())


class FlattenedSequence(nn.Module):
    """A layer over examples times positions."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 3)
        self.head = nn.Linear(9, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layer(x.reshape(-1, 2)).tanh().reshape(len(x), 9))


class SequenceFirst(nn.Module):
    """Positions before examples, as torch's transformers are by default."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(1, 4)
        self.head = nn.Linear(4, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layer(x.T.unsqueeze(2)).tanh().mean(0))


class Tied(nn.Module):
    """Two layers with one weight, and a head that begins at zero."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 6)
        self.second = nn.Linear(6, 6)
        self.second.weight = self.first.weight
        self.head = nn.Linear(6, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.second(self.first(x).tanh()).tanh())


class TwoNames(nn.Module):
    """One module under two names."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.Linear(6, 6)
        self.layers = nn.ModuleList([layer, layer])
        self.head = nn.Linear(6, 1)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x).tanh()
        return self.head(x)


class UnusedHead(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.extra = nn.Linear(6, 2)
        self.head = nn.Linear(6, 1)

    def forward(self, x: Tensor) -> Tensor:
        self.extra(x)
        return self.head(x)


MODELS = [PositionTable, FlattenedSequence, SequenceFirst, Tied, TwoNames, UnusedHead]


def silo(generator: torch.Generator, examples: int = 6) -> Silo:
    x = torch.randn(examples, 6, generator=generator, dtype=torch.float64)
    return Silo("s", x, torch.randint(0, 2, (examples,), generator=generator))


def oracle(model: nn.Module, data: Silo) -> dict[str, Tensor]:
    rows: dict[str, list[Tensor]] = {name: [] for name, _ in model.named_parameters()}
    for row in range(len(data)):
        model.zero_grad()
        logits = model(data.x[row : row + 1])[:, 0]
        functional.binary_cross_entropy_with_logits(logits, data.y[row : row + 1].double()).backward()
        for name, parameter in model.named_parameters():
            rows[name].append(
                torch.zeros_like(parameter) if parameter.grad is None else parameter.grad.clone()
            )
    aggregator = WeightedGeometricMean()
    state = aggregator.zero(dict(model.named_parameters()))
    for name, values in rows.items():
        Accumulation(aggregator, state, "silo 's'").stack(name, torch.stack(values).detach())
    state.counted(len(data))
    return aggregator.finalize(state).value


def stream(model: nn.Module, data: Silo) -> dict[str, Tensor]:
    runner = ModelRunner(model, Loss("binary"))
    return computation_of(runner, data, 1, WeightedGeometricMean()).gradients(1).gradient


@pytest.mark.parametrize("examples", [2, 3, 6])
@pytest.mark.parametrize("kind", MODELS)
def test_every_example_gets_its_own_gradient(
    kind: type[nn.Module], examples: int, generator: torch.Generator
) -> None:
    model, data = redraw(kind()).double(), silo(generator, examples)
    expected = oracle(copy.deepcopy(model), data)
    for name, value in stream(model, data).items():
        torch.testing.assert_close(value, expected[name], rtol=1e-8, atol=1e-13)


def test_the_way_of_a_layer_does_not_depend_on_weights_that_are_zero_at_first(
    generator: torch.Generator,
) -> None:
    model, data = redraw(Tied()).double(), silo(generator)
    nn.init.zeros_(model.head.weight)
    runner = ModelRunner(model, Loss("binary"))
    plan = runner.plan(data.x, runner.labels(data.y))
    assert set(plan.tapped) == {"head"}


@pytest.mark.parametrize("kind", MODELS)
def test_the_models_parameters_stay_the_same_objects(
    kind: type[nn.Module], generator: torch.Generator
) -> None:
    model = redraw(kind()).double()
    before = {name: id(parameter) for name, parameter in model.named_parameters(remove_duplicate=False)}
    stream(model, silo(generator))
    assert before == {name: id(p) for name, p in model.named_parameters(remove_duplicate=False)}


class FunctionalDropout(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 8)
        self.prelu = nn.PReLU()
        self.head = nn.Linear(8, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(functional.dropout(self.prelu(self.layer(x)), 0.5, self.training))


@pytest.mark.parametrize("algorithm", ["fedsgd", "fishr-inter-geo", "fishr-intra-geo"])
def test_every_kind_of_dropout_is_repeatable_and_leaves_the_global_stream_alone(
    algorithm: str, generator: torch.Generator
) -> None:
    federation = Federation("f", [silo(generator), Silo("t", torch.ones(4, 6).double(), [0, 1, 0, 1])])
    model = redraw(FunctionalDropout()).double()
    before = torch.random.get_rng_state()
    first, second = (
        train(federation, model, algorithm, rounds=3, learning_rate=0.02, environment_size=2)
        for _ in range(2)
    )
    assert first.history == second.history
    assert all(
        torch.equal(a, b) for a, b in zip(first.model.parameters(), second.model.parameters(), strict=True)
    )
    assert torch.equal(before, torch.random.get_rng_state())


class Rescales(nn.Module):
    """Divides its input in place."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(6, 1)

    def forward(self, x: Tensor) -> Tensor:
        x /= 255
        return self.head(x)


def test_a_model_that_writes_to_its_input_does_not_change_the_silos_data(generator: torch.Generator) -> None:
    data = silo(generator)
    before = data.x.clone()
    train(
        Federation("f", [data], data.x + 1, data.y),
        redraw(Rescales()).double(),
        "fedsgd",
        rounds=3,
        learning_rate=0.1,
    )
    assert torch.equal(data.x, before)


class Squeezes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(6, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x).squeeze()


class NoLinear(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(6))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight


@pytest.mark.parametrize("kind", [Squeezes, NoLinear])
def test_logits_may_come_without_a_last_axis_and_without_a_linear_layer(
    kind: type[nn.Module], generator: torch.Generator
) -> None:
    train(
        Federation("f", [silo(generator)]), redraw(kind()).double(), "geometric", rounds=1, learning_rate=0.1
    )


class Counts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(6, 1)
        self.register_buffer("seen", torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        self.seen += len(x)
        return self.head(x)


class TwoOutputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(6, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return x, self.head(x)


@pytest.mark.parametrize(
    ("model", "sentence"),
    [(Counts(), "buffer 'seen' changes in the forward pass"), (TwoOutputs(), "returns tuple")],
)
def test_what_cannot_be_federated_is_refused_before_the_first_round(
    model: nn.Module, sentence: str, generator: torch.Generator
) -> None:
    with pytest.raises(ModelError, match=sentence):
        train(Federation("f", [silo(generator)]), model.double(), "fedsgd", rounds=1, learning_rate=0.1)


def test_whole_numbers_for_a_linear_layer_are_refused_with_the_fix() -> None:
    federation = Federation("f", [Silo("a", torch.ones(4, 6, dtype=torch.int64), [0, 1, 0, 1])])
    with pytest.raises(ConfigError, match=r"give them as floats \(x.float\(\)\)"):
        train(federation, nn.Linear(6, 1), "fedsgd", rounds=1, learning_rate=0.1)
