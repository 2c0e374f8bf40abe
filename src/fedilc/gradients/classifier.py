"""Which linear layer gives the logits: the one whose gradient variance Fishr matches."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fedilc.errors import ModelError
from fedilc.gradients.losses import Loss
from fedilc.gradients.variance import Covariance
from fedilc.models import find_classifier


@torch.no_grad()
def logits_layer(model: nn.Module, loss: Loss, x: Tensor, name: str | None) -> str:
    """The name of the linear layer whose output is the model's, tried on an example.

    Fishr's closed form holds for no other layer, so a name given must be that of such a layer.
    """
    outputs: dict[str, Tensor] = {}
    handles = []
    for key, module in model.named_modules():
        if isinstance(module, nn.Linear):

            def record(_: nn.Module, __: object, output: Tensor, key: str = key) -> None:
                outputs.pop(key, None)
                outputs[key] = output.clone()

            handles.append(module.register_forward_hook(record))
    if name is not None or not handles:
        find_classifier(model, name)
    mode = model.training
    try:
        logits = loss.logits(model.eval()(x.clone()))
    finally:
        model.train(mode)
        for handle in handles:
            handle.remove()
    direct = [key for key, output in outputs.items() if _same(output, logits)]
    if name is None and direct:
        return direct[-1]
    if name is None or name not in direct:
        layer = f"the linear layer {name!r} does not give" if name else "no linear layer gives"
        raise ModelError(
            f"{layer} the model's logits, so that Fishr's gradient variance cannot be computed from it; "
            "let the model return the output of an nn.Linear as it is, or choose an algorithm without penalty"
        )
    return name


def _same(output: Tensor, logits: Tensor) -> bool:
    return output.numel() == logits.numel() and torch.equal(output.reshape(logits.shape), logits)


def variance_like(model: nn.Module, classifier: str, covariance: Covariance) -> Tensor:
    """A tensor of the shape and type of C_e: a number for each parameter of the classifier, or pair."""
    _, layer = find_classifier(model, classifier)
    size = sum(parameter.numel() for parameter in layer.parameters())
    return layer.weight.new_zeros((size, size) if covariance == "full" else (size,))
