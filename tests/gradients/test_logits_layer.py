"""Where a model's logits come from is read off its structure, whatever its weights and examples."""

from __future__ import annotations

import pytest
import torch
from networks import NETWORK_ALGORITHMS, redraw
from torch import Tensor, nn
from torch.nn import functional

from fedilc import Federation, Silo, train
from fedilc.errors import ModelError
from fedilc.gradients import Loss, logits_layer

X = torch.randn(2, 6, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


class Then(nn.Module):
    """A linear layer, and what is done to its output."""

    def __init__(self, then: object, outputs: int = 1) -> None:
        super().__init__()
        self.body = nn.Linear(6, 5)
        self.head = nn.Linear(5, outputs)
        self.then = then

    def forward(self, x: Tensor) -> Tensor:
        return self.then(self.head(self.body(x).tanh()))


class Doubled(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


class EndsInDoubled(Then):
    def __init__(self) -> None:
        super().__init__(nn.Identity())
        self.head = Doubled(5, 1)


class Tied(nn.Module):
    """A classifier whose weight reads the input, too."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(6, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x * self.head.weight)


def federation_of(generator: torch.Generator, classes: int = 2) -> Federation:
    silos = []
    for e, examples in enumerate((9, 8, 7)):
        x = torch.randn(examples, 6, generator=generator, dtype=torch.float64) + 0.3 * e
        silos.append(Silo(f"s{e}", x, torch.randint(0, classes, (examples,), generator=generator)))
    return Federation("f", silos, loss="binary" if classes == 2 else "multiclass")


@pytest.mark.parametrize(
    "then",
    [
        nn.ReLU(),
        nn.ReLU(inplace=True),
        nn.Hardtanh(-9.0, 9.0),
        nn.Hardtanh(-9.0, 9.0, inplace=True),
        nn.Dropout(0.1),
        nn.LeakyReLU(1.0),
        lambda logits: logits + 0.0,
        lambda logits: logits.mul_(1.0),
    ],
)
def test_whatever_changes_values_after_the_classifier_is_refused_for_every_seed(then: object) -> None:
    for seed in range(20):
        model = redraw(Then(then), seed=seed).double()
        with pytest.raises(
            ModelError, match=r"no linear layer gives the model's logits \(the last operation"
        ):
            logits_layer(model, Loss("binary"), X, None)


@pytest.mark.parametrize("model", [EndsInDoubled(), Tied()])
def test_a_classifier_that_the_closed_form_does_not_describe_is_refused(
    model: nn.Module, generator: torch.Generator
) -> None:
    with pytest.raises(ModelError, match="the penalty cannot be computed"):
        train(federation_of(generator), redraw(model).double(), "fedcurv", rounds=1, learning_rate=0.1)
    train(federation_of(generator), redraw(model).double(), "fedsgd", rounds=1, learning_rate=0.1)


def penalty_by_autograd(model: Then, federation: Federation) -> float:
    variances = []
    for silo in federation.silos:
        losses = functional.binary_cross_entropy_with_logits(
            model(silo.x).reshape(-1), silo.y.double(), reduction="none"
        )
        samples = [
            torch.cat(
                [g.flatten() for g in torch.autograd.grad(v, [*model.head.parameters()], retain_graph=True)]
            )
            for v in losses
        ]
        variances.append(torch.stack(samples).var(0, unbiased=False))
    stack = torch.stack(variances)
    return float((stack - stack.mean(0)).square().sum(1).mean())


@pytest.mark.parametrize(
    "then",
    [
        nn.Identity(),
        nn.Dropout(0.0),
        nn.Flatten(),
        nn.Flatten(0),
        nn.Unflatten(1, (1, 1)),
        lambda logits: logits.squeeze(),
        lambda logits: logits[:, 0],
        lambda logits: logits[..., 0].reshape(-1, 1),
        lambda logits: logits.clone().contiguous(),
    ],
)
def test_a_change_of_shape_after_the_classifier_is_no_matter(
    then: object, generator: torch.Generator
) -> None:
    federation = federation_of(generator)
    model = redraw(Then(then)).double()
    if isinstance(then, nn.Unflatten):
        model = redraw(Then(nn.Sequential(then, nn.Flatten()))).double()
    expected = penalty_by_autograd(model, federation)
    result = train(federation, model, "fedcurv", rounds=1, learning_rate=0.1)
    assert result.history[0]["penalty"] == pytest.approx(expected, rel=1e-9)


class OnlyInEvaluation(nn.Module):
    def forward(self, logits: Tensor) -> Tensor:
        return logits if self.training else logits.softmax(1)


ENDS = {
    "a sigmoid": [nn.Sigmoid(), torch.sigmoid, torch.sigmoid_, lambda z: z.sigmoid()[:, 0].clamp(0.1, 0.9)],
    "a softmax": [nn.Softmax(1), lambda z: functional.softmax(z, 1)],
    "a log-softmax": [nn.LogSoftmax(1), lambda z: functional.log_softmax(z, 1)],
    "a softmax in evaluation mode": [OnlyInEvaluation()],
}


@pytest.mark.parametrize(("end", "then"), [(end, then) for end, many in ENDS.items() for then in many])
def test_a_model_that_ends_in_probabilities_is_refused(
    end: str, then: object, generator: torch.Generator
) -> None:
    classes = 3 if "softmax" in end else 2
    model = redraw(Then(then, classes if classes > 2 else 1)).double()
    with pytest.raises(ModelError, match=f"the model ends in {end}; it must give logits.*remove that last"):
        train(federation_of(generator, classes), model, "fedsgd", rounds=1, learning_rate=0.1)


@pytest.mark.parametrize("name", NETWORK_ALGORITHMS)
def test_every_algorithm_refuses_probabilities(name: str, generator: torch.Generator) -> None:
    model = nn.Sequential(nn.Linear(6, 1), nn.Sigmoid()).double()
    with pytest.raises(ModelError, match="ends in a sigmoid"):
        train(federation_of(generator), model, name, rounds=1, learning_rate=0.1, environment_size=2)
