"""The built-in networks, and how any torch module names its classifier."""

from fedilc.models.networks import (
    MODELS,
    build_model,
    cnn,
    eicu_mlp,
    find_classifier,
    input_hint,
    linear,
    mlp,
)

__all__ = ["MODELS", "build_model", "cnn", "eicu_mlp", "find_classifier", "input_hint", "linear", "mlp"]
