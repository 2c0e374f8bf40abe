"""Layer rules: the gradient of every environment at once, from a layer's inputs and output gradients.

A rule gets `a`, the layer's inputs, and `d`, the loss's gradients at its outputs, both shaped
(environments, examples per environment, ...), and returns {parameter: (environments, *shape)}.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

Rule = Callable[[nn.Module, Tensor, Tensor], dict[str, Tensor]]
RULES: dict[type[nn.Module], Rule] = {}
LEAST_EXAMPLES = 16


def register_rule(*types: type[nn.Module]) -> Callable[[Rule], Rule]:
    """Make a function the rule of these layer types (exactly, not of their subclasses)."""

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
    """Take the gradient of each environment from torch's own backward or, for few examples, from patches.

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
    """Return (environments, examples, ...) matrices of which left_e^T right_e is the weight's gradient.

    The bias's gradient is then the sum of left_e over examples. None if a rule finds them in another way.
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
    """Return the dense form, one table per environment; `embedding_rows` is the one that streams."""
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
