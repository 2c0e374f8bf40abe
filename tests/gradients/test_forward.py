"""Forward passes: what is recorded in them, what they cost, and that their randomness is their own."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from fedilc.errors import ModelError
from fedilc.gradients import Loss
from fedilc.gradients.forward import Pass, bytes_per_example, classifier_input, private_randomness, tapped


def two_layers() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 1))


def test_taps_hold_a_layers_input_and_where_its_outputs_gradient_arrives(generator: torch.Generator) -> None:
    model, x = two_layers(), torch.randn(5, 4, generator=generator)
    with tapped({"first": model[0], "last": model[2]}) as taps:
        out = model(x)
    assert [tap.name for tap in taps] == ["first", "last"]
    assert torch.equal(taps[0].inputs, x)
    (arrived,) = torch.autograd.grad(out.sum(), [taps[1].edge])
    assert torch.equal(arrived, torch.ones(5, 1))


def test_nothing_is_recorded_after_the_context_even_if_the_model_fails() -> None:
    model = two_layers()
    with pytest.raises(RuntimeError), tapped({"0": model[0]}) as taps, classifier_input(model[2]) as seen:
        model(torch.zeros(1, 9))
    model(torch.zeros(1, 4))
    assert taps == seen == []


def test_the_classifiers_input_is_collected_with_its_graph_by_position_or_by_name() -> None:
    classifier, x = nn.Linear(3, 1), torch.ones(2, 3, requires_grad=True)
    with classifier_input(classifier) as seen:
        classifier(x * 2)
        classifier(input=x * 3)
    assert [float(features[0, 0].detach()) for features in seen] == [2.0, 3.0]
    assert all(features.requires_grad for features in seen)
    with classifier_input(None) as nothing:
        classifier(x)
    assert nothing == []


@pytest.mark.parametrize(
    ("features", "said"),
    [
        ([], "was called 0 times"),
        ([torch.zeros(2, 3)] * 2, "was called 2 times"),
        ([torch.zeros(2, 5, 3)], "is applied to sequences"),
    ],
)
def test_features_that_a_formula_does_not_describe_are_refused(features: list[Tensor], said: str) -> None:
    chunk = Pass(
        torch.zeros(2, 3), torch.zeros(2), torch.zeros(2, 1), features, [], Loss("binary"), [], None, "head"
    )
    with pytest.raises(ModelError, match=f"the classifier 'head' {said}; the penalty needs a linear layer"):
        chunk.only_features()


def test_bytes_per_example_grow_with_the_activations_and_not_with_the_weights() -> None:
    def cost(width: int, depth: int) -> int:
        layers = [layer for _ in range(depth) for layer in (nn.Linear(width, width), nn.Tanh())]
        return bytes_per_example(nn.Sequential(*layers), torch.zeros(8, width))

    assert cost(64, 4) - cost(64, 2) == 2 * 4 * 64
    assert 1.9 < cost(128, 3) / cost(64, 3) < 2.1


def test_private_randomness_is_repeatable_and_restores_the_global_stream() -> None:
    before = torch.get_rng_state()
    drawn = []
    for seed in (1, 1, 2):
        with private_randomness(torch.device("cpu"), seed):
            drawn.append(torch.rand(4))
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])
    assert torch.equal(torch.get_rng_state(), before)
