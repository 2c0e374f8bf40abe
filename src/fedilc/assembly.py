"""Putting a run together from its settings: what silos must know, the server, the device, the facts."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fedilc.aggregation import Aggregator, aggregator_options, build_aggregator
from fedilc.algorithms import Algorithm
from fedilc.config import Options
from fedilc.data import LossName
from fedilc.data.fingerprint import digest
from fedilc.data.shelf import Shelf
from fedilc.errors import ConfigError
from fedilc.federation import Program, Runtime, Schedule, Server, Task
from fedilc.federation.outliers import NormBound
from fedilc.federation.silo_weights import make_weights
from fedilc.optimizers import RateSchedule, make_optimizer
from fedilc.penalties import build_penalty

_AGGREGATION = ("zeros", "agreement")


@dataclass(frozen=True)
class Outline:
    """What the side that trains knows of a federation: all of a local one, no example of a remote one.

    Args:
        name: how the federation is called.
        silos: the participants' names, in the order in which their replies are added up.
        sample: two inputs, or two of the same shape and type, to try the model on.
        loss: "binary" or "multiclass".
        facts: what identifies each silo's data, as far as it is known here.
        x_test: inputs of the out-of-distribution test set, if it is here.
        y_test: its labels.
        columns: the names of the inputs, in order, if they have names.
        label: what the labels are called, if that is known.
        validates: whether a silo holds out examples for validation; None if that is not known here.
    """

    name: str
    silos: tuple[str, ...]
    sample: Tensor
    loss: LossName
    facts: Mapping[str, Mapping[str, Any]]
    x_test: Tensor | None = None
    y_test: Tensor | None = None
    columns: tuple[str, ...] = ()
    label: str | None = None
    validates: bool | None = None

    @classmethod
    def of(cls, shelf: Shelf) -> Outline:
        """The outline of a federation whose silos can be opened here."""
        facts: dict[str, dict[str, Any]] = {name: {"examples": size} for name, size in shelf.sizes.items()}
        for name, fingerprint in shelf.fingerprints().items():
            facts[name]["digest"] = fingerprint
        test = shelf.x_test, shelf.y_test
        known = shelf.name, shelf.silos, shelf.sample, shelf.loss, facts
        return cls(*known, *test, shelf.columns, shelf.label, shelf.validates)

    def never_records(self, key: str) -> bool:
        """Whether no round can have this number, because there are no examples to compute it from."""
        missing = {"validation": self.validates is False, "test": self.x_test is None}
        return missing.get(key.partition("_")[0], False)


def make_task(algorithm: Algorithm, loss: LossName, options: Options) -> Task:
    """Return what silos must know of a run with these settings."""
    whole = algorithm.intra is None or algorithm.intra == "whole"
    penalty = None
    if algorithm.penalty is not None:
        penalty = build_penalty(algorithm.penalty, covariance=options.covariance)
    return Task(
        algorithm=algorithm,
        loss=loss,
        intra=None if whole or algorithm.intra is None else _aggregator(options, algorithm.intra),
        inter=_aggregator(options, algorithm.inter),
        penalty=penalty,
        environment_size=options.environment_size,
        reduction=options.fishr_reduction,
        classifier=options.classifier,
        seed=options.seed,
        max_norm=options.max_norm,
    )


def make_server(model: nn.Module, runtime: Runtime, program: Program, options: Options) -> Server:
    """Return a server that trains `model` itself, with these settings, over a runtime."""
    silos, algorithm = runtime.silos, program.task.algorithm
    if options.min_silos is not None and options.min_silos > len(silos):
        raise ConfigError(f"min_silos={options.min_silos} is more than the {len(silos)} silos there are")
    schedule = Schedule(options.penalty_weight, options.penalty_anneal_rounds, options.penalty_start)
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    rate = RateSchedule(
        options.learning_rate_schedule,
        options.rounds,
        options.warmup_rounds,
        options.decay_rounds,
        options.decay_factor,
    )
    return Server(
        model=model,
        optimizer=make_optimizer(
            algorithm.optimizer,
            trainable,
            options.learning_rate,
            options.weight_decay,
            algorithm.optimizer_options,
        ),
        runtime=runtime,
        program=program,
        silo_weights=make_weights(algorithm.weights, silos, options.weights_step, options.weights_power),
        schedule=schedule if program.task.penalty is not None else None,
        rate=rate,
        min_silos=options.min_silos,
        silos_per_round=options.silos_per_round,
        seed=options.seed,
        bound=NormBound(options.outlier_factor),
        max_norm=options.max_norm,
        on_divergence=options.on_divergence,
    )


def _aggregator(options: Options, choice: str | Aggregator) -> Aggregator:
    """The aggregator of one level, with those of the run's options that it takes."""
    known = aggregator_options(choice)
    return build_aggregator(
        choice, **{key: v for key, v in _given(options, *_AGGREGATION).items() if key in known}
    )


def _given(options: Options, *names: str) -> dict[str, Any]:
    """Return those of the named options that differ from their defaults."""
    defaults = {key: Options.model_fields[key].default for key in names}
    return {key: getattr(options, key) for key, value in defaults.items() if getattr(options, key) != value}


def unused_options(algorithm: Algorithm, options: Options) -> dict[str, Any]:
    """Return the options that were given and that no part of the algorithm takes.

    >>> from fedilc import algorithms
    >>> unused_options(algorithms.get("fedsgd"), Options(rounds=1, learning_rate=0.1, agreement=0.5))
    {'agreement': 0.5}
    """
    levels = (algorithm.inter, "mean" if algorithm.intra in (None, "whole") else algorithm.intra)
    known = {key for level in levels if level is not None for key in aggregator_options(level)}
    unused = {key: value for key, value in _given(options, *_AGGREGATION).items() if key not in known}
    if algorithm.local is None:
        unused |= _given(options, "batch_size", "local_learning_rate", "local_optimizer", "proximal")
    if algorithm.weights not in ("group-dro", "afl"):
        unused |= _given(options, "weights_step")
    if algorithm.weights != "q-ffl":
        unused |= _given(options, "weights_power")
    if options.learning_rate_schedule != "step":
        unused |= _given(options, "decay_rounds", "decay_factor")
    return unused


def find_device(name: str) -> torch.device:
    """The device of a name; "auto" is a GPU if there is one, and each rank of a machine has another."""
    if name == "auto" and not torch.cuda.is_available():
        return torch.device("cpu")
    if name in ("auto", "cuda") and torch.cuda.is_available():
        place = os.environ.get("LOCAL_RANK", os.environ.get("SLURM_LOCALID", "0"))
        return torch.device("cuda", int(place) % torch.cuda.device_count())
    if name.startswith("cuda:") and int(os.environ.get("LOCAL_WORLD_SIZE", "1")) > 1:
        raise ConfigError(f"device {name!r} is one GPU for all ranks of a machine; give 'cuda', for one each")
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).item()
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(f"device {name!r} cannot be used here: {reason}") from error
    return device


def data_facts(outline: Outline) -> dict[str, Any]:
    """Return what identifies the data of a run: digests of its silos and of its test set."""
    return {"silos": dict(outline.facts), "test": digest(outline.x_test, outline.y_test)}


def weights_digest(model: nn.Module) -> str:
    """A fingerprint of a model's weights."""
    return digest(*model.state_dict().values())
