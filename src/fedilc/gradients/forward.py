"""Forward passes with what the backward pass needs, and the search for the layer that gives the logits.

`Pass` is the forward pass of one chunk; `tapped` and `classifier_input` record it. `require_logits` and
`logits_layer` look at the graph of a trial run.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.autograd.graph import Node

from fedilc.data.inputs import Inputs, call, mapped, tensors_of
from fedilc.errors import ModelError
from fedilc.gradients.losses import Loss
from fedilc.models import find_classifier
from fedilc.models.requirements import set_training

CHUNK_BYTES = 64 << 20
KEPT_BYTES = 640 << 20
_SAME_VALUES = re.compile(
    r"_?(View|UnsafeView|ReshapeAlias|Alias|Squeeze|Unsqueeze|Select|Slice|Clone|ToCopy)Backward\d*"
)
_CLAMP = re.compile(r"Clamp(Min|Max)?Backward\d*")
_PROBABILITIES = ("Sigmoid", "Hardsigmoid", "LogSigmoid", "Softmax", "LogSoftmax")
# Where a backward pass begins: tensors with a graph, each with the gradient that it begins with.
BackwardStarts = list[tuple[Tensor, Tensor]]


@dataclass
class Pass:
    """One chunk's forward pass: logits and classifier inputs with their graph, and the given taps.

    It also holds what computations on it need: the loss, the trainable parameters, the layer of the logits.
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

    def logit_gradient(self) -> Tensor:
        """Return delta, the gradient of each example's loss at its logits."""
        return self.loss.logit_gradient(self.logits, self.y)

    @property
    def lead(self) -> torch.Size:
        """Return the dimensions before those of one model: none, or (models,) in a stack."""
        return torch.Size(())

    def only_features(self) -> Tensor:
        """Return the classifier's input; raise if the formula of a penalty does not apply to it."""
        calls = len(self.features)
        if calls != 1 or self.features[0].dim() != 2:
            what = f"was called {calls} times" if calls != 1 else "is applied to sequences"
            raise ModelError(
                f"the classifier {self.classifier_name!r} {what}; the penalty needs a linear layer that is "
                "applied once to one feature vector per example: name it with classifier=..., or pool "
                "before it"
            )
        return self.features[0]


@dataclass
class Tap:
    """A layer's input in a forward pass, and the edge of the graph at which its output's gradient arrives."""

    name: str
    module: nn.Module
    inputs: Tensor
    version: int
    edge: torch.autograd.graph.GradientEdge


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
    """Return an estimate of the memory per example of a forward pass that keeps its graph, in bytes."""
    known = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    sizes: dict[int, int] = {}
    kept: list[Tensor] = []

    def measure(tensor: Tensor) -> Tensor:
        place = tensor.untyped_storage().data_ptr()
        if place not in known:
            sizes[place] = max(sizes.get(place, 0), tensor.numel() * tensor.element_size())
            kept.append(tensor)  # so that its address is not reused by another tensor
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

    The closed forms of penalties hold for no other layer, so `name`, if given, must be such a layer.
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
            f"{layer} the model's logits (the last operation is {_operation(path[-1])}), so the penalty "
            "cannot be computed from it; let the model return the output of an nn.Linear as it is, or "
            "choose an algorithm without a penalty"
        )
    chosen = name or direct[-1]
    weight = find_classifier(model, chosen)[1].weight
    if _uses(output.grad_fn, weight) > 1:
        raise ModelError(
            f"the weight of the classifier {chosen!r} is also used elsewhere in the model, so the penalty "
            "cannot be computed from that layer alone; give the classifier its own weight, or choose an "
            "algorithm without a penalty"
        )
    return chosen


def _trial(model: nn.Module, x: Inputs, training: bool) -> tuple[Tensor, dict[str, tuple[Node | None, int]]]:
    """Return the model's output with its graph, and the last node and the size of each linear layer's output.

    Inputs are part of the graph, so that frozen layers are too.
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
