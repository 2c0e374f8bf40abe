"""Make the ServerApp of an experiment, or train from your own ServerApp: `FedILC(...).start(grid, ...)`."""

from __future__ import annotations

import copy
import os
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from fedilc.algorithms import find_algorithm
from fedilc.config import Options, read_experiment
from fedilc.data import LossName
from fedilc.data.inputs import zeros
from fedilc.data.silo_store import Outline
from fedilc.data.sources import validated
from fedilc.errors import ConfigError, FedILCError, SilosLostError
from fedilc.federation import Record
from fedilc.runtimes.flower import logger, require_flower
from fedilc.runtimes.flower.runtime import NodeRegistry, NodeSilo, train_on_nodes
from fedilc.runtimes.remote.manifest import find_wire
from fedilc.runtimes.remote.run import RemoteRun
from fedilc.storage.run_folder import RunFolder
from fedilc.training.callbacks import Callback, Run
from fedilc.training.loop import Specification
from fedilc.training.result import Result

if TYPE_CHECKING:
    from flwr.app import ArrayRecord, Context, MetricRecord
    from flwr.serverapp import Grid, ServerApp

TIMEOUT_SECONDS = 600.0
_SETTINGS = {"algorithm": "algorithm", "rounds": "rounds", "seed": "seed", "min-silos": "min_silos"}
_OTHER_KEYS = ("set", "timeout", "wire", "out")
Evaluate = Callable[[int, "ArrayRecord"], "MetricRecord | None"]


def make_server_app(
    experiment: str | os.PathLike[str], folder: str | os.PathLike[str] | None = None
) -> ServerApp:
    """Return a ServerApp that trains an experiment.

    Args:
        experiment: a shipped experiment or a TOML file.
        folder: the folder to which file names in the experiment are relative, if not its own.

    The run's configuration (`--run-config`) may have `algorithm`, `rounds`, `seed` and `min-silos`, which
    replace the experiment's unless they are empty or 0; `set` with further changes, such as
    "penalty_weight=5 model.hidden=[16]"; `timeout`, the seconds that an exchange may take; `wire`, exact or
    float16; and `out`, the run folder, in which an interrupted run continues.
    """
    require_flower()
    from flwr.serverapp import ServerApp

    app = ServerApp()

    def main(grid: Grid, context: Context) -> None:
        try:
            run_experiment(grid, experiment, context.run_config, folder)
        except FedILCError as error:
            logger.error("fedilc: %s", error)
            raise

    app.main()(main)
    return app


def run_experiment(
    grid: Grid,
    experiment: str | os.PathLike[str],
    config: Mapping[str, Any],
    folder: str | os.PathLike[str] | None = None,
) -> Result:
    """Train an experiment over the grid, with the changes of the run's configuration."""
    settings, own_folder = read_experiment(os.fspath(experiment), read_changes(config))
    registry = NodeRegistry(grid, settings.seed, config.get("timeout") or TIMEOUT_SECONDS)
    wire = find_wire(str(config.get("wire") or "exact"))
    out = Path(str(config.get("out") or Path("runs") / settings.name / "flower")).expanduser().absolute()
    logger.info(
        "fedilc: %s, %s, %d rounds; run folder %s", settings.name, settings.algorithm, settings.rounds, out
    )
    run = RemoteRun.of(settings, own_folder if folder is None else Path(folder), wire=wire)
    result = train_on_nodes(registry, run, out)
    done = len(RunFolder(out).history())
    logger.info("fedilc: %s after round %d; run folder %s", result.stopped or "complete", done, out)
    return result


def read_changes(config: Mapping[str, Any]) -> list[str]:
    """Return the changes of the experiment in the run's configuration, as `key=value`.

    >>> read_changes({"algorithm": "fedsgd", "rounds": 0, "set": "penalty_weight=5 model.hidden=[16]"})
    ['penalty_weight=5', 'model.hidden=[16]', 'algorithm=fedsgd']
    """
    for key in config:
        if key not in _SETTINGS and key not in _OTHER_KEYS:
            raise ConfigError(
                f"{key!r} is not a key of the run's configuration; use "
                f"{', '.join([*_SETTINGS, *_OTHER_KEYS])}"
            )
    changes = shlex.split(str(config.get("set") or ""))
    for change in changes:
        if change.split("=")[0].split(".")[0] in ("data", "name"):
            raise ConfigError(
                f"{change!r} would change the data for the server alone; change the experiment that both "
                "server_app.py and client_app.py name"
            )
    return changes + [f"{name}={config[key]}" for key, name in _SETTINGS.items() if config.get(key)]


