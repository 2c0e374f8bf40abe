"""Find the linear layer that gives the logits, which penalties on the classifier use.

It is read from autograd's graph of a forward pass, so that it does not depend on weights or examples: between
the layer's output and the model's output there may only be changes of shape.
"""

from __future__ import annotations

import re
from contextlib import ExitStack
from functools import partial

import torch
from torch import Tensor, nn
from torch.autograd.graph import Node

from fedilc.data.inputs import Inputs, call, mapped
from fedilc.errors import ModelError
from fedilc.gradients.forward import private_randomness
from fedilc.gradients.losses import Loss
from fedilc.gradients.model_support import set_training
from fedilc.models import find_classifier

_SAME_VALUES = re.compile(
    r"_?(View|UnsafeView|ReshapeAlias|Alias|Squeeze|Unsqueeze|Select|Slice|Clone|ToCopy)Backward\d*"
)
_CLAMP = re.compile(r"Clamp(Min|Max)?Backward\d*")
_PROBABILITIES = ("Sigmoid", "Hardsigmoid", "LogSigmoid", "Softmax", "LogSoftmax")


def require_logits(model: nn.Module, x: Inputs) -> None:
    """Raise if the model ends in probabilities, in training or in evaluation mode."""
    for training in (True, False):
        node = _trial(model, x, training)[0].grad_fn
        while node is not None and (_SAME_VALUES.fullmatch(node.name()) or _CLAMP.fullmatch(node.name())):
            node = node.next_functions[0][0]
        end = _operation(node)
        if end in _PROBABILITIES:
            name = end.replace("LogS", "log-s").lower()
            when = "" if training else " in evaluation mode"
            raise ModelError(
                f"the model ends in a {name}{when}; it must give logits, which the loss itself turns into "
                "probabilities: remove that last step"
            )


def logits_layer(model: nn.Module, loss: Loss, x: Inputs, name: str | None) -> str:
    """Return the name of the linear layer whose output is the model's, or a reshape of it.

    The closed forms of penalties hold for no other layer, so a name given must be that of such a layer.
    """
    if name is not None or not any(isinstance(module, nn.Linear) for module in model.modules()):
        find_classifier(model, name)
    output, linears = _trial(model, x, training=True)
    loss.logits(output)
    path: list[Node | None] = [output.grad_fn]
    while (node := path[-1]) is not None and _SAME_VALUES.fullmatch(node.name()):
        path.append(node.next_functions[0][0])
    direct = [key for key, (node, size) in linears.items() if node in path and size == output.numel()]
    if (name or next(iter(direct), None)) not in direct:
        layer = f"the linear layer {name!r} does not give" if name else "no linear layer gives"
        raise ModelError(
            f"{layer} the model's logits (the last operation is {_operation(path[-1])}), so that the "
            "penalty cannot be computed from it; let the model return the output of an nn.Linear "
            "as it is, or choose an algorithm without penalty"
        )
    chosen = name or direct[-1]
    weight = find_classifier(model, chosen)[1].weight
    if _uses(output.grad_fn, weight) > 1:
        raise ModelError(
            f"the weight of the classifier {chosen!r} is used elsewhere in the model too, so that the "
            "penalty cannot be computed from that layer alone; give the classifier a weight of its "
            "own, or choose an algorithm without penalty"
        )
    return chosen


def _trial(model: nn.Module, x: Inputs, training: bool) -> tuple[Tensor, dict[str, tuple[Node | None, int]]]:
    """Return the model's output with its graph, and per linear layer its output's last node and size.

    Inputs take part in the graph, so that frozen layers do too.
    """
    linears: dict[str, tuple[Node | None, int]] = {}

    def record(key: str, _: nn.Module, __: object, output: Tensor) -> None:
        linears[key] = output.grad_fn, output.numel()

    mode = model.training
    set_training(model, training)
    with ExitStack() as hooks:
        hooks.callback(set_training, model, mode)
        for key, module in model.named_modules():
            if type(module).forward is nn.Linear.forward and isinstance(module.weight, nn.Parameter):
                hooks.enter_context(module.register_forward_hook(partial(record, key), prepend=True))
        with torch.enable_grad(), private_randomness(x.device, 0):
            return call(model, mapped(_with_graph, x)), linears


def _with_graph(x: Tensor) -> Tensor:
    inputs = x.detach().clone()
    return inputs.requires_grad_().clone() if inputs.is_floating_point() else inputs


def _operation(node: Node | None) -> str:
    """Return the name of a node's forward operation, as torch calls it.

    >>> _operation(torch.ones(1, requires_grad=True).sigmoid().grad_fn)
    'Sigmoid'
    """
    return "none" if node is None else re.sub(r"^_|Backward\d*$", "", node.name())


def _uses(root: Node | None, parameter: Tensor) -> int:
    """Return how often a graph reads a parameter."""
    seen, waiting, uses = {root}, [root], 0
    while waiting:
        node = waiting.pop()
        for below, _ in node.next_functions if node is not None else ():
            uses += getattr(below, "variable", None) is parameter
            if below not in seen:
                seen.add(below)
                waiting.append(below)
    return uses
