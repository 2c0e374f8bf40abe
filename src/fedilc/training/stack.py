"""Train many models in lockstep: runs of one shape that differ in seed, settings or silos.

`stack_key` says which runs can be trained together, from the runs alone; `train_stack` trains them. One step
from the same weights is that of the single run up to rounding; the bits of a result are those of its stack.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from torch import Tensor, nn

from fedilc.algorithms import Algorithm, find_algorithm
from fedilc.algorithms.loss_registry import LossName
from fedilc.algorithms.parts import LEVELS, OPTIMIZERS
from fedilc.config import Options
from fedilc.data import Federation, Silo
from fedilc.data.silo_store import Outline, SiloStore
from fedilc.errors import ConfigError, ModelError
from fedilc.federation import Record
from fedilc.federation.stacked_client import Examples, StackedClient, StackedReply, StackedRequest
from fedilc.federation.stacked_server import Ask, Member, StackedServer, optimizer_key
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
class RunElsewhere:
    """One run whose silos are elsewhere: their outline, the model with its first weights, and the rest."""

    known: Outline
    model: nn.Module
    algorithm: str | Algorithm
    settings: Mapping[str, Any]
    in_memory: ClassVar[bool] = True

    @property
    def options(self) -> Options:
        """Return the settings as validated options."""
        return validated(Options, dict(self.settings))

    @property
    def loss(self) -> LossName:
        """Return the loss of the data."""
        return self.known.loss

    @property
    def silos(self) -> tuple[str, ...]:
        """Return the names of the silos, in order."""
        return self.known.silos

    def outline(self) -> Outline:
        """Return what training must know of the silos."""
        return self.known


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

    @property
    def loss(self) -> LossName:
        """Return the loss of the data."""
        return self.federation.loss

    @property
    def silos(self) -> tuple[str, ...]:
        """Return the names of the silos, in order."""
        return tuple(silo.name for silo in self.federation.silos)

    @property
    def in_memory(self) -> bool:
        """Return whether the inputs of each silo are one tensor."""
        return all(isinstance(silo.x, Tensor) for silo in self.federation.silos)

    def outline(self) -> Outline:
        """Return what training must know of the silos."""
        return SiloStore.of(self.federation).outline()


AnyRun = StackedRun | RunElsewhere


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


def stack_key(run: AnyRun) -> Hashable | None:
    """Return what runs of one stack have in common; None if a run is to be trained alone.

    Stacked are runs of built-in parts, in memory, on the CPU, whose network is a perceptron.
    """
    options = run.options
    name, found = find_algorithm(run.algorithm)
    found = found.configured(options)
    model = run.model
    known = all(LEVELS[level].is_built_in(choice) for level, choice in found.parts.items())
    if (
        Perceptron.of(model) is None
        or not known
        or not OPTIMIZERS.is_built_in(str(found.optimizer))
        or not run.in_memory
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
        "loss": options.loss or run.loss,
    }
    return name, json.dumps([parts, settings], sort_keys=True, default=repr)


def stacks(runs: Sequence[AnyRun]) -> list[list[int]]:
    """Return the places of the runs of each stack; a run that is trained alone is a stack of one."""
    found: dict[Hashable, list[int]] = {}
    for place, run in enumerate(runs):
        key = stack_key(run)
        found.setdefault((place,) if key is None else key, []).append(place)
    return list(found.values())


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
    lockstep = Lockstep(runs)
    silos = {
        (row, silo.name): silo
        for row, place in enumerate(lockstep.order)
        for silo in runs[place].federation.silos
    }
    clients = [
        lockstep.client(name, [silos[row, name] for row in rows]) for name, rows in lockstep.rows_of.items()
    ]

    def ask(request: StackedRequest) -> Iterator[StackedReply]:
        return (reply for client in clients for reply in client.answer(request))

    def use(alive: set[int]) -> None:
        for client in clients:
            client.use(alive)

    return StackTraining(lockstep).train(ask, use, watch)


class Lockstep:
    """The models of a stack in the order of their rows, and what they share.

    It follows from the runs alone, so that the server and every silo make the same one.

    Attributes:
        order: the place among the runs of each row.
        members: the model, settings and silos of each row.
        rates: the learning rate of the silos' own steps, of each row.
        program: the steps of a round.
        network: runs the models of all rows.
        loss: of the models.
        dtype: of the weights.
    """

    def __init__(self, runs: Sequence[AnyRun]) -> None:
        widths = [_width(run.model) for run in runs]
        widest = runs[max(range(len(runs)), key=widths.__getitem__)]
        spec = Specification.of(widest.outline(), widest.model, widest.algorithm, widest.options)
        self.name, self.program, self.loss = spec.name, spec.program, spec.runner.loss
        newton = self.program.algorithm.is_newton
        members = []
        for run in runs:
            options = run.options
            model = copy.deepcopy(run.model)
            found = find_algorithm(run.algorithm)[1].configured(options)
            weights = make_weights(found.silo_weights, run.silos, options.weights_step, options.weights_power)
            member = Member(
                spec.name,
                options,
                run.silos,
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
        self.rates = [members[place][1] for place in self.order]
        self.network = StackedNetwork(spec.model, max(widths))
        self.dtype = next(self.members[0].model.parameters()).dtype

    @property
    def rows_of(self) -> dict[str, list[int]]:
        """Return the rows that each silo trains; replies are added in the order of these silos."""
        found: dict[str, list[int]] = {}
        for row, member in enumerate(self.members):
            for name in member.silos:
                found.setdefault(name, []).append(row)
        return found

    def client(self, name: str, silos: Sequence[Silo]) -> StackedClient:
        """Return the client of one silo, from its examples for each row that it trains."""
        examples = []
        for row, silo in zip(self.rows_of[name], silos, strict=True):
            if not isinstance(silo.x, Tensor):
                raise ModelError("streamed silos are not stacked")
            seed = self.members[row].options.seed
            examples.append(Examples(row, seed, self.rates[row], silo.x, silo.y))
        parts = name, self.network, self.program, self.loss
        return StackedClient(*parts, examples, len(self.members), self.dtype)


class StackTraining:
    """The server's side of a stack: rounds until every model is finished or has failed."""

    def __init__(self, lockstep: Lockstep) -> None:
        self.lockstep = lockstep
        self.order, self.members, self.network = lockstep.order, lockstep.members, lockstep.network
        self.server = StackedServer(self.members, self.network, lockstep.program)
        self.results: dict[int, Tensor] = {}

    def train(
        self,
        ask: Ask,
        use: Callable[[set[int]], None] = lambda _: None,
        watch: Watch | None = None,
    ) -> list[Trained]:
        """Train until every model is finished or has failed.

        Args:
            ask: gives the replies of silos to a request.
            use: called with the rows that are left, when some have ended.
            watch: called after every round.
        """
        server, number = self.server, 0
        while server.alive:
            number += 1
            before = set(server.alive)
            server.round(number, ask)
            if watch is not None:
                watch(Moment(number, sorted(self.order[row] for row in server.alive), self._predict))
            for row in sorted(server.alive):
                if number == self.members[row].options.rounds or self.members[row].converged:
                    self._finish(row, number)
            if server.alive != before:
                use(server.alive)
        return [self._result(row) for row in sorted(range(len(self.order)), key=self.order.__getitem__)]

    def _finish(self, row: int, number: int) -> None:
        member = self.members[row]
        self.server.alive.discard(row)
        if self.lockstep.program.algorithm.is_newton and not member.converged:
            member.failed = (
                f"{member.name} has not converged after {number} rounds; raise rounds, or the ridge "
                "(weight_decay)"
            )
            return
        self.results[row] = self.server.shown[row].clone()

    def _predict(self, places: Sequence[int], inputs: Sequence[Tensor]) -> Tensor:
        rows = [self.lockstep.rows[place] for place in places]
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
