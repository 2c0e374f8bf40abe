"""Callbacks, which observe a run: early stopping, the weights of the best round, TensorBoard and MLflow."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any, Literal, NoReturn

from torch import Tensor

from fedilc.algorithms.metric_registry import metric_of
from fedilc.config.options import recorded_options
from fedilc.errors import CheckpointError, ConfigError, FedILCWarning, nearest
from fedilc.evaluation.selection import CRITERIA, selections
from fedilc.federation import Record
from fedilc.storage.files import read_tensors, warn_if_not_written, write_tensors
from fedilc.storage.run_folder import RunFolder, record_digest, require_record


@dataclass
class Run:
    """The state of a run as callbacks see it; `stop` ends the run after this round."""

    rounds: int
    history: list[Record] = field(default_factory=list)
    weights: Mapping[str, Tensor] = field(default_factory=dict)
    out: Path | None = None
    stopped: str | None = None

    def stop(self, reason: str) -> None:
        """End the run after this round; the reason is kept with the checkpoint."""
        self.stopped = reason


class Callback:
    """Base of callbacks; override what is needed.

    A run that resumes calls `on_start` with the history so far, and may repeat the last round.

    Attributes:
        keys: keys of a record that it needs; a run that never records one of them is refused.

    >>> class Losses(Callback):
    ...     def on_start(self, run):
    ...         self.seen = []
    ...     def on_round(self, run, record):
    ...         self.seen.append(record["train_loss"])
    >>> losses = Losses()
    >>> losses.on_start(Run(rounds=1))
    >>> losses.on_round(Run(rounds=1), {"round": 1, "train_loss": 0.5})
    >>> losses.seen
    [0.5]
    """

    keys: tuple[str, ...] = ()

    def on_start(self, run: Run) -> None:
        """Run before the first round of this process."""

    def on_round(self, run: Run, record: Record) -> None:
        """Run after a round; `record` is the last of `run.history`."""

    def on_end(self, run: Run) -> None:
        """Run after the last round."""


class EarlyStopping(Callback):
    """Stop when a number of the record has not improved for `patience` evaluated rounds.

    Args:
        patience: number of evaluated rounds to wait for an improvement.
        monitor: key of the number in records, such as "validation_loss" or "validation_accuracy".
        mode: "min" if lower is better, "max" if higher is better; None is the direction of the metric, and
            "min" for numbers that are not metrics.
        min_delta: smallest change that counts as an improvement.

    Raises:
        ConfigError: if an argument cannot be used; after the first round, if its record lacks the number.

    >>> stopper = EarlyStopping(patience=2)
    >>> run = Run(rounds=9)
    >>> for number, loss in enumerate([0.5, 0.4, 0.45, 0.41], 1):
    ...     run.history.append({"round": number, "validation_loss": loss})
    ...     stopper.on_round(run, run.history[-1])
    >>> run.stopped
    'validation_loss has not fallen for 2 rounds'
    """

    def __init__(
        self,
        patience: int = 10,
        *,
        monitor: str = "validation_loss",
        mode: Literal["min", "max"] | None = None,
        min_delta: float = 0.0,
    ) -> None:
        if patience < 1:
            raise ConfigError(f"patience={patience} is not a number of rounds; give at least 1")
        if mode not in ("min", "max", None):
            raise ConfigError(f"mode={mode!r} is unknown; give 'min' if lower is better, or 'max'")
        if not min_delta >= 0:
            raise ConfigError(f"min_delta={min_delta} is not a change; give 0 or more")
        self.patience, self.min_delta = patience, min_delta
        self.monitor, self.keys = monitor, (monitor,)
        metric = metric_of(monitor.replace("thresholded_", ""))
        self.mode = mode or ("max" if metric is not None and metric.higher_is_better else "min")

    def on_round(self, run: Run, record: Record) -> None:
        """Stop the run if the number has not improved for `patience` evaluated rounds."""
        if record.get(self.monitor) is None:
            if record["round"] == 1:
                refuse_key(self.monitor, [key for key, value in record.items() if isinstance(value, float)])
            return
        sign = 1 if self.mode == "min" else -1
        values = [sign * float(r[self.monitor]) for r in run.history if r.get(self.monitor) is not None]
        best, since = values[0], 0
        for value in values[1:]:
            best, since = (value, 0) if value < best - self.min_delta else (best, since + 1)
        if since >= self.patience:
            moved = "fallen" if self.mode == "min" else "risen"
            run.stop(f"{self.monitor} has not {moved} for {self.patience} rounds")


class KeepBest(Callback):
    """Keep the weights of the round that a criterion chooses, in memory and in the run folder.

    "validation" and "last" are honest; "oracle" is the round of lowest test loss, which nobody can know in
    practice.

    Args:
        criterion: "validation" (lowest mean validation loss), "last" or "oracle".

    Raises:
        ConfigError: if there is no such criterion.

    >>> best, run = KeepBest(), Run(rounds=3, weights={"w": Tensor([1.0])})
    >>> best.on_start(run)
    >>> for number, loss in enumerate([0.5, 0.4, 0.6], 1):
    ...     run.history.append({"round": number, "validation_loss": loss})
    ...     best.on_round(run, run.history[-1])
    >>> best.round, best.weights
    (2, {'w': tensor([1.])})
    """

    def __init__(self, criterion: str = "validation") -> None:
        if criterion not in CRITERIA:
            raise ConfigError(f"criterion {criterion!r} is unknown{nearest(criterion, CRITERIA)}")
        self.criterion = criterion
        self.round: int | None = None
        self.weights: dict[str, Tensor] = {}
        self._best: Mapping[str, Any] | None = None

    def on_start(self, run: Run) -> None:
        """Restore what a resumed run has kept."""
        self.round, self.weights = None, {}
        self._best = selections(run.history).get(self.criterion)
        if run.out is None or self._best is None:
            return
        if self._file(run.out).exists():
            self._read(self._file(run.out), self._best["round"], run.history)
        if self.round is None and self._best is run.history[-1]:
            self._keep(run)

    def _read(self, path: Path, chosen: int, history: Sequence[Record]) -> None:
        """Load the weights of a file, if they are those of the chosen round."""
        try:
            weights, about = read_tensors(path)
            require_record(path, about, history)
        except CheckpointError as error:
            note = f"{error.problem}; it will be written again after the next better round"
            warnings.warn(note, FedILCWarning, stacklevel=2)
            return
        if about["round"] == chosen:
            self.round, self.weights = chosen, weights

    def on_round(self, run: Run, record: Record) -> None:
        """Keep the weights if the criterion chooses this round."""
        before = [] if self._best is None else [self._best]
        self._best = selections([*before, record]).get(self.criterion)
        if self._best is record:
            self._keep(run)

    def _keep(self, run: Run) -> None:
        """Keep the current weights; a folder that cannot be written does not end the run."""
        self.round = int(run.history[-1]["round"])
        self.weights = {name: tensor.clone() for name, tensor in run.weights.items()}
        if run.out is None:
            return
        path = self._file(run.out)
        with warn_if_not_written(path):
            about = {"round": self.round, "record": record_digest(run.history[-1])}
            write_tensors(path, self.weights, about)

    def _file(self, out: Path) -> Path:
        return out / f"best-{self.criterion}.safetensors"


class TensorBoard(Callback):
    """Write each round's numbers as scalars of TensorBoard; needs `pip install 'fedilc[tensorboard]'`.

    Args:
        folder: folder for the files; None is `tensorboard` in the run folder. Show it with
            `tensorboard --logdir FOLDER`.
    """

    def __init__(self, folder: str | PathLike[str] | None = None) -> None:
        self.folder = folder
        self._writer: Any = None

    def on_start(self, run: Run) -> None:
        """Open the file; a run that resumes continues after its last completed round."""
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise ConfigError(
                "TensorBoard is not installed; install it with: pip install 'fedilc[tensorboard]'"
            ) from error
        folder = _folder(self.folder, run, "tensorboard")
        self._writer = SummaryWriter(str(folder), purge_step=len(run.history) + 1 if run.history else None)

    def on_round(self, _run: Run, record: Record) -> None:
        """Write the round's numbers."""
        for key, value in numbers(record):
            self._writer.add_scalar(key, value, record["round"])

    def on_end(self, _run: Run) -> None:
        """Close the file."""
        self._writer.close()


