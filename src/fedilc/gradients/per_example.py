"""Gradients of many environments from one forward and one backward pass, by layer rules.

A rule computes the gradients of all environments at once from a layer's inputs a and the gradients d at its
outputs; they are streamed into an aggregation. Layers without a rule go through `torch.func.vmap`.

`plan_layers` decides which layers use a rule, `stream_environments` computes, and the rules follow. In rules,
a and d have the shape (environments, examples, ...).
"""

from __future__ import annotations

import copy
import itertools
import math
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional

from fedilc.data.inputs import Inputs, arguments, call, tree_of
from fedilc.errors import ModelError
from fedilc.gradients.forward import Pass, Tap, bytes_per_example, private_randomness, tapped
from fedilc.gradients.losses import Loss

if TYPE_CHECKING:
    from fedilc.aggregation import Accumulation


Rule = Callable[[nn.Module, Tensor, Tensor], dict[str, Tensor]]
RULES: dict[type[nn.Module], Rule] = {}
LEAST_EXAMPLES = 16
STACK_BYTES = 32 << 20


@dataclass(frozen=True)
class Plan:
    """Which layers use a rule, which parameters these cover, and which parameters go through vmap."""

    tapped: dict[str, nn.Module]
    covered: frozenset[str]
    fallback: list[str]


def plan_layers(model: nn.Module, loss: Loss, x: Inputs, y: Tensor) -> Plan:
    """Choose how to compute the gradients of each trainable parameter, trying the rules on three examples.

    The trial runs on a copy with noise in its weights, so that it does not depend on the progress of
    training, and no gradient is zero by chance. A rule is used if it gives each example's own gradient.
    """
    trial = _with_noise(model)
    x, y = x[:3].clone(), y[:3]  # with a single example, a layer that mixes examples would go unnoticed
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
    # Examples do not mix, so that d of the sum of losses holds each example's own gradient, row by row. A
    # layer that is called twice is left to vmap, because its gradient is a sum over both calls.
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
    """Return the parameters of a layer if its rule gives every example's gradient of them, or else none."""
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


def _close(left: Tensor, right: Tensor) -> bool:
    """Return whether rows are equal to the precision of the dtype, relative to their norms."""
    # A wrong rule is wrong by about the whole norm; a right one differs by rounding, 1e-6 (bfloat16: 1e-2).
    tolerance = 1e-3 if left.dtype.itemsize >= 4 else 1e-1
    difference, size = (left - right).flatten(1).norm(dim=1), right.flatten(1).norm(dim=1)
    return bool((difference <= tolerance * size + torch.finfo(left.dtype).tiny).all())


def stream_environments(
    model: nn.Module, chunk: Pass, size: int, plan: Plan, votes: Accumulation, keep_graph: bool
) -> None:
    """Stream the mean gradient of each environment of `size` consecutive examples into `votes`."""
    losses = chunk.losses()
    environments = len(losses) // size
    shape = (environments, size)
    for tap, d in _output_gradients(losses.sum() / size, chunk.taps, keep_graph):
        # Autograd notices changes only of tensors that it saved itself, and a rule may need others.
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
    """Yield the gradient at each tap; a layer whose output is not used has none."""
    if taps:
        edges = [tap.edge for tap in taps]
        arrived = torch.autograd.grad(total, edges, retain_graph=keep_graph, allow_unused=True)
        yield from ((tap, d) for tap, d in zip(taps, arrived, strict=True) if d is not None)


def _stream_layer(tap: Tap, a: Tensor, d: Tensor, covered: frozenset[str], votes: Accumulation) -> None:
    """Stream one layer's environments: outer products and table rows directly, the rest in small pieces."""
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
    """Stream some environments of a layer: the factors of their gradients if it has them, or gradients."""
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
    """Return the bytes of one environment's unfolded inputs, or of its gradient if formed and larger."""
    kernel = getattr(module, "kernel_size", ())
    inputs = a[0].numel() * a.element_size() * math.prod(kernel)
    if isinstance(module, nn.Linear):
        return inputs
    return max(inputs, *(p.numel() * p.element_size() for p in module.parameters(recurse=False)))


