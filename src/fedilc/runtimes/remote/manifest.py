"""The manifest of a run, which the coordinator sends to every silo once.

It is declarative. A silo builds the network from its own installation by name and sizes, and finds the
algorithm's parts by name; a manifest holds no code, and nothing is imported because of it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

import torch
from pydantic import (
    BaseModel,
    Field,
    PlainSerializer,
    PlainValidator,
    PositiveInt,
    SerializerFunctionWrapHandler,
    ValidationError,
    model_serializer,
    model_validator,
)
from torch import Tensor, nn

from fedilc.algorithms import Algorithm
from fedilc.algorithms.loss_registry import LossName
from fedilc.algorithms.parts import LEVELS
from fedilc.config.experiment import Network
from fedilc.config.options import SiloOptions
from fedilc.data.digests import tensors_digest, weights_digest
from fedilc.data.inputs import shape_of, sizes_of
from fedilc.errors import ConfigError, ModelError, ProtocolError
from fedilc.federation import Program
from fedilc.models import build_model
from fedilc.privacy.words import require_summable
from fedilc.section import Section, validated
from fedilc.storage.files import json_digest, parse_json

PROTOCOL = 5
MAX_NUMBERS = 2**31
MAX_NAME = 500

_NEWER = ("metrics", "secure", "roster", "members", "sum_unit", "sum_limit")

Wire = Literal["exact", "float16"]
Width = Annotated[int, Field(ge=0, le=MAX_NUMBERS)]
Name = Annotated[str, Field(max_length=MAX_NAME)]
Sizes = Annotated[list[PositiveInt], Field(max_length=8)]


def find_wire(name: str) -> Wire:
    """Return the form in which tensors are sent, by name.

    >>> find_wire("float16")
    'float16'
    """
    known: dict[str, Wire] = {"exact": "exact", "float16": "float16"}
    if name in known:
        return known[name]
    raise ConfigError(f"wire={name!r} is unknown; choose exact or float16")


class ModelSpec(Section):
    """A built-in network by name and sizes; without a name, every silo has its own copy of the network."""

    name: str | None
    inputs: Sizes | dict[Name, Sizes] | list[Sizes] = Field(max_length=100)
    outputs: PositiveInt
    sizes: dict[Name, Annotated[list[PositiveInt], Field(max_length=1000)]] = Field(
        default_factory=dict, max_length=10
    )

    @property
    def numbers(self) -> int:
        """Return about how many parameters the network has, estimated from its widths."""
        width = sum(math.prod(sizes) for sizes in sizes_of(self.inputs))
        chains = [[width, *sizes, self.outputs] for sizes in ([], *self.sizes.values())]
        return max(sum(narrow * wide for narrow, wide in pairwise(widths)) for widths in chains)

    def build(self) -> nn.Module:
        """Return the network; its weights come with the first task."""
        if self.name is None:
            raise ConfigError(
                "this run's network is not built in; ask the coordinator's operator for it, and name it with "
                "`model=my_module:build` or, under NVIDIA FLARE, as model in fedilc.json"
            )
        return build_model(self.name, self.inputs, self.outputs, 0, **self.sizes)


class ParameterSpec(Section):
    """A parameter's shape and type."""

    shape: list[Width] = Field(max_length=8)
    dtype: Literal["float32", "float64"]


def _read_choices(choices: Any) -> Algorithm:
    """Return the algorithm of silos from its description; raise if that is not valid."""
    if isinstance(choices, Algorithm):
        return choices
    if not isinstance(choices, Mapping) or set(choices) != {*LEVELS, "update", "silo_weights"}:
        raise ValueError(f"its choices are not {', '.join(LEVELS)}, update and silo_weights")
    for level in LEVELS:
        part = choices[level]
        name = part.get("name") if isinstance(part, Mapping) else None
        if not (part is None and level != "inter") and (not isinstance(name, str) or len(name) > MAX_NAME):
            raise ValueError(f"its {level} is not a part by name, with its options")
    try:
        return Algorithm.described(choices)
    except TypeError as error:
        raise ValueError("its choices cannot be read") from error


# The algorithm with what silos must know of it; as JSON, each part is its name and options, as in run.json.
if TYPE_CHECKING:
    from fedilc.training.loop import Specification

    Choices = Algorithm
