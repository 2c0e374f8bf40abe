"""What a silo computes: gradients of environments, statistics, and local steps."""

from fedilc.gradients.computation import SiloComputation
from fedilc.gradients.logits_layer import logits_layer, require_logits
from fedilc.gradients.losses import Loss
from fedilc.gradients.model_runner import ModelRunner, find_device
from fedilc.gradients.model_support import model_problems, require_supported
from fedilc.gradients.rules import register_rule

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
