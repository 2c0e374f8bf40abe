"""`train`: what it takes, what it refuses, and what it leaves as it was."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from small_silos import QUICK, silo
from torch import nn

from fedilc import Callback, Federation, train
from fedilc.data.silo_store import SiloStore
from fedilc.errors import ConfigError

FEDERATION = Federation("f", [silo("a", 1), silo("b", 2)])


def test_the_model_passed_in_is_untouched() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5), nn.Linear(4, 1))
    model[0].bias.requires_grad_(False)
    model[1].eval()
    model[2].weight.grad = torch.ones_like(model[2].weight)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    modes = [module.training for module in model.modules()]
    hooks = [len(module._forward_hooks) for module in model.modules()]
    result = train(FEDERATION, model, "fishr-intra-geo", rounds=2, learning_rate=0.1, environment_size=4)
    result.best_model()
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert [module.training for module in model.modules()] == modes
    assert [parameter.requires_grad for parameter in model.parameters()] == [True, False, True, True]
    assert torch.equal(model[2].weight.grad, torch.ones_like(model[2].weight))
    assert model[0].weight.grad is None
    assert [len(module._forward_hooks) for module in model.modules()] == hooks


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ((FEDERATION.silos, nn.Linear(3, 1)), r"train\(\) needs a Federation, but was given (list|tuple)"),
        ((FEDERATION, nn.Linear), r"train\(\) needs a Module, but was given type"),
    ],
)
def test_an_argument_of_another_type_is_both_a_type_error_and_one_of_ours(given: Any, words: str) -> None:
    with pytest.raises(TypeError, match=words) as refused:
        train(*given, **QUICK)
    assert isinstance(refused.value, ConfigError)


def test_an_unknown_option_is_refused_with_the_nearest_one() -> None:
    with pytest.raises(ConfigError, match=r"penalty_wieght.*penalty_weight"):
        train(FEDERATION, nn.Linear(3, 1), penalty_wieght=2.0, **QUICK)


def test_a_store_of_silos_gives_the_bits_of_the_federation() -> None:
    model = nn.Linear(3, 1)
    whole, stored = (train(data, model, **QUICK) for data in (FEDERATION, SiloStore.of(FEDERATION)))
    assert stored.history == whole.history
    assert torch.equal(stored.model.weight, whole.model.weight)


def test_one_callback_or_function_may_be_given_without_a_list() -> None:
    class Counting(Callback):
        rounds = 0

        def on_round(self, run: Any, record: Any) -> None:
            self.rounds += 1

    counting, seen = Counting(), []
    train(FEDERATION, nn.Linear(3, 1), callbacks=counting, **QUICK)
    train(FEDERATION, nn.Linear(3, 1), callbacks=seen.append, **QUICK)
    assert counting.rounds == len(seen) == 1
