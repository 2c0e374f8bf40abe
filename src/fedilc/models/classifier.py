"""How any torch module names its classifier."""

from __future__ import annotations

from torch import nn

from fedilc.errors import ModelError, nearest


def find_classifier(model: nn.Module, name: str | None = None) -> tuple[str, nn.Linear]:
    """Return the classifier, whose gradient variance Fishr matches: the last `nn.Linear`, unless named.

    >>> find_classifier(nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 1)))[0]
    '2'
    """
    linears = {key: module for key, module in model.named_modules() if isinstance(module, nn.Linear)}
    if not linears:
        raise ModelError("the model has no nn.Linear to serve as its classifier; end it with one")
    if name is None:
        name = list(linears)[-1]
    if name not in linears:
        raise ModelError(f"the model has no linear layer {name!r}{nearest(name, linears)}")
    return name, linears[name]