else:  # pydantic would look for a schema of the annotations of `Algorithm`, some of which need torch
    Choices = Annotated[Any, PlainValidator(_read_choices), PlainSerializer(Algorithm.describe_for_silos)]


class Manifest(SiloOptions):
    """A run as the coordinator and all its silos know it."""

    protocol: int = PROTOCOL
    run: Name
    algorithm: Name
    choices: Choices
    rounds: int
    loss: LossName
    silos: list[Name] = Field(max_length=100_000)
    model: ModelSpec
    columns: list[str] | None = Field(None, description="the inputs' columns in the silos' tables, in order")
    preprocessing: dict[str, Any] | None = Field(None, description="how inputs are made of a silo's table")
    parameters: dict[Name, ParameterSpec] = Field(min_length=1, max_length=10_000)
    statistic: list[Width] | None = Field(None, description="the shape of s_e, if silos match something")
    steps: dict[Name, Any] = Field(description="what each step of a round sends and asks for")
    weights: str = Field(description="digest of the initial weights")
    fixed: str = Field(description="digest of what is not trained: buffers and frozen parameters")
    wire: Wire = "exact"
    roster: Name | None = Field(None, description="digest of the silos' public keys, for secure sums")
    members: int | None = Field(None, description="how many silos a secure sum needs at least")

    @model_validator(mode="after")
    def _limit_size(self) -> Manifest:
        """Refuse a network that is too large, before it is built."""
        if max(self.numbers, self.model.numbers) > MAX_NUMBERS:
            raise ValueError("its network is larger than any silo can hold")
        return self

    @model_serializer(mode="wrap")
    def _without_absent(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out newer settings that are not used, so that a run has the identity that it had before."""
        values: dict[str, Any] = dump(self)
        return {key: value for key, value in values.items() if key not in _NEWER or value is not None}

    @property
    def numbers(self) -> int:
        """Return how many numbers the parameters and s_e have together."""
        shapes = [*(spec.shape for spec in self.parameters.values()), self.statistic or [0]]
        return sum(math.prod(shape) for shape in shapes)

    @property
    def fewest(self) -> int:
        """Return how many silos a secure sum needs at least."""
        return self.members or len(self.silos)

    def require_at_most(self, max_parameters: int) -> None:
        """Raise if the run's network is larger than a silo allows."""
        numbers = max(self.numbers, self.model.numbers if self.model.name is not None else 0)
        if numbers > max_parameters:
            raise ConfigError(
                f"the run's network has {numbers:,} parameters, but this silo allows {max_parameters:,}; "
                "if this is the right run, raise `max_parameters`"
            )

    @cached_property
    def hash(self) -> str:
        """Return the run's identity: the SHA-256 of the manifest in canonical JSON."""
        return json_digest(self.model_dump(mode="json"))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Manifest) and self.hash == other.hash

    @cached_property
    def like(self) -> dict[str, Tensor]:
        """Return tensors without storage that have the parameters' shapes and types."""
        return {
            name: torch.empty(spec.shape, dtype=getattr(torch, spec.dtype), device="meta")
            for name, spec in self.parameters.items()
        }

    @cached_property
    def program(self) -> Program:
        """Return the steps of a round, with the algorithm's parts found by name in this installation."""
        statistic = None
        if self.choices.penalty is not None:
            dtype = next(iter(self.like.values())).dtype
            statistic = torch.empty(self.statistic or [0], dtype=dtype, device="meta")
        return Program(self.choices, self.loss, self, self.classifier, self.like, statistic)

    def require_same_steps(self) -> None:
        """Raise if the coordinator's steps are not those of this installation, or reveal what sums hide."""
        if self.secure:
            require_summable(self.program, len(self.silos))
        if describe_steps(self.program) != self.steps:
            raise ProtocolError(
                "the coordinator's steps differ from those of this installation; install the same version of "
                "fedilc, and of your own code, on both sides"
            )

    def require_fits(self, model: nn.Module) -> None:
        """Raise if a silo's network has other parameters than the run's."""
        own = {name: p for name, p in model.named_parameters() if p.requires_grad}
        for name in sorted(set(own) ^ set(self.parameters)):
            where = "the run has no" if name in own else "the network lacks the"
            raise ModelError(f"{where} parameter {name!r}; use the network that this run was started with")
        for name, spec in self.parameters.items():
            here = _shape_and_dtype(own[name])
            if here != spec.model_dump():
                raise ModelError(
                    f"parameter {name!r} is {here['dtype']} of shape {here['shape']} here, but {spec.dtype} "
                    f"of shape {spec.shape} in the run; use the network that this run was started with"
                )
        if _fixed_digest(model) != self.fixed:
            raise ModelError(
                "the network's buffers or frozen parameters differ from the run's, and they are never sent; "
                "give every silo and the coordinator the same values"
            )


