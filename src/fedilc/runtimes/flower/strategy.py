"""A strategy for a ServerApp of one's own: `FedILC(...).start(grid, ...)`."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from fedilc.algorithms import find_algorithm
from fedilc.config import Options
from fedilc.config.section import validated
from fedilc.data import LossName
from fedilc.data.outline import Outline
from fedilc.errors import ConfigError, SilosLostError
from fedilc.federation import Record
from fedilc.runtimes.flower.coordinator import run_job
from fedilc.runtimes.flower.engine import require_flower
from fedilc.runtimes.flower.nodes import Described, Roll
from fedilc.runtimes.flower.server import timeout_of
from fedilc.runtimes.remote.builders import Plan
from fedilc.runtimes.remote.job import Job
from fedilc.runtimes.remote.manifest import ModelSpec
from fedilc.training.callbacks import Callback, Run
from fedilc.training.result import Result

if TYPE_CHECKING:
    from flwr.app import ArrayRecord, MetricRecord
    from flwr.serverapp import Grid

Evaluate = Callable[[int, "ArrayRecord"], "MetricRecord | None"]


@dataclass
class Trained(Result):
    """A trained model, its history, and the same weights as Flower's arrays.

    Attributes:
        evaluate_metrics_serverapp: what `evaluate_fn` gave, by round.
    """

    evaluate_metrics_serverapp: dict[int, MetricRecord] = field(default_factory=dict)

    @property
    def weights(self) -> dict[str, Tensor]:
        """The trained weights by name."""
        return {name: tensor.detach() for name, tensor in self.model.state_dict().items()}

    @property
    def arrays(self) -> ArrayRecord:
        """The trained weights as Flower holds them."""
        from flwr.app import ArrayRecord

        return ArrayRecord(self.weights)


class FedILC:
    """Trains a model over Flower's nodes with any of fedilc's algorithms.

    The nodes run `make_client_app(make_silo, make_model)`, with the same network. Silos are in the order
    of their nodes' partition-id.

    Args:
        algorithm: a name from `fedilc.algorithms`.
        model: any module from inputs to logits.
        loss: "binary" (one logit) or "multiclass".
        learning_rate: of `torch.optim.Adam`, on the server.
        num_silos: how many nodes take part; None is what the nodes' num-partitions says.
        settings: the further settings of `fedilc.train`: `penalty_weight`, `environment_size`,
            `weight_decay`, `min_silos`, `seed`, `zeros`, `covariance`, ...

    >>> FedILC(algorithm="fishr-inter-geo", model=nn.Linear(4, 1), penalty_weight=15.0)
    FedILC(algorithm='fishr-inter-geo', learning_rate=0.001, penalty_weight=15.0)
    """

    def __init__(
        self,
        algorithm: str = "fishr-inter-geo",
        *,
        model: nn.Module,
        loss: LossName = "binary",
        learning_rate: float = 1e-3,
        num_silos: int | None = None,
        **settings: Any,
    ) -> None:
        if not isinstance(model, nn.Module):
            raise ConfigError(f"FedILC was given {type(model).__name__} as model; give a torch.nn.Module")
        self.algorithm = find_algorithm(algorithm)[0]
        self.model = model
        self.loss = loss
        self.num_silos = num_silos
        self.settings = {"learning_rate": learning_rate, **settings}
        self._options(1)

    def __repr__(self) -> str:
        shown = ", ".join(f"{key}={value!r}" for key, value in self.settings.items())
        return f"FedILC(algorithm={self.algorithm!r}, {shown})"

    def _options(self, rounds: int) -> Options:
        return validated(Options, {**self.settings, "rounds": rounds})

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord | None = None,
        num_rounds: int = 3,
        timeout: float = 3600.0,
        *,
        evaluate_fn: Evaluate | None = None,
        out: str | os.PathLike[str] | None = None,
        name: str = "flower",
    ) -> Trained:
        """Train for some rounds, and return model, history and arrays.

        Args:
            grid: what the ServerApp's main function is given.
            initial_arrays: the first weights, like `ArrayRecord(model.state_dict())`; None is the model's.
            num_rounds: how many steps the server takes.
            timeout: seconds that any exchange with the nodes may take.
            evaluate_fn: called with the round, 0 before the first, and the arrays.
            out: a run folder with history and checkpoints; a run that was cut off goes on there.
            name: how the run is called.
        """
        require_flower()
        options = self._options(num_rounds)
        model = self._initial(initial_arrays)
        roll = Roll(grid, options.seed, timeout_of(timeout))
        members = self._members(roll)
        inputs = members[0].inputs
        sample = torch.zeros(2, *inputs, dtype=torch.int64 if members[0].whole else torch.float32)
        names = tuple(member.name for member in members)
        if len(set(names)) < len(names):
            raise ConfigError(f"two silos have the same name, of {', '.join(names)}; let make_silo name each")
        outline = Outline(name, names, sample, self.loss, {silo: {} for silo in names})
        spec = ModelSpec(name=None, inputs=inputs, outputs=1)
        job = Job(name, self.algorithm, options, Plan(outline, spec, model))
        watch = _Evaluation(evaluate_fn, model)
        found = run_job(roll, job, Path(out) if out is not None else None, [watch])
        return Trained(**vars(found), evaluate_metrics_serverapp=watch.found)

    def _initial(self, arrays: ArrayRecord | None) -> nn.Module:
        model = copy.deepcopy(self.model)
        if arrays is not None:
            try:
                model.load_state_dict(arrays.to_torch_state_dict())
            except RuntimeError as error:
                reason = " ".join(str(error).split())
                raise ConfigError(f"initial_arrays are not weights of the model: {reason}") from error
        return model

    def _members(self, roll: Roll) -> list[Described]:
        """All silos, in order: who takes part is settled before the first round."""

        def enough() -> bool:
            known = self.num_silos or roll.partitions
            return bool(roll.members) and (known is None or len(roll.members) >= known)

        roll.wait(enough)
        expected = self.num_silos or roll.partitions
        if expected is None:
            raise ConfigError("the nodes do not say how many they are; give FedILC num_silos")
        places = sorted(place for place in roll.members if place < expected)
        if len(places) < expected:
            reason = next(iter(roll.problems.values()), "start the others and run again")
            raise SilosLostError(f"{len(places)} of {expected} silos are there: {reason}")
        return [roll.members[place] for place in places]


class _Evaluation(Callback):
    """What the user's function says of the weights, before the first round and after each."""

    def __init__(self, function: Evaluate | None, model: nn.Module) -> None:
        self.function = function
        self.state = model.state_dict()
        self.found: dict[int, MetricRecord] = {}

    def on_start(self, run: Run) -> None:
        if not run.history:
            self._evaluate(0, run)

    def on_round(self, run: Run, record: Record) -> None:
        self._evaluate(record["round"], run)

    def _evaluate(self, number: int, run: Run) -> None:
        if self.function is None:
            return
        from flwr.app import ArrayRecord

        measured = self.function(number, ArrayRecord({**self.state, **run.weights}))
        if measured is not None:
            self.found[number] = measured