def _stream_fallback(model: nn.Module, chunk: Pass, size: int, names: list[str], votes: Accumulation) -> None:
    """Stream the parameters that no rule covers, by `vmap` of the whole model over environments.

    It runs on a copy, because swapping weights in and out would break a module that has two names.
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
                f"the parameters {', '.join(names[:3])} belong to layers without a rule, and vmap cannot run "
                f"the model ({str(error).splitlines()[0]}); register a rule with "
                "fedilc.gradients.register_rule, or set environment_size to None"
            ) from error
        for name, values in gradients.items():
            votes.stack(name, values)


def _join(layer: str, parameter: str) -> str:
    return f"{layer}.{parameter}" if layer else parameter


def register_rule(*types: type[nn.Module]) -> Callable[[Rule], Rule]:
    """Register the decorated function as the rule of these layer types, but not of their subclasses."""

    def register(rule: Rule) -> Rule:
        RULES.update(dict.fromkeys(types, rule))
        return rule

    return register


@register_rule(nn.Linear)
def linear(module: nn.Module, a: Tensor, d: Tensor) -> dict[str, Tensor]:
    """Return the sum of d a^T over an environment's examples (and positions of a sequence)."""
    a, d = a.flatten(1, -2), d.flatten(1, -2)
    gradients = {"weight": d.transpose(1, 2) @ a}
    if module.bias is not None:
        gradients["bias"] = d.sum(1)
    return gradients


@register_rule(nn.Conv1d, nn.Conv2d)
def convolution(module: nn.Module, a: Tensor, d: Tensor) -> dict[str, Tensor]:
    """Return the gradients from torch's own backward for each environment or, for few examples, from patches.

    Unfolded into patches, the input of a convolution is that of a linear layer, and one batched product
    serves all environments. Torch's backward has no such batch, but needs no patches: from 16 examples per
    environment on it takes half the time.
    """
    assert isinstance(module, nn.Conv1d | nn.Conv2d)
    if a.shape[1] >= LEAST_EXAMPLES:
        found = [_backward(module, *one) for one in zip(a, d, strict=True)]
        names = ("weight", "bias") if module.bias is not None else ("weight",)
        return {
            name: torch.stack(values) for name, values in zip(names, zip(*found, strict=True), strict=False)
        }
    environments, groups = len(a), module.groups
    patches = _patches(module, a).unflatten(2, (groups, -1)).transpose(1, 2)
    d = d.flatten(3).transpose(1, 2).flatten(2).unflatten(1, (groups, -1))
    weight = (d @ patches).reshape(environments, *module.weight.shape)
    gradients = {"weight": weight}
    if module.bias is not None:
        gradients["bias"] = d.sum(3).flatten(1)
    return gradients


def factors(module: nn.Module, a: Tensor, d: Tensor) -> tuple[Tensor, Tensor] | None:
    """Return (environments, examples, ...) matrices such that left_e^T right_e is the weight's gradient.

    The gradient of the bias is then the sum of left_e over examples. None if the rule has no such factors.
    """
    if isinstance(module, nn.Linear):
        return d.flatten(1, -2), a.flatten(1, -2)
    if isinstance(module, nn.Conv1d | nn.Conv2d) and module.groups == 1 and a.shape[1] < LEAST_EXAMPLES:
        return d.flatten(3).transpose(2, 3).flatten(1, 2), _patches(module, a)
    return None


def _backward(module: nn.Conv1d | nn.Conv2d, a: Tensor, d: Tensor) -> tuple[Tensor, Tensor]:
    """Return the gradient of weight and bias over the examples of one environment."""
    padding: tuple[int, ...] = (0,) * len(module.stride)
    if module.padding_mode == "zeros" and not isinstance(module.padding, str):
        padding = module.padding
    else:
        a = _padded(module, a)
    sizes = (module.stride, padding, module.dilation, False, (0,) * len(module.stride), module.groups)
    wanted = (False, True, module.bias is not None)
    weights = (module.weight, [module.out_channels])
    _, weight, bias = torch.ops.aten.convolution_backward(d, a, *weights, *sizes, wanted)
    return weight, bias


