"""Run forward passes in chunks, and keep what the backward pass needs."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from fedilc.data.inputs import Inputs, call, tensors_of
from fedilc.errors import ModelError
from fedilc.gradients.losses import Loss

CHUNK_BYTES = 64 << 20
KEPT_BYTES = 640 << 20

# Where a backward pass begins: tensors with a graph, each with the gradient that it begins with.
BackwardStarts = list[tuple[Tensor, Tensor]]


@dataclass
class Tap:
    """A layer's input in a forward pass, and the edge of the graph at which its output's gradient arrives."""

    name: str
    module: nn.Module
    inputs: Tensor
    version: int
    edge: torch.autograd.graph.GradientEdge


@dataclass
class Pass:
    """One chunk's forward pass: logits and classifier inputs with their graph, and the taps asked for.

    It also has what computations on it need: the loss, the trainable parameters, the layer of the logits.
    """

    x: Inputs
    y: Tensor
    logits: Tensor
    features: list[Tensor]
    taps: list[Tap]
    loss: Loss
    parameters: list[nn.Parameter]
    classifier: nn.Linear | None = None
    classifier_name: str | None = None

    def losses(self) -> Tensor:
        """Return the loss of each example, with its graph."""
        return self.loss.per_example(self.logits, self.y)

    def only_features(self) -> Tensor:
        """Return the classifier's input, or raise if the formula of a penalty does not apply to it."""
        calls = len(self.features)
        if calls != 1 or self.features[0].dim() != 2:
            what = f"was called {calls} times" if calls != 1 else "is applied to sequences"
            raise ModelError(
                f"the classifier {self.classifier_name!r} {what}; the penalty needs a linear layer that is "
                "applied once to one feature vector per example: name it with classifier=..., or pool "
                "before it"
            )
        return self.features[0]


@contextlib.contextmanager
def tapped(modules: dict[str, nn.Module]) -> Iterator[list[Tap]]:
    """Record every call of these modules in a forward pass run inside the context."""
    taps: list[Tap] = []

    def record(name: str, module: nn.Module, args: tuple[object, ...], output: object) -> None:
        inputs = args[0] if args else None
        if isinstance(inputs, Tensor) and isinstance(output, Tensor) and output.requires_grad:
            edge = torch.autograd.graph.get_gradient_edge(output)
            taps.append(Tap(name, module, inputs.detach(), inputs._version, edge))

    with contextlib.ExitStack() as hooks:
        for name, module in modules.items():
            hooks.enter_context(module.register_forward_hook(partial(record, name)))
        yield taps


@contextlib.contextmanager
def classifier_input(classifier: nn.Module | None) -> Iterator[list[Tensor]]:
    """Collect the inputs of the classifier in a forward pass run inside the context."""
    seen: list[Tensor] = []

    def record(_: nn.Module, args: tuple[Tensor, ...], named: dict[str, Tensor]) -> None:
        seen.append(args[0] if args else named["input"])

    none = contextlib.nullcontext()
    with none if classifier is None else classifier.register_forward_pre_hook(record, with_kwargs=True):
        yield seen


def bytes_per_example(model: nn.Module, x: Inputs) -> int:
    """Estimate the memory per example of a forward pass that keeps its graph, in bytes."""
    known = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    sizes: dict[int, int] = {}
    kept: list[Tensor] = []

    def measure(tensor: Tensor) -> Tensor:
        place = tensor.untyped_storage().data_ptr()
        if place not in known:
            sizes[place] = max(sizes.get(place, 0), tensor.numel() * tensor.element_size())
            kept.append(tensor)
        return tensor

    probe = x[:2].clone()
    with (
        torch.enable_grad(),
        private_randomness(probe.device, 0),
        torch.autograd.graph.saved_tensors_hooks(measure, lambda tensor: tensor),
    ):
        call(model, probe)
    own = sum(part[0].numel() * part.element_size() for part in tensors_of(probe))
    return max(1, sum(sizes.values()) // len(probe) + own)


@contextlib.contextmanager
def private_randomness(device: torch.device, seed: int) -> Iterator[None]:
    """Give random layers such as dropout their own random stream, and restore the global one afterwards."""
    cuda = device.type == "cuda"
    with torch.random.fork_rng(devices=[device] if cuda else []):
        torch.default_generator.manual_seed(seed)
        if cuda:
            with torch.cuda.device(device):
                torch.cuda.manual_seed(seed)
        yield
