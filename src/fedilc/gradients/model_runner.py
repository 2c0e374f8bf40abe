"""Run the one model of a process for all its silos: weights, forward passes, predictions, device."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import overload

import torch
from torch import Tensor, nn
from torch.nn.utils import convert_conv2d_weight_memory_format

from fedilc.data.inputs import Examples, Inputs, call, mapped, tensors_of
from fedilc.errors import ConfigError
from fedilc.gradients.fast_linear import FastLinear
from fedilc.gradients.forward import (
    CHUNK_BYTES,
    Pass,
    bytes_per_example,
    classifier_input,
    private_randomness,
    tapped,
)
from fedilc.gradients.losses import Loss
from fedilc.gradients.memory import keep_freed_memory
from fedilc.gradients.model_support import set_training
from fedilc.gradients.per_example import Plan, plan_layers
from fedilc.models import find_classifier


def find_device(name: str) -> torch.device:
    """Return the device of a name; "auto" is a GPU if there is one, and another GPU for each local rank."""
    if name == "auto" and not torch.cuda.is_available():
        return torch.device("cpu")
    if name in ("auto", "cuda") and torch.cuda.is_available():
        place = os.environ.get("LOCAL_RANK", os.environ.get("SLURM_LOCALID", "0"))
        return torch.device("cuda", int(place) % torch.cuda.device_count())
    if name.startswith("cuda:") and int(os.environ.get("LOCAL_WORLD_SIZE", "1")) > 1:
        raise ConfigError(f"device {name!r} is one GPU for all ranks of a machine; give 'cuda', for one each")
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).item()
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(f"device {name!r} cannot be used here: {reason}") from error
    return device


class ModelRunner:
    """The one model of a process, with which all its silos compute; weights are copied into it in place."""

    def __init__(
        self,
        model: nn.Module,
        loss: Loss,
        classifier: str | None = None,
        chunk_bytes: int = CHUNK_BYTES,
    ) -> None:
        self.model = set_training(model, True)
        self.format = torch.preserve_format
        if any(isinstance(module, nn.Conv2d) for module in model.modules()):
            self.format = torch.channels_last
            convert_conv2d_weight_memory_format(self.model, self.format)
        self.loss = loss
        self.chunk_bytes = chunk_bytes
        self.use_classifier(classifier)
        self.parameters = {n: p for n, p in model.named_parameters() if p.requires_grad}
        first = next(iter(self.parameters.values()))
        self.dtype, self.device = first.dtype, first.device
        self._version: int | None = None
        self._example_bytes: int | None = None
        self._clones = False
        self._plan: Plan | None = None
        self._keeps_memory = False

    @torch.no_grad()
    def load(self, weights: Mapping[str, Tensor], version: int) -> None:
        """Take the server's weights, unless they are already here."""
        if version != self._version:
            for name, parameter in self.parameters.items():
                if weights[name].data_ptr() != parameter.data_ptr():  # in one process, w is this model's own
                    parameter.copy_(weights[name])
            self._version = version

    def use_classifier(self, name: str | None) -> None:
        """Take the layer of this name for the one that gives the logits; None is the last linear layer."""
        self.classifier_name, self.classifier = name, None
        if name is not None or any(isinstance(module, nn.Linear) for module in self.model.modules()):
            self.classifier_name, self.classifier = find_classifier(self.model, name)

    @overload
    def inputs(self, x: Inputs) -> Inputs: ...

    @overload
    def inputs(self, x: Examples) -> Examples: ...

    def inputs(self, x: Examples) -> Examples:
        """Return inputs on the model's device and in its memory layout; floating-point ones in its dtype."""
        return mapped(self._moved, x)

    def _moved(self, x: Tensor) -> Tensor:
        layout = self.format if x.dim() == 4 else torch.preserve_format
        return x.to(self.device, self.dtype if x.is_floating_point() else None, memory_format=layout)

    def labels(self, y: Tensor) -> Tensor:
        """Return labels as the loss needs them."""
        return self.loss.labels(y, self.dtype).to(self.device)

    def example_bytes(self, x: Examples) -> int:
        """Estimate the memory of one example's forward pass in bytes, measured once."""
        if self._example_bytes is None:
            self._example_bytes = bytes_per_example(self.model, x[:2])
            self._clones = self._writes_to_inputs(x[:1])
        return self._example_bytes

    def _writes_to_inputs(self, x: Inputs) -> bool:
        """Return whether the model changes its input, so that it must be given copies."""
        probe = x.clone()
        with torch.no_grad(), private_randomness(self.device, 0):
            call(self.model, probe)
        return not all(map(torch.equal, tensors_of(probe), tensors_of(x)))

    def most_examples(self, x: Examples) -> int:
        """Return how many examples a chunk may hold."""
        return max(1, self.chunk_bytes // self.example_bytes(x))

    def plan(self, x: Examples, y: Tensor) -> Plan:
        """Return how the gradients of single environments are computed, decided once."""
        if self._plan is None:
            self._plan = plan_layers(self.model, self.loss, x[:3], y[:3])
        return self._plan

    def forward(self, x: Inputs, y: Tensor, taps: Mapping[str, nn.Module], loss: Loss | None = None) -> Pass:
        """Return one chunk's forward with features and the taps asked for; `loss` may be a silo's own."""
        if not self._keeps_memory:
            keep_freed_memory(self)
            self._keeps_memory = True
        with classifier_input(self.classifier) as seen, tapped(dict(taps)) as recorded, FastLinear():
            logits = self.loss.logits(call(self.model, x.clone() if self._clones else x))
        parameters = list(self.parameters.values())
        return Pass(
            x, y, logits, seen, recorded, loss or self.loss, parameters, self.classifier, self.classifier_name
        )

    def predict(self, x: Examples) -> Tensor:
        """Return the logits of any number of examples, without graph, in evaluation mode."""
        rows = 4 * self.most_examples(x)
        x = x.clone() if self._clones else x
        set_training(self.model, False)
        try:
            with torch.inference_mode(), FastLinear():
                return torch.cat([self.loss.logits(call(self.model, part)) for part in x.split(rows)])
        finally:
            set_training(self.model, True)
