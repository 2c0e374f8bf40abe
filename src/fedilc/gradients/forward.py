"""Forward passes of a silo in chunks: how large a chunk may be, and what one leaves for the backward."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from fedilc.errors import ModelError

CHUNK_BYTES = 256 << 20


@dataclass
class Tap:
    """What a layer saw: its input, and the place in the graph where its output's gradient arrives."""

    name: str
    module: nn.Module
    inputs: Tensor
    version: int
    edge: torch.autograd.graph.GradientEdge


@dataclass
class Pass:
    """One chunk's forward: logits and classifier inputs with their graph, and the taps asked for."""

    x: Tensor
    y: Tensor
    logits: Tensor
    features: list[Tensor]
    taps: list[Tap] = field(default_factory=list)


@contextlib.contextmanager
def tapped(modules: dict[str, nn.Module]) -> Iterator[list[Tap]]:
    """Record every call of these modules in a forward pass run inside the context."""
    taps: list[Tap] = []
    handles = []
    for name, module in modules.items():

        def record(module: nn.Module, args: tuple[object, ...], output: object, name: str = name) -> None:
            inputs = args[0] if args else None
            if isinstance(inputs, Tensor) and isinstance(output, Tensor) and output.requires_grad:
                edge = torch.autograd.graph.get_gradient_edge(output)
                taps.append(Tap(name, module, inputs.detach(), inputs._version, edge))

        handles.append(module.register_forward_hook(record))
    try:
        yield taps
    finally:
        for handle in handles:
            handle.remove()


@contextlib.contextmanager
def classifier_input(classifier: nn.Module) -> Iterator[list[Tensor]]:
    """Collect the inputs of the classifier in a forward pass run inside the context."""
    seen: list[Tensor] = []
    handle = classifier.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    try:
        yield seen
    finally:
        handle.remove()


def only_features(seen: list[Tensor], name: str) -> Tensor:
    """The classifier's input, or an error where Fishr's formula does not apply to it."""
    if len(seen) != 1 or seen[0].dim() != 2:
        what = f"was called {len(seen)} times" if len(seen) != 1 else "is applied to sequences"
        raise ModelError(
            f"the classifier {name!r} {what}; Fishr needs a linear layer that is applied once to "
            "one feature vector an example: name it with classifier=..., or pool before it"
        )
    return seen[0]


def bytes_per_example(model: nn.Module, x: Tensor) -> int:
    """About how much memory one example's activations take in a forward pass with graph."""
    total = 0

    def measure(_: nn.Module, __: object, output: object) -> None:
        nonlocal total
        if isinstance(output, Tensor):
            total += output.numel() * output.element_size()

    leaves = [module for module in model.modules() if not list(module.children())]
    handles = [module.register_forward_hook(measure) for module in leaves]
    try:
        with torch.no_grad(), private_randomness(model, 0):
            model(x[:2])
    finally:
        for handle in handles:
            handle.remove()
    return max(1, total // len(x[:2]) + x[0].numel() * x.element_size())


@contextlib.contextmanager
def private_randomness(model: nn.Module, seed: int) -> Iterator[None]:
    """Give dropout a stream of its own, and put the global one back afterwards."""
    if any(isinstance(module, nn.modules.dropout._DropoutNd) for module in model.modules()):
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            yield
    else:
        yield
