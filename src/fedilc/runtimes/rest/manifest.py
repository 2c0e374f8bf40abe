"""What a coordinator tells every silo once, and what both hold to: the manifest of a run.

It is declarative. A silo builds the network from its own installation by name and sizes, and looks up the
algorithm's choices by name; nothing in a manifest is code, and nothing is imported because of it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any, Literal

import torch
from pydantic import Field, ValidationError
from torch import Tensor, nn

from fedilc.algorithms import Algorithm
from fedilc.assembly import make_task, weights_digest
from fedilc.config import Options
from fedilc.errors import ConfigError, ModelError, ProtocolError
from fedilc.federation import Task
from fedilc.models import build_model
from fedilc.sections import Section, validated

PROTOCOL = 1
DTYPES = {"float32": torch.float32, "float64": torch.float64, "float16": torch.float16}

Wire = Literal["exact", "float16"]


class ModelSpec(Section):
    """A built-in network by name and sizes; without a name, every silo brings the network itself."""

    name: str | None
    inputs: list[int]
    outputs: int
    sizes: dict[str, Any] = Field(default_factory=dict)

    def build(self) -> nn.Module:
        """The network; its weights come with the first task."""
        if self.name is None:
            raise ConfigError(
                "this run's network is not built in; bring it with --model my_module:build, as the "
                "coordinator's operator tells you"
            )
        return build_model(self.name, self.inputs, self.outputs, 0, **self.sizes)


class ParameterSpec(Section):
    """A parameter's shape and type."""

    shape: list[int]
    dtype: Literal["float32", "float64"]


class Choices(Section):
    """The algorithm's three choices, by name."""

    intra: str
    inter: str
    penalty: Literal["fishr"] | None


class Manifest(Section):
    """A run, as everybody in it knows it."""

    protocol: int = PROTOCOL
    run: str
    algorithm: str
    choices: Choices
    rounds: int
    loss: Literal["binary", "multiclass"]
    environment_size: int | None
    zeros: Literal["ignore", "strict", "authors"]
    agreement: float | None
    covariance: Literal["diagonal", "full"]
    fishr_reduction: Literal["mean", "sum"]
    classifier: str | None
    seed: int
    silos: list[str]
    model: ModelSpec
    columns: list[str] | None = Field(None, description="the inputs' columns in the silos' tables, in order")
    parameters: dict[str, ParameterSpec]
    weights: str = Field(description="fingerprint of the initial weights")
    wire: Wire = "exact"

    @property
    def hash(self) -> str:
        """What identifies the run: SHA-256 of the manifest in canonical JSON."""
        text = json.dumps(self.model_dump(mode="json"), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()

    @property
    def parameter_bytes(self) -> int:
        """How many bytes the parameters take."""
        return sum(like.numel() * like.element_size() for like in self.like().values())

    def like(self) -> dict[str, Tensor]:
        """Tensors without storage, of the parameters' shapes and types."""
        return {
            name: torch.empty(spec.shape, dtype=DTYPES[spec.dtype], device="meta")
            for name, spec in self.parameters.items()
        }

    def task(self) -> Task:
        """The settings of a silo's computation, each choice looked up by name."""
        own = {key: getattr(self, key) for key in Options.model_fields if key in Manifest.model_fields}
        options = validated(Options, {**own, "learning_rate": 1.0})
        return make_task(Algorithm(**self.choices.model_dump()), self.loss, options)

    def require_fits(self, model: nn.Module) -> None:
        """Raise where a silo's own network has other parameters than the run's."""
        ours = {name: p for name, p in model.named_parameters() if p.requires_grad}
        for name in sorted(set(ours) ^ set(self.parameters)):
            where = "the run has no" if name in ours else "the network lacks the"
            raise ModelError(f"{where} parameter {name!r}; use the network that this run was started with")
        for name, spec in self.parameters.items():
            dtype = str(ours[name].dtype).removeprefix("torch.")
            if list(ours[name].shape) != spec.shape or dtype != spec.dtype:
                raise ModelError(
                    f"parameter {name!r} is {dtype} of shape {list(ours[name].shape)} here and {spec.dtype} "
                    f"of shape {spec.shape} in the run; use the network that this run was started with"
                )


def make_manifest(
    run: str,
    name: str,
    task: Task,
    options: Options,
    silos: tuple[str, ...],
    model: nn.Module,
    spec: ModelSpec,
    wire: Wire = "exact",
    columns: list[str] | None = None,
) -> Manifest:
    """The manifest of a run that is about to begin."""
    choices = task.algorithm.intra or "whole", task.algorithm.inter
    if not all(isinstance(choice, str) for choice in choices):
        raise ConfigError(
            f"algorithm {name!r} aggregates with an object of one's own, which cannot travel; register it "
            "under a name in every silo's installation"
        )
    parameters = {
        key: {"shape": list(p.shape), "dtype": str(p.dtype).removeprefix("torch.")}
        for key, p in model.named_parameters()
        if p.requires_grad
    }
    own = {key: value for key, value in options.model_dump().items() if key in Manifest.model_fields}
    return validated(
        Manifest,
        own
        | {
            "run": run,
            "algorithm": name,
            "choices": {"intra": choices[0], "inter": choices[1], "penalty": task.algorithm.penalty},
            "loss": task.loss,
            "classifier": task.classifier,
            "silos": list(silos),
            "model": spec,
            "parameters": parameters,
            "weights": weights_digest(model),
            "wire": wire,
            "columns": columns,
        },
    )


def read_manifest(values: Mapping[str, Any]) -> Manifest:
    """A manifest as it came over the wire."""
    if values.get("protocol") != PROTOCOL:
        raise ProtocolError(
            f"the coordinator speaks protocol {values.get('protocol')!r} and this is protocol {PROTOCOL}; "
            "install the same version of fedilc on both sides"
        )
    try:
        return Manifest.model_validate(dict(values))
    except ValidationError as error:
        reason = error.errors()[0]["msg"]
        raise ProtocolError(f"the coordinator's manifest cannot be read: {reason}") from error