def _padded(module: nn.Conv1d | nn.Conv2d, x: Tensor) -> Tensor:
    sides = [(0, 0)] * len(module.stride)
    if module.padding == "same":
        added = [d * (k - 1) for d, k in zip(module.dilation, module.kernel_size, strict=True)]
        sides = [(total // 2, total - total // 2) for total in added]
    elif not isinstance(module.padding, str):
        sides = [(size, size) for size in module.padding]
    padding = [size for pair in reversed(sides) for size in pair]  # the last axis comes first
    mode = module.padding_mode if module.padding_mode != "zeros" else "constant"
    return functional.pad(x, padding, mode=mode) if any(padding) else x


def _patches(module: nn.Conv1d | nn.Conv2d, a: Tensor) -> Tensor:
    """Return the padded inputs as (environments, examples * positions, channels * kernel).

    Each place of the kernel is one strided copy, several times as fast as `functional.unfold`, which
    has positions last and wants contiguous inputs.
    """
    x = _padded(module, a.flatten(0, 1)).movedim(1, -1)
    spans = list(zip(x.shape[1:-1], module.kernel_size, module.dilation, module.stride, strict=True))
    positions = [
        (size - dilation * (kernel - 1) - 1) // stride + 1 for size, kernel, dilation, stride in spans
    ]
    places = list(itertools.product(*map(range, module.kernel_size)))
    patches = x.new_empty(len(x), *positions, x.shape[-1], len(places))
    for number, place in enumerate(places):
        window = [
            slice(dilation * offset, dilation * offset + stride * (count - 1) + 1, stride)
            for offset, count, (_, _, dilation, stride) in zip(place, positions, spans, strict=True)
        ]
        patches[..., number] = x[(slice(None), *window)]
    return patches.view(len(a), -1, x.shape[-1] * len(places))


@register_rule(nn.LayerNorm)
def layer_norm(module: nn.Module, a: Tensor, d: Tensor) -> dict[str, Tensor]:
    """Return d times the normalised input (weight) and d (bias), summed over examples and positions."""
    assert isinstance(module, nn.LayerNorm)
    shape = module.normalized_shape
    normal = functional.layer_norm(a, shape, None, None, module.eps)
    return _affine(module, normal, d, tuple(range(1, a.dim() - len(shape))))


@register_rule(nn.GroupNorm)
def group_norm(module: nn.Module, a: Tensor, d: Tensor) -> dict[str, Tensor]:
    """Return the gradients as for LayerNorm, with the channel axis kept."""
    assert isinstance(module, nn.GroupNorm)
    flat = functional.group_norm(a.flatten(0, 1), module.num_groups, None, None, module.eps)
    return _affine(module, flat.view_as(a), d, (1, *range(3, a.dim())))


def _affine(module: nn.Module, normal: Tensor, d: Tensor, axes: tuple[int, ...]) -> dict[str, Tensor]:
    gradients = {"weight": (d * normal).sum(axes)}
    if module.bias is not None:
        gradients["bias"] = d.sum(axes)
    return gradients


@register_rule(nn.Embedding)
def embedding(module: nn.Module, a: Tensor, d: Tensor) -> dict[str, Tensor]:
    """Return the dense gradient, one table per environment; `embedding_rows` is used for streaming."""
    assert isinstance(module, nn.Embedding)
    environment, index, rows = embedding_rows(module, a, d)
    table = d.new_zeros(len(a) * module.num_embeddings, module.embedding_dim)
    table.index_add_(0, environment * module.num_embeddings + index, rows)
    return {"weight": table.unflatten(0, (len(a), -1))}


def embedding_rows(module: nn.Embedding, a: Tensor, d: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the non-zero rows of all environments' gradients: environment, table row, and gradient."""
    environments = torch.arange(len(a), device=a.device).view(-1, *[1] * (a.dim() - 1))
    keys = (environments * module.num_embeddings + a).flatten()
    rows = d.reshape(-1, module.embedding_dim)
    if module.padding_idx is not None:
        kept = (a != module.padding_idx).flatten()
        keys, rows = keys[kept], rows[kept]
    unique, place = torch.unique(keys, return_inverse=True)
    summed = rows.new_zeros(len(unique), rows.shape[1]).index_add_(0, place, rows)
    return unique // module.num_embeddings, unique % module.num_embeddings, summed