class MLflow(Callback):
    """Log each round's numbers to MLflow, and the settings of a run that has a folder.

    It needs `pip install 'fedilc[mlflow]'`. A run that resumes is a new run there.

    Args:
        uri: tracking URI; None is a SQLite file, `mlflow.db`, in the run folder.
        experiment: name of the experiment in MLflow.
        name: name of the run in MLflow; None lets MLflow choose one.
    """

    def __init__(self, uri: str | None = None, experiment: str = "fedilc", name: str | None = None) -> None:
        self.uri, self.experiment, self.name = uri, experiment, name
        self._client: Any = None
        self._run = ""

    def on_start(self, run: Run) -> None:
        """Create the experiment, if it is new, and a run in it with its settings."""
        try:
            from mlflow import MlflowClient
        except ImportError as error:
            raise ConfigError(
                "MLflow is not installed; install it with: pip install 'fedilc[mlflow]'"
            ) from error
        uri = self.uri or f"sqlite:///{_folder(None, run, 'mlflow.db').resolve()}"
        self._client = MlflowClient(tracking_uri=uri)
        known = self._client.get_experiment_by_name(self.experiment)
        place = self._client.create_experiment(self.experiment) if known is None else known.experiment_id
        self._run = self._client.create_run(place, run_name=self.name).info.run_id
        if run.out is not None:
            facts = RunFolder(run.out).settings()
            named = {key: facts.get(key) for key in ("federation", "algorithm")}
            for key, value in {**named, **recorded_options(facts)}.items():
                if value not in (None, {}):
                    self._client.log_param(self._run, key, value)

    def on_round(self, _run: Run, record: Record) -> None:
        """Log the round's numbers."""
        now = round(1000 * time.time())
        for key, value in numbers(record):
            self._client.log_metric(self._run, key, value, timestamp=now, step=record["round"])

    def on_end(self, _run: Run) -> None:
        """Mark the run as finished."""
        self._client.set_terminated(self._run)


