"""What a silo computes: gradients of its environments, statistics, and local steps."""

from fedilc.gradients.computation import ModelRunner, SiloComputation, find_device
from fedilc.gradients.forward import logits_layer, require_logits
from fedilc.gradients.losses import Loss
from fedilc.gradients.per_example import register_rule
from fedilc.models.requirements import model_problems, require_supported

__all__ = [
    "Loss",
    "ModelRunner",
    "SiloComputation",
    "find_device",
    "logits_layer",
    "model_problems",
    "register_rule",
    "require_logits",
    "require_supported",
]
