"""What a silo computes: gradients of environments, statistics, and local steps."""

from fedilc.gradients.computation import SiloComputation
from fedilc.gradients.logits_layer import logits_layer, require_logits
from fedilc.gradients.losses import Loss
from fedilc.gradients.rules import register_rule
from fedilc.gradients.validation import model_problems, require_supported
from fedilc.gradients.workbench import Workbench, find_device

__all__ = [
    "Loss",
    "SiloComputation",
    "Workbench",
    "find_device",
    "logits_layer",
    "model_problems",
    "register_rule",
    "require_logits",
    "require_supported",
]
