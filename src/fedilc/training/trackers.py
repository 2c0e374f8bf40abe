"""Experiment trackers as callbacks: TensorBoard and MLflow, both into files, neither needs a network."""

from __future__ import annotations

import time
from collections.abc import Iterator
from os import PathLike
from pathlib import Path
from typing import Any

from fedilc.config.options import recorded_options
from fedilc.errors import ConfigError
from fedilc.federation import Record, RunFolder
from fedilc.training.callbacks import Callback, Run


def numbers(record: Record) -> Iterator[tuple[str, float]]:
    """Yield the losses, metrics and other numbers of a round, without those of single silos.

    >>> list(numbers({"round": 3, "train_loss": 0.5, "test_auroc": None, "silos": {"a": {"examples": 2}}}))
    [('train_loss', 0.5)]
    """
    for key, value in record.items():
        if key != "round" and isinstance(value, int | float) and not isinstance(value, bool):
            yield key, float(value)


def _folder(given: str | PathLike[str] | None, run: Run, name: str) -> Path:
    """Return the folder given, or one of this name in the run folder."""
    if given is None and run.out is None:
        raise ConfigError(f"{name} has no folder to write to; give it one, or train(..., out=...)")
    return Path(given) if given is not None else Path(run.out or ".") / name


class TensorBoard(Callback):
    """Write each round's numbers as scalars of TensorBoard; needs `pip install 'fedilc[tensorboard]'`.

    Args:
        folder: where to; None is `tensorboard` in the run folder. Show it with `tensorboard --logdir FOLDER`.
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
        uri: the tracking URI; None is a SQLite file, `mlflow.db`, in the run folder.
        experiment: the experiment's name there.
        name: the run's name there; None lets MLflow choose one.
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
