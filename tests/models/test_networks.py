"""The paper's three networks: their sizes, their first weights, and their classifier."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch
from torch import nn

from fedilc.errors import ConfigError, ModelError
from fedilc.models import NETWORKS, build_model, find_classifier


def linear_count(*widths: int) -> int:
    return sum((narrow + 1) * wide for narrow, wide in pairwise(widths))


def count(network: nn.Module) -> int:
    return sum(weights.numel() for weights in network.parameters())


def linears(network: nn.Module) -> list[nn.Linear]:
    return [module for module in network.modules() if isinstance(module, nn.Linear)]


CNN_COUNT = (
    *(3 * 9 * 64 + 64, 2 * 64),
    *(64 * 9 * 128 + 128, 2 * 128),
    *(128 * 9 * 128 + 128, 2 * 128),
    linear_count(128, 128, 10),
)


@pytest.mark.parametrize(
    ("name", "inputs", "outputs", "parameters"),
    [
        ("mlp", (2, 14, 14), 1, linear_count(392, 390, 390, 1)),
        ("eicu-mlp", (500,), 1, linear_count(500, 1024, 1024, 512, 1)),
        ("cnn", (3, 16, 16), 10, sum(CNN_COUNT)),
    ],
)
def test_a_network_has_the_papers_number_of_parameters(
    name: str, inputs: tuple[int, ...], outputs: int, parameters: int
) -> None:
    network = build_model(name, inputs, outputs, seed=0)
    assert count(network) == parameters
    assert network(torch.zeros(5, *inputs)).shape == (5, outputs)


def test_the_color_mnist_network_is_392_390_390_1_with_relu_between() -> None:
    network = build_model("mlp", (2, 14, 14), 1, seed=0)
    assert [tuple(layer.weight.shape) for layer in linears(network)] == [(390, 392), (390, 390), (1, 390)]
    kinds = [type(module) for module in network]
    assert kinds == [nn.Flatten, nn.Linear, nn.ReLU, nn.Linear, nn.ReLU, nn.Linear]


def test_the_eicu_network_has_no_relu_before_its_classifier() -> None:
    network = build_model("eicu-mlp", (20,), 1, seed=0)
    assert [layer.out_features for layer in linears(network)] == [1024, 1024, 512, 1]
    kinds = [type(module) for module in network]
    assert kinds == [nn.Flatten, nn.Linear, nn.ReLU, nn.Linear, nn.ReLU, nn.Linear, nn.Linear]


def test_the_cifar_network_takes_images_of_other_sizes_too() -> None:
    network = build_model("cnn", (3, 32, 32), 10, seed=0)
    assert linears(network)[0].in_features == 128 * 2 * 2
    assert network(torch.zeros(2, 3, 32, 32)).shape == (2, 10)


def test_the_cifar_network_normalises_by_groups_after_relu() -> None:
    kinds = [type(module) for module in build_model("cnn", (3, 16, 16), 10, seed=0)]
    block = [nn.Conv2d, nn.ReLU, nn.GroupNorm, nn.MaxPool2d]
    assert kinds == [*block, *block, *block, nn.Flatten, nn.Linear, nn.Linear]


@pytest.mark.parametrize("hidden", [[], [7], [7, 5, 3]])
@pytest.mark.parametrize("name", ["mlp", "eicu-mlp"])
def test_hidden_sets_the_widths(name: str, hidden: list[int]) -> None:
    network = build_model(name, (4, 2), 3, seed=0, hidden=hidden)
    assert count(network) == linear_count(8, *hidden, 3)


@pytest.mark.parametrize("name", ["mlp", "eicu-mlp"])
def test_weights_fill_xaviers_interval_and_biases_are_zero(name: str) -> None:
    for layer in linears(build_model(name, (30,), 1, seed=0, hidden=[60, 50])):
        bound = math.sqrt(6 / (layer.in_features + layer.out_features))
        assert 0.9 * bound < layer.weight.abs().max().item() <= bound
        assert abs(layer.weight.mean().item()) < 0.2 * bound
        assert torch.equal(layer.bias, torch.zeros_like(layer.bias))


def test_the_cifar_networks_weights_fill_torchs_usual_interval() -> None:
    network = build_model("cnn", (3, 16, 16), 10, seed=0)
    drawn = [module for module in network if isinstance(module, nn.Conv2d | nn.Linear)]
    assert len(drawn) == 5
    for module in drawn:
        bound = 1 / math.sqrt(module.weight[0].numel())
        for weights in (module.weight, module.bias):
            assert 0.5 * bound < weights.abs().max().item() <= bound
    for norm in (module for module in network if isinstance(module, nn.GroupNorm)):
        assert bool((norm.weight == 1).all())
        assert bool((norm.bias == 0).all())


INPUTS = {"mlp": (2, 4, 4), "eicu-mlp": (6,), "cnn": (3, 16, 16), "linear": (6,)}


def test_the_linear_network_is_one_layer_whose_weights_are_0_whatever_the_seed() -> None:
    _, layer = build_model("linear", (2, 3), 1, seed=5)
    assert tuple(layer.weight.shape) == (1, 6)
    assert not any(bool(weights.any()) for weights in layer.parameters())


@pytest.mark.parametrize("name", [name for name in NETWORKS.names() if name != "linear"])
def test_one_seed_gives_one_model_to_the_bit_and_another_seed_another(name: str) -> None:
    first, again, other = (build_model(name, INPUTS[name], 2, seed) for seed in (3, 3, 4))
    for layer, twin, different in zip(linears(first), linears(again), linears(other), strict=True):
        assert torch.equal(layer.weight, twin.weight)
        assert torch.equal(layer.bias, twin.bias)
        assert not torch.equal(layer.weight, different.weight)


@pytest.mark.parametrize("name", NETWORKS.names())
def test_building_a_model_neither_reads_nor_moves_torchs_global_random_state(name: str) -> None:
    reference = linears(build_model(name, INPUTS[name], 2, seed=3))[0].weight
    with torch.random.fork_rng():
        torch.manual_seed(99)
        before = torch.get_rng_state()
        weight = linears(build_model(name, INPUTS[name], 2, seed=3))[0].weight
        assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(weight, reference)


@pytest.mark.parametrize("name", NETWORKS.names())
def test_every_parameter_is_a_trainable_float_on_the_cpu(name: str) -> None:
    for weights in build_model(name, INPUTS[name], 2, seed=0).parameters():
        assert (weights.device.type, weights.dtype, weights.requires_grad) == ("cpu", torch.float32, True)


@pytest.mark.parametrize(
    ("arguments", "sizes", "sentence"),
    [
        (("mpl", (4,), 1, 0), {}, "model 'mpl' is unknown; did you mean 'mlp'"),
        (("cnn", (4,), 1, 0), {}, r"model 'cnn' needs images .* not \(4,\)"),
        (
            ("cnn", (3, 16, 16), 1, 0),
            {"hidden": [3]},
            r"model 'cnn' has no setting 'hidden'; leave it out",
        ),
        (
            ("cnn", (2, 8, 8), 1, 0),
            {},
            r"model 'cnn' cannot be built for inputs of shape \(2, 8, 8\) with no sizes: .*too small",
        ),
        (
            ("mlp", (4,), 1, 0),
            {"hidden": [-1]},
            r"model 'mlp' cannot be built for inputs of shape \(4,\) with {'hidden': \[-1\]}: .*negative",
        ),
    ],
    ids=["name", "shape", "sizes", "small images", "negative width"],
)
def test_a_network_that_cannot_be_built_is_refused(
    arguments: tuple[str, tuple[int, ...], int, int], sizes: dict[str, list[int]], sentence: str
) -> None:
    with pytest.raises(ConfigError, match=sentence) as refused:
        build_model(*arguments, **sizes)
    assert "\n" not in str(refused.value)


class Branches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 3), nn.ReLU())
        self.head = nn.Linear(3, 1)
        self.norm = nn.LayerNorm(1)


def test_the_classifier_is_the_last_linear_layer() -> None:
    model = Branches()
    assert find_classifier(model) == ("head", model.head)


def test_the_classifier_may_be_named() -> None:
    model = Branches()
    assert find_classifier(model, "body.0") == ("body.0", model.body[0])


@pytest.mark.parametrize(
    ("model", "name", "sentence"),
    [
        (nn.Sequential(nn.ReLU()), None, "has no nn.Linear"),
        (Branches(), "haed", "no linear layer 'haed'; did you mean 'head'"),
        (Branches(), "norm", "no linear layer 'norm'"),
    ],
    ids=["none", "misspelt", "not linear"],
)
def test_a_classifier_that_is_not_there_is_refused(model: nn.Module, name: str | None, sentence: str) -> None:
    with pytest.raises(ModelError, match=sentence):
        find_classifier(model, name)
