"""List every reason why a model cannot be trained, each with its fix."""

from __future__ import annotations

from torch import nn

from fedilc.errors import ModelError

_BATCH_NORMS = (nn.modules.batchnorm._BatchNorm,)


def model_problems(model: nn.Module, environments: bool = False) -> list[str]:
    """Return one line per unsupported module, with its name and what to use instead.

    Args:
        model: the network.
        environments: whether gradients of single environments are needed (an `intra` aggregation).

    >>> model_problems(nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)))
    ["'1' (BatchNorm2d) mixes the examples of a batch; use nn.GroupNorm(8, 8) instead, or freeze it with \
its statistics by .eval() and .requires_grad_(False)"]
    """
    problems = []
    for name, module in model.named_modules():
        problem = _problem(module, environments)
        if problem:
            problems.append(f"{name or 'the model'!r} ({type(module).__name__}) {problem}")
    if not problems and not any(p.requires_grad for p in model.parameters()):
        problems.append("the model has no trainable parameter; set requires_grad on some")
    return problems


def is_frozen(module: nn.Module) -> bool:
    """Return whether this is batch normalisation whose statistics and weights stay fixed.

    It is then a fixed scale and shift of each example, which does not mix examples.
    """
    return (
        isinstance(module, _BATCH_NORMS)
        and not module.training
        and module.running_mean is not None
        and not any(parameter.requires_grad for parameter in module.parameters())
    )


def set_training(model: nn.Module, training: bool) -> nn.Module:
    """Put a model into training or evaluation mode; frozen batch normalisation stays frozen."""
    frozen = [module for module in model.modules() if is_frozen(module)]
    model.train(training)
    for module in frozen:
        module.eval()
    return model


def require_supported(model: nn.Module, environments: bool = False) -> None:
    """Raise one error that lists every problem of the model."""
    problems = model_problems(model, environments)
    if problems:
        raise ModelError(f"the model cannot be trained: {'; '.join(problems)}")


def _problem(module: nn.Module, environments: bool) -> str | None:
    if isinstance(module, nn.modules.lazy.LazyModuleMixin) and module.has_uninitialized_params():
        return "has no shape yet; call the model once on an example first"
    if isinstance(module, _BATCH_NORMS) and not is_frozen(module):
        groups = next(g for g in (8, 4, 2, 1) if module.num_features % g == 0)
        frozen = ", or freeze it with its statistics by .eval() and .requires_grad_(False)"
        return (
            f"mixes the examples of a batch; use nn.GroupNorm({groups}, {module.num_features}) instead"
            f"{frozen if module.running_mean is not None else ''}"
        )
    if isinstance(module, nn.modules.instancenorm._InstanceNorm) and module.track_running_stats:
        return "keeps running statistics; set track_running_stats=False"
    if isinstance(module, nn.Embedding | nn.EmbeddingBag):
        if module.max_norm is not None:
            return "rewrites its weights in the forward pass; set max_norm=None"
        if module.sparse:
            return "gives sparse gradients; set sparse=False"
    if environments and isinstance(module, nn.RNNBase):
        return (
            "has no gradient rule for single environments; set environment_size to None, or write "
            "the recurrence with nn.Linear"
        )
    return None