@dataclass
class Trained(Result):
    """A trained model, its history, and the same weights as Flower's arrays.

    Attributes:
        evaluate_metrics_serverapp: what `evaluate_fn` returned, by round.
    """

    evaluate_metrics_serverapp: dict[int, MetricRecord] = field(default_factory=dict)

    @property
    def weights(self) -> dict[str, Tensor]:
        """Return the trained weights by name."""
        return {name: tensor.detach() for name, tensor in self.model.state_dict().items()}

    @property
    def arrays(self) -> ArrayRecord:
        """Return the trained weights as Flower's arrays."""
        from flwr.app import ArrayRecord

        return ArrayRecord(self.weights)


class FedILC:
    """A strategy that trains a model over Flower's nodes with any of fedilc's algorithms.

    The nodes run `make_client_app(make_silo, make_model)`, with the same network. Silos are in the order
    of their nodes' partition-id.

    Args:
        algorithm: a name from `fedilc.algorithms`.
        model: any module from inputs to logits.
        loss: "binary" (one logit), "multiclass", "regression", "huber", or one of your own.
        learning_rate: the learning rate of the server's optimiser, which the algorithm names (Adam for the
            paper's algorithms).
        num_silos: how many nodes take part; None takes num-partitions from the nodes.
        settings: other settings of `fedilc.train`: `penalty_weight`, `environment_size`,
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
        """Train, and return model, history and arrays.

        Args:
            grid: the argument of the ServerApp's main function.
            initial_arrays: the first weights, as `ArrayRecord(model.state_dict())`; None takes the model's.
            num_rounds: how many rounds to train.
            timeout: seconds that any exchange with the nodes may take.
            evaluate_fn: called with the round, 0 before the first, and the arrays.
            out: a run folder for history and checkpoints; an interrupted run continues there.
            name: the run's name.
        """
        require_flower()
        options = self._options(num_rounds)
        model = self._initial(initial_arrays)
        registry = NodeRegistry(grid, options.seed, timeout)
        silos = self._silos(registry)
        sample = zeros(silos[0].inputs, silos[0].whole)
        names = tuple(silo.name for silo in silos)
        if len(set(names)) < len(names):
            raise ConfigError(
                f"two silos in {', '.join(names)} have the same name; let make_silo give each its own"
            )
        outline = Outline(name, {silo: {} for silo in names}, sample, self.loss)
        run = RemoteRun(name, Specification.of(outline, model, self.algorithm, options))
        evaluation = _Evaluation(evaluate_fn, model)
        result = train_on_nodes(registry, run, Path(out) if out is not None else None, [evaluation])
        return Trained(**vars(result), evaluate_metrics_serverapp=evaluation.metrics)

    def _initial(self, arrays: ArrayRecord | None) -> nn.Module:
        model = copy.deepcopy(self.model)
        if arrays is not None:
            try:
                model.load_state_dict(arrays.to_torch_state_dict())
            except RuntimeError as error:
                reason = " ".join(str(error).split())
                raise ConfigError(f"initial_arrays are not weights of the model: {reason}") from error
        return model

    def _silos(self, registry: NodeRegistry) -> list[NodeSilo]:
        """Return all silos, in order; they cannot change after the first round has started."""
        registry.wait(lambda: len(registry.silos) >= (self.num_silos or registry.partitions or 1))
        expected = self.num_silos or registry.partitions
        if expected is None:
            raise ConfigError("the nodes do not say how many there are; give num_silos to FedILC")
        places = sorted(place for place in registry.silos if place < expected)
        if len(places) < expected:
            reason = next(iter(registry.problems.values()), "start the others and run again")
            raise SilosLostError(f"only {len(places)} of {expected} silos are there: {reason}")
        return [registry.silos[place] for place in places]


class _Evaluation(Callback):
    """A callback that calls the user's function before the first round and after each."""

    def __init__(self, function: Evaluate | None, model: nn.Module) -> None:
        self.function = function
        self.state = model.state_dict()
        self.metrics: dict[int, MetricRecord] = {}

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
            self.metrics[number] = measured