def as_callback(given: Callback | Callable[[Record], object]) -> Callback:
    """Return a callback, given one, an object with some of its methods, or a function of records."""
    if isinstance(given, Callback):
        return given
    names = ("on_start", "on_round", "on_end")
    methods = {name: getattr(given, name) for name in names if hasattr(given, name)}
    if callable(given):
        methods = {"on_round": lambda _run, record: given(record)}
    adapted = Callback()
    vars(adapted).update(methods)
    return adapted


def refuse_key(key: str, there: Sequence[str] = ()) -> NoReturn:
    """Raise because no record of the run will have this key; `there` are the keys that records have."""
    kind = key.partition("_")[0]
    needs = {"validation": "hold out examples for validation", "test": "give a test set"}
    missing = kind in needs and not any(other.startswith(kind) for other in there)
    hint = needs[kind] if missing else f"records have {', '.join(there)}"
    raise ConfigError(f"a callback watches {key!r}, which no round of this run records; {hint}")


def numbers(record: Record) -> Iterator[tuple[str, float]]:
    """Yield the losses, metrics and other numbers of a round, but not those of single silos.

    >>> list(numbers({"round": 3, "train_loss": 0.5, "test_auroc": None, "silos": {"a": {"examples": 2}}}))
    [('train_loss', 0.5)]
    """
    for key, value in record.items():
        if key != "round" and isinstance(value, int | float) and not isinstance(value, bool):
            yield key, float(value)


def _folder(given: str | PathLike[str] | None, run: Run, name: str) -> Path:
    """Return the given folder, or one of this name in the run folder."""
    if given is None and run.out is None:
        raise ConfigError(f"{name} has no folder to write to; give it one, or train(..., out=...)")
    return Path(given) if given is not None else Path(run.out or ".") / name
