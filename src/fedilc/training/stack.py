"""Train many models in lockstep: runs of one shape that differ in seed, settings or silos.

`stack_key` says which runs can be trained together, from the runs alone; `train_stack` trains them. One step
from the same weights is that of the single run up to rounding; the bits of a result are those of its stack.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from fedilc.algorithms import Algorithm, find_algorithm
from fedilc.algorithms.parts import LEVELS, OPTIMIZERS
from fedilc.config import Options
from fedilc.data import Federation
from fedilc.data.silo_store import SiloStore
from fedilc.errors import ConfigError, ModelError
from fedilc.federation import Record
from fedilc.federation.stacked_client import Examples, StackedClient
from fedilc.federation.stacked_server import Member, StackedServer, optimizer_key
from fedilc.federation.step_sums import make_weights
from fedilc.gradients import find_device
from fedilc.gradients.newton import prepared_for_newton
from fedilc.gradients.perceptron import Perceptron
from fedilc.gradients.stacked import StackedNetwork
from fedilc.section import validated
from fedilc.training.loop import Specification

# What may differ between the runs of a stack; all other settings are alike.
_FREE = {
    *("rounds", "learning_rate", "weight_decay", "penalty_weight", "seed", "optimizer_options", "metrics"),
    *("learning_rate_schedule", "warmup_rounds", "decay_rounds", "decay_factor"),
    *("average", "average_decay", "average_share", "outlier_factor", "evaluate_every", "thresholded_batch"),
}
# A run with one of these is trained alone.
_NEVER = ("balance", "silos_per_round", "min_silos", "classifier", "secure", "sum_unit")


@dataclass(frozen=True, eq=False)
class StackedRun:
    """One run, as `train` takes it: silos, the model with its first weights, the algorithm, and options."""

    federation: Federation
    model: nn.Module
    algorithm: str | Algorithm
    settings: Mapping[str, Any]

    @property
    def options(self) -> Options:
        """Return the settings as validated options."""
        return validated(Options, dict(self.settings))


@dataclass
class Trained:
    """The result of a run: a trained copy of its model, a record per round, and why it failed, if it did."""

    model: nn.Module
    history: list[Record] = field(default_factory=list)
    failed: str | None = None


@dataclass
class Moment:
    """The models of a stack after a round.

    Attributes:
        round: the number of the round.
        places: which of the runs took part in the round and have not failed.
        predict: gives the outputs (models, examples, outputs) of some of these runs, each for inputs of its
            own, with as many examples.
    """

    round: int
    places: list[int]
    predict: Callable[[Sequence[int], Sequence[Tensor]], Tensor]


Watch = Callable[[Moment], None]


def stack_key(run: StackedRun) -> Hashable | None:
    """Return what runs of one stack have in common; None if a run is to be trained alone.

    Stacked are runs of built-in parts, in memory, on the CPU, whose network is a perceptron.
    """
    options = run.options
    name, found = find_algorithm(run.algorithm)
    found = found.configured(options)
    model = run.model
    known = all(LEVELS[level].is_built_in(choice) for level, choice in found.parts.items())
    tensors = all(isinstance(silo.x, Tensor) for silo in run.federation.silos)
    if (
        Perceptron.of(model) is None
        or not known
        or not OPTIMIZERS.is_built_in(str(found.optimizer))
        or not tensors
        or any(getattr(options, key) is not None for key in _NEVER)
        or options.on_divergence != "stop"
        or find_device(options.device).type != "cpu"
    ):
        return None
    parts = found.describe()
    parts.pop("optimizer_options", None)
    if isinstance(parts.get("update"), dict):
        parts["update"].pop("learning_rate")
    annealed = options.penalty_anneal_rounds
    settings = {
        **options.model_dump(include=set(Options.model_fields) - _FREE - set(_NEVER)),
        "penalty_weight": options.penalty_weight > 0,
        "penalty_start": options.penalty_start if annealed else 0,
        "shapes": [list(parameter.shape) for parameter in model.parameters()][1:],
        "layers": [type(module).__name__ for module in model.modules()],
        "outputs": next(iter(model.parameters())).shape[0],
        "dtype": str(next(model.parameters()).dtype),
        "loss": options.loss or run.federation.loss,
    }
    return name, json.dumps([parts, settings], sort_keys=True, default=repr)


def train_stack(runs: Sequence[StackedRun], watch: Watch | None = None) -> list[Trained]:
    """Train runs of one `stack_key` in lockstep; return their results in order.

    A run ends after its own number of rounds. A run that diverges fails with the sentence of the error that
    its own training would raise, and the others go on.

    Args:
        runs: at least one.
        watch: called after every round, as `Moment` says.

    Raises:
        ConfigError: if the runs differ in more than a stack may differ in.
    """
    keys = {stack_key(run) for run in runs}
    if len(keys) != 1 or None in keys:
        raise ConfigError("these runs cannot be stacked; train them with fedilc.api.train_many")
    stack = _Stack(runs)
    return stack.train(watch)


class _Stack:
    def __init__(self, runs: Sequence[StackedRun]) -> None:
        self.runs = runs
        widths = [_width(run.model) for run in runs]
        widest = runs[max(range(len(runs)), key=widths.__getitem__)]
        outline = SiloStore.of(widest.federation).outline()
        self.spec = Specification.of(outline, widest.model, widest.algorithm, widest.options)
        self.program = self.spec.program
        newton = self.program.algorithm.is_newton
        members = []
        for run in runs:
            options = run.options
            model = copy.deepcopy(run.model)
            found = find_algorithm(run.algorithm)[1].configured(options)
            silos = tuple(silo.name for silo in run.federation.silos)
            weights = make_weights(found.silo_weights, silos, options.weights_step, options.weights_power)
            member = Member(
                self.spec.name,
                options,
                silos,
                prepared_for_newton(model) if newton else model,
                found.optimizer_options,
                weights,
            )
            members.append((member, found.local.learning_rate if found.local is not None else 0.0))
        # Rows with equal settings follow one another, so that they share an optimiser.
        optimizer = str(self.program.algorithm.optimizer)
        keys = [optimizer_key(member, optimizer) for member, _ in members]
        groups = {key: number for number, key in enumerate(dict.fromkeys(keys))}
        self.order = sorted(range(len(runs)), key=lambda place: groups[keys[place]])
        self.rows = {place: row for row, place in enumerate(self.order)}
        self.members = [members[place][0] for place in self.order]
        self.network = StackedNetwork(self.spec.model, max(widths))
        self.server = StackedServer(self.members, self.network, self.program)
        self.clients = self._clients([members[place][1] for place in self.order])
        self.results: dict[int, Tensor] = {}

    def _clients(self, rates: Sequence[float]) -> list[StackedClient]:
        examples: dict[str, list[Examples]] = {}
        for row, place in enumerate(self.order):
            run, seed = self.runs[place], self.members[row].options.seed
            for silo in run.federation.silos:
                if not isinstance(silo.x, Tensor):
                    raise ModelError("streamed silos are not stacked")
                examples.setdefault(silo.name, []).append(Examples(row, seed, rates[row], silo.x, silo.y))
        dtype, loss = self.server.weights.dtype, self.spec.runner.loss
        return [
            StackedClient(name, self.network, self.program, loss, found, len(self.runs), dtype)
            for name, found in examples.items()
        ]

    def train(self, watch: Watch | None) -> list[Trained]:
        """Train until every model is finished or has failed."""
        server, number = self.server, 0
        while server.alive:
            number += 1
            before = set(server.alive)
            server.round(
                number, lambda request: (reply for one in self.clients for reply in one.answer(request))
            )
            if watch is not None:
                watch(Moment(number, sorted(self.order[row] for row in server.alive), self._predict))
            for row in sorted(server.alive):
                if number == self.members[row].options.rounds or self.members[row].converged:
                    self._finish(row, number)
            if server.alive != before:
                for client in self.clients:
                    client.use(server.alive)
        return [self._result(row) for row in sorted(range(len(self.order)), key=self.order.__getitem__)]

    def _finish(self, row: int, number: int) -> None:
        member = self.members[row]
        self.server.alive.discard(row)
        if self.program.algorithm.is_newton and not member.converged:
            member.failed = (
                f"{member.name} has not converged after {number} rounds; raise rounds, or the ridge "
                "(weight_decay)"
            )
            return
        self.results[row] = self.server.shown[row].clone()

    def _predict(self, places: Sequence[int], inputs: Sequence[Tensor]) -> Tensor:
        rows = [self.rows[place] for place in places]
        return self.network.predict(self.server.shown[rows], inputs)

    def _result(self, row: int) -> Trained:
        member = self.members[row]
        if row in self.results:
            self.network.load(member.model, self.results[row])
        history: list[Record] = [
            {"round": number, "train_loss": loss} for number, loss in enumerate(member.losses, 1)
        ]
        for record, found in zip(history, member.agreement, strict=False):
            record["sign_agreement"] = found
        return Trained(member.model.eval(), history, member.failed)


def _width(model: nn.Module) -> int:
    return next(module for module in model.modules() if isinstance(module, nn.Linear)).in_features
