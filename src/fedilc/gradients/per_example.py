"""Gradients of many environments from one forward and one backward pass, streamed into an aggregation.

The loss's gradients at the layers' outputs come from one backward pass, because no layer mixes
examples; a rule for each layer (`rules.py`) turns them into the gradient of every environment. What no
rule covers (other layers, shared parameters, layers called more than once) goes through chunked
`torch.func.vmap`. Rules are tried once against autograd, and one that disagrees is not used.
"""

from __future__ import annotations

import copy
import math
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from fedilc.data.inputs import Inputs, arguments, call, tree_of
from fedilc.errors import ModelError
from fedilc.gradients.forward import Pass, Tap, bytes_per_example, private_randomness, tapped
from fedilc.gradients.losses import Loss
from fedilc.gradients.rules import RULES, embedding_rows, factors

if TYPE_CHECKING:
    from fedilc.aggregation import Accumulation

STACK_BYTES = 32 << 20


@dataclass(frozen=True)
class Plan:
    """Which layers are done by a rule, and which parameters by vmap."""

    tapped: dict[str, nn.Module]
    covered: frozenset[str]
    fallback: list[str]


def plan_layers(model: nn.Module, loss: Loss, x: Inputs, y: Tensor) -> Plan:
    """Choose how to compute the gradients of each trainable parameter, trying the rules on three examples.

    The trial runs on a copy with noise in its weights, so that it does not depend on the progress of
    training, and no gradient is zero by chance. A rule is used if it gives each example's own gradient.
    """
    trial = _with_noise(model)
    x, y = x[:3].clone(), y[:3]  # several: with one, a layer that mixes examples would go unnoticed
    trainable = {name: p for name, p in trial.named_parameters() if p.requires_grad}
    with tapped(_candidates(trial)) as taps, private_randomness(x.device, 0):
        losses = loss.per_example(loss.logits(call(trial, x)), y)
    calls = Counter(tap.name for tap in taps)
    once = [tap for tap in taps if calls[tap.name] == 1]
    rows = [
        torch.autograd.grad(value, list(trainable.values()), retain_graph=True, materialize_grads=True)
        for value in losses
    ]
    expected = {
        name: torch.stack(column) for name, column in zip(trainable, zip(*rows, strict=True), strict=True)
    }
    covered: set[str] = set()
    used: list[str] = []
    for tap, d in _output_gradients(losses.sum(), once, keep_graph=True):
        names = _right_parameters(tap, d, expected)
        covered |= names
        used += [tap.name] if names else []
    fallback = [name for name in trainable if name not in covered]
    # The rules and vmap run the network once each. If it draws random numbers (dropout), the two runs are of
    # two networks, and no gradient may have parts of both: vmap then computes all of it.
    if fallback and _is_random(trial, x):
        return Plan({}, frozenset(), list(trainable))
    return Plan({name: model.get_submodule(name) for name in used}, frozenset(covered), fallback)


def _with_noise(model: nn.Module) -> nn.Module:
    trial = copy.deepcopy(model)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in trial.parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            parameter.add_(noise.to(parameter), alpha=0.1)
    return trial


def _candidates(model: nn.Module) -> dict[str, nn.Module]:
    """Return the layers that have a rule and share no trainable parameter with another layer."""
    owners = Counter(id(p) for module in model.modules() for p in module.parameters(recurse=False))
    return {
        name: module
        for name, module in model.named_modules()
        if type(module) in RULES
        and any(p.requires_grad for p in module.parameters())
        and all(owners[id(p)] == 1 for p in module.parameters())
    }


def _right_parameters(tap: Tap, d: Tensor, expected: dict[str, Tensor]) -> set[str]:
    """Return the parameters of a layer for which its rule gives every example's gradient."""
    count = len(next(iter(expected.values())))
    if len(tap.inputs) != count or len(d) != count:
        return set()
    gradients = RULES[type(tap.module)](tap.module, tap.inputs.unsqueeze(1), d.unsqueeze(1))
    found = {_join(tap.name, key): value for key, value in gradients.items()}
    found = {name: value for name, value in found.items() if name in expected}
    right = all(_close(value, expected[name]) for name, value in found.items())
    return set(found) if right else set()


@torch.no_grad()
def _is_random(model: nn.Module, x: Inputs) -> bool:
    outputs = []
    for seed in (0, 1):
        with private_randomness(x.device, seed):
            outputs.append(call(model, x.clone()))
    return not torch.equal(*outputs)


def stream_environments(
    model: nn.Module, chunk: Pass, size: int, plan: Plan, votes: Accumulation, keep_graph: bool
) -> None:
    """Stream the mean gradient of each environment of `size` consecutive examples into `votes`."""
    losses = chunk.losses()
    environments = len(losses) // size
    shape = (environments, size)
    for tap, d in _output_gradients(losses.sum() / size, chunk.taps, keep_graph):
        # Autograd guards the tensors that it saved itself, and a rule may need others.
        if tap.inputs._version != tap.version:
            raise ModelError(
                f"the input of layer {tap.name!r} is changed in place after the layer has used it; "
                "make that operation not in-place"
            )
        a, d = tap.inputs.unflatten(0, shape), d.unflatten(0, shape)
        _stream_layer(tap, a, d, plan.covered, votes)
    if plan.fallback:
        _stream_fallback(model, chunk, size, plan.fallback, votes)
    votes.counted(environments)


