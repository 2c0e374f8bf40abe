"""What a silo computes: gradients of environments, and Fishr's variance with its product."""

from fedilc.gradients.classifier import logits_layer, require_logits, variance_like
from fedilc.gradients.losses import Loss
from fedilc.gradients.rules import register_rule
from fedilc.gradients.silo import Computed, SiloComputation, Workbench
from fedilc.gradients.validation import model_problems, require_supported
from fedilc.gradients.variance import Covariance

__all__ = [
    "Computed",
    "Covariance",
    "Loss",
    "SiloComputation",
    "Workbench",
    "logits_layer",
    "model_problems",
    "register_rule",
    "require_logits",
    "require_supported",
    "variance_like",
]
