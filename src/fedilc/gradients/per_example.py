"""Gradients of many environments from one forward and one backward pass, streamed into a sink.

The loss's gradients at the layers' outputs come from one backward pass, because no layer mixes
examples; a rule for each layer (`rules.py`) turns them into the gradient of every environment. What no
rule covers (other layers, shared parameters, layers called more than once) goes through chunked
`torch.func.vmap`. Rules are checked once against autograd, and one that disagrees is not used.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from fedilc.errors import ModelError
from fedilc.gradients.forward import Pass, Tap, bytes_per_example, private_randomness, tapped
from fedilc.gradients.losses import Loss
from fedilc.gradients.rules import RULES, embedding_rows

STACK_BYTES = 32 << 20


class Sink(Protocol):
    """Where environments' gradients go, parameter by parameter; nothing is kept here."""

    def stack(self, name: str, values: Tensor) -> None: ...
    def outer(self, name: str, left: Tensor, right: Tensor) -> None: ...
    def rows(self, name: str, index: Tensor, rows: Tensor) -> None: ...
    def counted(self, values: int) -> None: ...


@dataclass(frozen=True)
class Plan:
    """Which layers are done by a rule, and which parameters by vmap."""

    tapped: dict[str, nn.Module]
    covered: frozenset[str]
    fallback: list[str]


def plan_layers(model: nn.Module, loss: Loss, x: Tensor, y: Tensor) -> Plan:
    """Choose a way for every trainable parameter, trying the rules on two examples."""
    trainable = {name: p for name, p in model.named_parameters() if p.requires_grad}
    candidates = {
        name: module
        for name, module in model.named_modules(remove_duplicate=False)
        if type(module) in RULES and any(p.requires_grad for p in module.parameters())
    }
    with tapped(candidates) as taps, private_randomness(model, 0):
        logits = loss.logits(model(x[:2]))
    calls = Counter(tap.name for tap in taps)
    once = [tap for tap in taps if calls[tap.name] == 1]
    losses = loss.per_example(logits, y[:2])
    total = (losses * torch.linspace(1.0, 0.6, len(losses)).to(losses)).sum()
    expected = torch.autograd.grad(total, list(trainable.values()), retain_graph=True, materialize_grads=True)
    reference = dict(zip(trainable, expected, strict=True))
    arrived = _output_gradients(total, once)
    used: dict[str, nn.Module] = {}
    covered: set[str] = set()
    for tap, d in zip(once, arrived, strict=True):
        gradients = RULES[type(tap.module)](tap.module, tap.inputs.unsqueeze(1), d.unsqueeze(1))
        names = {_join(tap.name, key): value.sum(0) for key, value in gradients.items()}
        names = {name: value for name, value in names.items() if name in trainable}
        if names and all(_close(value, reference[name]) for name, value in names.items()):
            used[tap.name] = tap.module
            covered |= set(names)
    return Plan(used, frozenset(covered), [name for name in trainable if name not in covered])


def stream_environments(
    model: nn.Module, loss: Loss, chunk: Pass, size: int, plan: Plan, sink: Sink, keep_graph: bool
) -> None:
    """Stream the mean gradient of each environment of `size` consecutive examples into `sink`."""
    losses = loss.per_example(chunk.logits, chunk.y)
    environments = len(losses) // size
    arrived = _output_gradients(losses.sum() / size, chunk.taps, keep_graph)
    for tap, d in zip(chunk.taps, arrived, strict=True):
        if tap.inputs._version != tap.version:
            raise ModelError(
                f"the input of layer {tap.name!r} is changed in place after the layer has used it; "
                "make that operation not in-place"
            )
        shape = (environments, size)
        a, d = tap.inputs.unflatten(0, shape), d.unflatten(0, shape)
        _stream_layer(tap, a, d, plan.covered, sink)
    if plan.fallback:
        _stream_fallback(model, loss, chunk, size, plan.fallback, sink)
    sink.counted(environments)


def _output_gradients(total: Tensor, taps: list[Tap], keep_graph: bool = False) -> list[Tensor]:
    if not taps:
        return []
    return list(torch.autograd.grad(total, [tap.edge for tap in taps], retain_graph=keep_graph))


def _close(left: Tensor, right: Tensor) -> bool:
    tolerance = 1e-3 if left.dtype in (torch.float32, torch.float64) else 1e-1
    return bool((left - right).norm() <= tolerance * right.norm() + torch.finfo(left.dtype).tiny)


def _join(layer: str, parameter: str) -> str:
    return f"{layer}.{parameter}" if layer else parameter


def _stream_layer(tap: Tap, a: Tensor, d: Tensor, covered: frozenset[str], sink: Sink) -> None:
    """One layer's environments: outer products and table rows as such, the rest in small pieces."""
    module = tap.module
    names = {key: _join(tap.name, key) for key, _ in module.named_parameters(recurse=False)}
    names = {key: name for key, name in names.items() if name in covered}
    if isinstance(module, nn.Embedding):
        _, index, rows = embedding_rows(module, a, d)
        sink.rows(names["weight"], index, rows)
    elif isinstance(module, nn.Linear) and a.dim() == 3 and a.shape[1] == 1:
        if "weight" in names:
            sink.outer(names["weight"], d[:, 0], a[:, 0])
        if "bias" in names:
            sink.stack(names["bias"], d[:, 0])
    else:
        piece = max(1, STACK_BYTES // _bytes_an_environment(module, a))
        for a_piece, d_piece in zip(a.split(piece), d.split(piece), strict=True):
            for key, values in RULES[type(module)](module, a_piece, d_piece).items():
                if key in names:
                    sink.stack(names[key], values)


def _bytes_an_environment(module: nn.Module, a: Tensor) -> int:
    """The larger of one gradient and one environment's unfolded inputs."""
    parameters = max(p.numel() * p.element_size() for p in module.parameters(recurse=False))
    kernel = getattr(module, "kernel_size", ())
    return max(parameters, a[0].numel() * a.element_size() * math.prod(kernel))


def _stream_fallback(
    model: nn.Module, loss: Loss, chunk: Pass, size: int, names: list[str], sink: Sink
) -> None:
    """Whole-model `vmap` over environments for the parameters that no rule covers."""
    state = dict(model.named_parameters()) | dict(model.named_buffers())
    constant = {name: tensor.detach() for name, tensor in state.items() if name not in names}
    wanted = {name: state[name].detach() for name in names}

    def environment_loss(weights: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        output = functional_call(model, (constant, weights), (x,))
        return loss.per_example(loss.logits(output), y).mean()

    each = vmap(grad(environment_loss), in_dims=(None, 0, 0), randomness="different")
    x, y = (part.unflatten(0, (-1, size)) for part in (chunk.x, chunk.y))
    largest = sum(tensor.numel() * tensor.element_size() for tensor in wanted.values())
    activations = size * bytes_per_example(model, chunk.x)
    piece = max(1, STACK_BYTES // max(largest, activations))
    for x_piece, y_piece in zip(x.split(piece), y.split(piece), strict=True):
        try:
            gradients = each(wanted, x_piece, y_piece)
        except RuntimeError as error:
            raise ModelError(
                f"the parameters {', '.join(names[:3])} belong to layers without a rule, and vmap "
                f"cannot run the model ({str(error).splitlines()[0]}); register a rule with "
                "fedilc.gradients.register_rule, or set environment_size to None"
            ) from error
        for name, values in gradients.items():
            sink.stack(name, values)