def _output_gradients(total: Tensor, taps: list[Tap], keep_graph: bool) -> Iterator[tuple[Tap, Tensor]]:
    """Return the gradient at each tap; a layer whose output is not used has none."""
    if taps:
        edges = [tap.edge for tap in taps]
        arrived = torch.autograd.grad(total, edges, retain_graph=keep_graph, allow_unused=True)
        yield from ((tap, d) for tap, d in zip(taps, arrived, strict=True) if d is not None)


def _close(left: Tensor, right: Tensor) -> bool:
    """Return whether the norms of every row agree to the precision of the dtype."""
    # A wrong rule is wrong by its whole size; a right one differs by rounding, about 1e-6 (bfloat16: 1e-2).
    tolerance = 1e-3 if left.dtype.itemsize >= 4 else 1e-1
    difference, size = (left - right).flatten(1).norm(dim=1), right.flatten(1).norm(dim=1)
    return bool((difference <= tolerance * size + torch.finfo(left.dtype).tiny).all())


def _join(layer: str, parameter: str) -> str:
    return f"{layer}.{parameter}" if layer else parameter


def _stream_layer(tap: Tap, a: Tensor, d: Tensor, covered: frozenset[str], votes: Accumulation) -> None:
    """Stream one layer's environments: outer products and table rows as such, the rest in small pieces."""
    module = tap.module
    names = {key: _join(tap.name, key) for key, _ in module.named_parameters(recurse=False)}
    names = {key: name for key, name in names.items() if name in covered}
    if isinstance(module, nn.Embedding):
        _, index, rows = embedding_rows(module, a, d)
        votes.rows(names["weight"], index, rows)
    # An environment of one example: its gradient is d a^T, and log|d a^T| = log|d| + log|a| needs no d a^T.
    elif isinstance(module, nn.Linear) and a.dim() == 3 and a.shape[1] == 1:
        if "weight" in names:
            votes.outer(names["weight"], d[:, 0], a[:, 0])
        if "bias" in names:
            votes.stack(names["bias"], d[:, 0])
    else:
        piece = max(1, STACK_BYTES // _bytes_per_environment(module, a))
        for a_piece, d_piece in zip(a.split(piece), d.split(piece), strict=True):
            _stream_piece(module, a_piece, d_piece, names, votes)


def _stream_piece(
    module: nn.Module, a: Tensor, d: Tensor, names: dict[str, str], votes: Accumulation
) -> None:
    """Stream some environments of a layer: factors of their gradients if there are such, or gradients."""
    pair = factors(module, a, d)
    if pair is None:
        for key, values in RULES[type(module)](module, a, d).items():
            if key in names:
                votes.stack(names[key], values)
        return
    if "weight" in names:
        votes.products(names["weight"], *pair)
    if "bias" in names:
        votes.stack(names["bias"], pair[0].sum(1))


def _bytes_per_environment(module: nn.Module, a: Tensor) -> int:
    """Return the bytes of one environment's unfolded inputs or, if it is formed and larger, its gradient."""
    kernel = getattr(module, "kernel_size", ())
    inputs = a[0].numel() * a.element_size() * math.prod(kernel)
    if isinstance(module, nn.Linear):
        return inputs
    return max(inputs, *(p.numel() * p.element_size() for p in module.parameters(recurse=False)))


def _stream_fallback(model: nn.Module, chunk: Pass, size: int, names: list[str], votes: Accumulation) -> None:
    """Stream the parameters that no rule covers, by `vmap` of the whole model over environments.

    On a copy, because swapping weights in and out would break a module that has two names.
    """
    model = copy.deepcopy(model)
    state = dict(model.named_parameters()) | dict(model.named_buffers())
    constant = {name: tensor.detach() for name, tensor in state.items() if name not in names}
    wanted = {name: state[name].detach() for name in names}

    def environment_loss(weights: dict[str, Tensor], x: Any, y: Tensor) -> Tensor:
        output = functional_call(model, (constant, weights), *arguments(x))
        return chunk.loss.per_example(chunk.loss.logits(output), y).mean()

    each = vmap(grad(environment_loss), in_dims=(None, 0, 0), randomness="different")
    x, y = chunk.x.unflatten(0, (-1, size)), chunk.y.unflatten(0, (-1, size))
    largest = sum(tensor.numel() * tensor.element_size() for tensor in wanted.values())
    activations = size * bytes_per_example(model, chunk.x)
    piece = max(1, STACK_BYTES // max(largest, activations))
    for x_piece, y_piece in zip(x.split(piece), y.split(piece), strict=True):
        try:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", message="There is a performance drop")
                gradients = each(wanted, tree_of(x_piece), y_piece)
        except RuntimeError as error:
            raise ModelError(
                f"the parameters {', '.join(names[:3])} belong to layers without a rule, and vmap "
                f"cannot run the model ({str(error).splitlines()[0]}); register a rule with "
                "fedilc.gradients.register_rule, or set environment_size to None"
            ) from error
        for name, values in gradients.items():
            votes.stack(name, values)
