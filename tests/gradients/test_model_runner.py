"""The runner of a model: weights are loaded once per version, data get its dtype, devices have names."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fedilc.errors import ConfigError
from fedilc.gradients import Loss, ModelRunner, find_device


def runner(**options: object) -> ModelRunner:
    return ModelRunner(
        nn.Sequential(nn.Linear(3, 2), nn.Dropout(0.5), nn.Linear(2, 1)), Loss("binary"), **options
    )


def test_weights_of_a_version_are_copied_once() -> None:
    here = runner()
    for version, value, expected in ((1, 1.0, 1.0), (1, 2.0, 1.0), (2, 3.0, 3.0)):
        here.load({name: torch.full_like(p, value) for name, p in here.parameters.items()}, version)
        assert all(bool((p == expected).all()) for p in here.parameters.values())


def test_inputs_and_labels_come_in_the_dtypes_that_the_model_and_the_loss_need() -> None:
    here = runner()
    assert here.inputs(torch.zeros(2, 3, dtype=torch.float64)).dtype == torch.float32
    assert here.inputs(torch.zeros(2, 3, dtype=torch.int64)).dtype == torch.int64
    assert here.labels(torch.tensor([0, 1])).dtype == torch.float32
    images = ModelRunner(nn.Sequential(nn.Conv2d(3, 2, 3), nn.Flatten()), Loss("multiclass"))
    assert images.inputs(torch.zeros(2, 3, 8, 8)).is_contiguous(memory_format=torch.channels_last)


def test_frozen_parameters_are_not_among_those_that_train() -> None:
    model = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 1))
    model[0].requires_grad_(False)
    assert list(ModelRunner(model, Loss("binary")).parameters) == ["1.weight", "1.bias"]


def test_a_chunk_holds_as_many_examples_as_fit_and_at_least_one() -> None:
    x = torch.zeros(8, 3)
    large, small = runner(chunk_bytes=1 << 20), runner(chunk_bytes=1)
    assert large.most_examples(x) == (1 << 20) // large.example_bytes(x)
    assert small.most_examples(x) == 1


def test_predictions_are_in_evaluation_mode_whatever_the_chunks(generator: torch.Generator) -> None:
    x = torch.randn(50, 3, generator=generator)
    whole, cut = runner(), runner(chunk_bytes=1)
    cut.model.load_state_dict(whole.model.state_dict())
    torch.testing.assert_close(whole.predict(x), cut.predict(x))
    assert torch.equal(whole.predict(x), whole.predict(x))
    assert whole.model.training


def test_a_silos_own_loss_replaces_the_benchs() -> None:
    here, x, y = runner(), torch.zeros(2, 3), torch.tensor([0.0, 1.0])
    own = Loss("binary", class_weights=(1.0, 5.0))
    assert here.forward(x, y, {}).loss is here.loss
    assert here.forward(x, y, {}, own).loss is own


def test_a_device_that_is_not_there_is_refused_in_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_device("cpu") == torch.device("cpu")
    for name in ("cuda:99", "gpu"):
        with pytest.raises(ConfigError, match=f"device '{name}' cannot be used here") as refused:
            find_device(name)
        assert "\n" not in str(refused.value)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    with pytest.raises(ConfigError, match="one GPU for all ranks of a machine; give 'cuda'"):
        find_device("cuda:0")