def describe_steps(program: Program) -> dict[str, Any]:
    """Return what each step sends and asks for; the manifest lists the parameters once, elsewhere."""
    return {name: step.describe(program.weights) for name, step in sorted(program.steps.items())}


def make_manifest(
    run: str, spec: Specification, network: Network | None, wire: Wire = "exact", roster: str | None = None
) -> Manifest:
    """Return the manifest of a run that is about to begin; without `network`, silos have their own copy."""
    program, model, made = spec.program, spec.model, spec.outline.preprocessing
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    return validated(
        Manifest,
        spec.options.model_dump(include=set(SiloOptions.model_fields))
        | {
            "run": run,
            "algorithm": spec.name,
            "choices": program.algorithm,
            "rounds": spec.options.rounds,
            "loss": program.loss,
            "classifier": program.classifier,
            "silos": list(spec.outline.silos),
            "model": {
                "name": None if network is None else network.name,
                "inputs": shape_of(spec.outline.sample),
                "outputs": spec.outputs,
                "sizes": {} if network is None else network.sizes,
            },
            "parameters": {name: _shape_and_dtype(p) for name, p in trained.items()},
            "statistic": None if program.statistic is None else list(program.statistic.shape),
            "steps": describe_steps(program),
            "weights": weights_digest(model),
            "fixed": _fixed_digest(model),
            "wire": wire,
            "roster": roster,
            "members": spec.options.quorum(len(spec.outline.silos)) if spec.options.secure else None,
            "columns": list(spec.outline.columns) or None,
            "preprocessing": None if made is None else made.model_dump(mode="json"),
        },
    )


def _shape_and_dtype(tensor: Tensor) -> dict[str, Any]:
    return {"shape": list(tensor.shape), "dtype": str(tensor.dtype).removeprefix("torch.")}


def _fixed_digest(model: nn.Module) -> str:
    """Return a digest of buffers and frozen parameters, which are never sent."""
    frozen = {name: p for name, p in model.named_parameters() if not p.requires_grad}
    return tensors_digest(frozen | dict(model.named_buffers()))


Model = TypeVar("Model", bound=BaseModel)


def read_received(kind: type[Model], values: Any, what: str) -> Model:
    """Return a validated object that came over the network; `what` names it in the error."""
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        why = first.get("ctx", {}).get("error")
        if isinstance(why, ConfigError):  # it is well formed, and this installation cannot do what it asks
            raise why from error
        raise ProtocolError(f"{what} cannot be read: {first['msg']}") from error


def require_silo(silo: str, run: str, silos: Sequence[str]) -> None:
    """Raise if a run has no silo of that name."""
    if silo not in silos:
        raise ConfigError(f"the run {run!r} has no silo {silo!r}; its silos are {', '.join(silos)}")


def read_manifest(received: Any) -> Manifest:
    """Return a manifest that came over the network, as JSON or as its values; raise if it is not valid."""
    try:
        values = parse_json(received) if isinstance(received, str | bytes) else received
    except ValueError as error:
        raise ProtocolError(f"the coordinator's manifest is not JSON: {error}") from error
    if not isinstance(values, Mapping):
        raise ProtocolError("the coordinator's manifest is not an object")
    if values.get("protocol") != PROTOCOL:
        raise ProtocolError(
            f"the coordinator uses protocol {values.get('protocol')!r}, but this silo uses protocol "
            f"{PROTOCOL}; install the same version of fedilc on both sides"
        )
    return read_received(Manifest, dict(values), "the coordinator's manifest")
