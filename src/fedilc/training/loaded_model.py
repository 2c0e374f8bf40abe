"""Load a trained model from its run folder, with the preprocessing of its inputs; export it."""

from __future__ import annotations

import copy
import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray
from pydantic import ValidationError
from torch import Tensor, nn

from fedilc.algorithms.loss_registry import LossName, has_classes, task_of
from fedilc.data.backbones import Backbone, require_same
from fedilc.data.image_folder import ImagePreprocessing, labelled_pictures
from fedilc.data.inputs import (
    Inputs,
    Shape,
    arguments,
    call,
    is_several,
    make_inputs,
    mapped,
    shape_of,
    shape_text,
    tree_of,
    zeros,
)
from fedilc.data.tables.file_reader import read_npz
from fedilc.data.tables.label_rule import LabelRule
from fedilc.data.tables.patients import patient_numbers
from fedilc.data.tables.prediction_rows import Rows, as_frame, as_inputs, plain_inputs, preprocessed, rows_of
from fedilc.data.tables.preprocessing import Preprocessing
from fedilc.errors import CheckpointError, ConfigError, DataError, ModelError, listed
from fedilc.evaluation import select
from fedilc.models import build_model
from fedilc.storage.files import parse_json, read_plain, read_tensors
from fedilc.storage.run_folder import PREPROCESSING, UPDATES, RunFolder, require_record
from fedilc.training.recalibrated_model import recalibrated_model, save_recalibrated

_BATCH = 4096
MOST_NUMBERS = 1 << 27


def load(
    run: str | os.PathLike[str],
    criterion: str = "validation",
    model: nn.Module | None = None,
    backbone: str | None = None,
) -> LoadedModel:
    """Return the model of a run folder, with its preprocessing.

    Args:
        run: the run folder.
        criterion: how to choose the round: "validation" (lowest mean validation loss), "last" or "oracle".
        model: network, if the run used your own: the run folder has its weights, but not its code.
        backbone: name or `module:function` of the frozen network for pictures, if it is your own; it must
            have the digest that it had in training.

    Returns:
        The trained network in evaluation mode, with `predict`, `predict_proba` and `transform` for tables.

    Raises:
        CheckpointError: if the folder is not a run folder, is damaged, or has no weights of that round.
        ConfigError: if there is no such criterion, the run used your own network and `model` is missing, or
            the backbone is missing or has changed.

    >>> import tempfile, fedilc
    >>> x = torch.tensor([[0.0], [1.0], [2.0], [3.0]])
    >>> line = fedilc.Federation("line", [fedilc.Silo("a", x, x[:, 0] > 1)])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     network, run = nn.Linear(1, 1), Path(folder) / "run"
    ...     _ = fedilc.train(line, network, "fedsgd", rounds=2, learning_rate=0.1, out=run)
    ...     load(run, "last", network).round
    2
    """
    folder = RunFolder(run)
    facts = folder.settings()
    about = facts["model"]
    shape = about.get("inputs") or [len(facts.get("columns") or ())]
    inputs: Shape = shape if is_several(shape) else tuple(shape)
    # A recalibrated model has one set of weights, whatever the criterion.
    chosen, weights = _weights(folder, "validation" if UPDATES in facts else criterion, UPDATES in facts)
    network = model if model is not None else _network(folder.path, about, inputs, facts, weights)
    _take_weights(network, weights, folder.path)
    made = read_preprocessing(folder.path)
    if made is not None and tuple(made.inputs) != inputs:
        raise CheckpointError(
            f"{folder.path} has a preprocessing for {made.inputs}, but a network for {inputs}", "train again"
        )
    frozen = _backbone(made, backbone, folder.path)
    classes = made.label.classes if made is not None else tuple(map(str, facts.get("classes") or ()))
    return LoadedModel(
        network.eval(),
        facts["loss"],
        classes,
        chosen,
        inputs,
        tuple(facts.get("columns") or ()),
        facts.get("label"),
        made,
        facts,
        folder.history(),
        frozen,
    )


def _backbone(
    made: Preprocessing | ImagePreprocessing | None, given: str | None, path: Path
) -> Backbone | None:
    """Return the backbone of a run, if it has one; raise if it is another one here."""
    facts = made.backbone if isinstance(made, ImagePreprocessing) else None
    if facts is not None:
        return require_same(facts, given, str(path))
    if given is not None:
        raise ConfigError(f"{path} was trained without a backbone; leave out `backbone`")
    return None


def _network(
    path: Path,
    about: dict[str, Any],
    inputs: Shape,
    facts: dict[str, Any],
    weights: dict[str, Tensor],
) -> nn.Module:
    """Return the built-in network of a run; raise before building if its size is not that of the weights."""
    if about.get("name") is None:
        raise ConfigError(f"{path} was trained with your own network; pass it with `model`")
    sizes = {"hidden": about["hidden"]} if about.get("hidden") is not None else {}
    arguments = about["name"], inputs, int(about.get("outputs") or 1), facts.get("seed", 0)
    with torch.device("meta"):
        outlined = build_model(*arguments, **sizes)
    numbers = sum(parameter.numel() for parameter in outlined.parameters())
    stored = sum(tensor.numel() for tensor in weights.values())
    if numbers != stored:
        raise CheckpointError(
            f"{path} describes a network with {numbers} numbers, but has {stored} weights", "it is not used"
        )
    return build_model(*arguments, **sizes)


def _weights(folder: RunFolder, criterion: str, only: bool) -> tuple[int, dict[str, Tensor]]:
    """Return the round that the criterion chooses, and its weights; a published run has no history.

    With `only`, the folder has weights of no other round, so that nothing is chosen.
    """
    best, history = folder.path / f"best-{criterion}.safetensors", folder.history()
    by_history = (not only and bool(history)) or not best.exists()
    chosen = int(select(history, criterion)["round"]) if by_history else None
    if best.exists():
        weights, about = read_tensors(best)
        if chosen in (None, about["round"]):
            require_record(best, about, history)
            return int(about["round"]), weights
    last = folder.load()
    if last.round != chosen:
        raise CheckpointError(
            f"{best} does not hold round {chosen}, which {criterion!r} chooses", "train again to have it"
        )
    return last.round, last.weights


@torch.no_grad()
def _take_weights(network: nn.Module, weights: dict[str, Tensor], path: Path) -> None:
    if any(values.dtype == torch.float64 for values in weights.values()):
        network.double()
    named = dict(network.named_parameters())
    for name, values in weights.items():
        if name not in named or named[name].shape != values.shape:
            raise CheckpointError(
                f"{path} has weights {name!r} that this network does not have",
                "give the network that was trained",
            )
        named[name].copy_(values)


def read_preprocessing(folder: Path) -> Preprocessing | ImagePreprocessing | None:
    """Return the preprocessing of a run folder, if it has one."""
    path, run = folder / PREPROCESSING, RunFolder(folder)
    if run.settings_file.exists():
        run.require_whole(PREPROCESSING)
    if not path.exists():
        return None
    try:
        content = parse_json(read_plain(path))
        kind = ImagePreprocessing if content.get("kind") == "images" else Preprocessing
        return kind.model_validate(content)
    except (OSError, ValueError, AttributeError) as error:
        reason = error.errors()[0]["msg"] if isinstance(error, ValidationError) else error
        raise CheckpointError(f"{path} is damaged: {reason}", "restore it from a copy") from error


@dataclass(frozen=True)
class LoadedModel:
    """A trained model that takes raw tables, with the preprocessing of its training.

    Attributes:
        model: network from inputs to logits, in evaluation mode.
        loss: name of the loss; your own loss must be installed here too.
        classes: names of the classes, in the order of `predict_proba`'s columns.
        round: the round whose weights it has.
        inputs: shape of one input; by name or in order if the model takes several inputs.
        columns: names of the inputs, if they have names.
        label: column of the label, if it is known.
        preprocessing: how a table becomes inputs; None if its numbers are the inputs.
        facts: content of run.json.
        history: the records of its rounds; a published model has none.
        backbone: the frozen network that makes inputs of pictures, if there is one.
    """

    model: nn.Module
    loss: LossName
    classes: tuple[str, ...]
    round: int
    inputs: Shape
    columns: tuple[str, ...] = ()
    label: str | None = None
    preprocessing: Preprocessing | ImagePreprocessing | None = None
    facts: Mapping[str, Any] = field(default_factory=dict, repr=False)
    history: Sequence[Mapping[str, Any]] = field(default=(), repr=False)
    backbone: Backbone | None = None

    def recalibrated(
        self,
        table: Any,
        kind: str = "intercept",
        patient_column: str | None = None,
        out: str | os.PathLike[str] | None = None,
    ) -> LoadedModel:
        """Return this model recalibrated at a new site, from the site's labelled rows; this one stays.

        Args:
            table: the site's rows with labels, as for `labelled`.
            kind: "intercept", or "slope" for slope and intercept.
            patient_column: column that names patients, if a patient may have several rows; by default that of
                training, if the table has it.
            out: run folder to write, with a model card.

        Returns:
            The updated model. The last entry of its `facts["recalibrations"]` has the fitted coefficients
            with intervals, scores before and after, and how many local patients it takes.

        Raises:
            DataError: if the table cannot carry it, such as with fewer than 10 events or non-events.
            ModelError: if the network does not end with a linear layer.
        """
        found = recalibrated_model(self, table, kind, patient_column)
        if out is not None:
            save_recalibrated(found, Path(out))
        return found

    def predict(self, table: Any) -> NDArray[Any]:
        """Return the most probable class of each row, by name; for a regression, the predicted number."""
        logits = self.logits(table)
        if not has_classes(self.loss):
            numbers: NDArray[Any] = logits[:, 0]
            return numbers
        names: NDArray[Any] = np.array(self.classes)
        chosen: NDArray[Any] = names[self.probabilities(logits).argmax(1)]
        return chosen

    def predict_proba(self, table: Any) -> NDArray[np.float64]:
        """Return the probability of each class for each row, as scikit-learn does."""
        if not has_classes(self.loss):
            raise ConfigError("this model predicts a number and no probability; use predict()")
        return self.probabilities(self.logits(table))

    def logits(self, table: Any) -> NDArray[np.float64]:
        """Return the model's output for each row, before it becomes a probability.

        A model with several inputs takes a dict or tuple of arrays, as it was trained with.
        """
        if is_several(self.inputs):
            return self._logits(self._several(table))
        rows, where = rows_of(table)
        return np.concatenate([self._logits(self._inputs(part, where)) for part in self._parts(rows)])

    def transform(self, table: Any) -> Tensor:
        """Return the inputs of a table: a path, a data frame (polars, pandas) or an array.

        An array has the values of the columns that the model was trained with, in order. A tensor counts as
        inputs that are already preprocessed.
        """
        return self._inputs(*rows_of(table))

    def labelled(self, table: Any) -> tuple[NDArray[Any], NDArray[np.float64]]:
        """Return labels and logits of the rows of a table that have a label."""
        return self.labelled_patients(table)[:2]

    def labelled_patients(
        self, table: Any, patient_column: str | None = None
    ) -> tuple[NDArray[Any], NDArray[np.float64], NDArray[np.intp] | None]:
        """Return labels, logits and patients of the rows of a table that have a label.

        Patients are those of a column, or of the column that the model was trained with, if the table has it;
        None if no patient has several rows.
        """
        rows, where = rows_of(table)
        if patient_column is not None and not isinstance(rows, pl.DataFrame):
            raise DataError(f"{where} has no column {patient_column!r} that names patients; give a table")
        made = self.preprocessing
        if isinstance(rows, list):
            kept, y = labelled_pictures(Path(table), self.classes)
            parts = [self._logits(self._inputs(part, where)) for part in self._parts(kept)]
            return y, np.concatenate(parts), None
        rule = made.label if isinstance(made, Preprocessing) else None
        column = rule.column if rule is not None else self.label
        if not isinstance(rows, pl.DataFrame):
            if not isinstance(table, str | os.PathLike):
                raise DataError(f"{where} has no labels; give a table with a label column, or an NPZ file")
            held = read_npz(Path(table), column or "y")
            if not isinstance(made, Preprocessing):
                return self._class_numbers(held.y, where), self.logits(held.x), None
            rows = as_frame(held.x, made, where).with_columns(pl.Series(made.label.column, held.y))
        if column is None:
            raise DataError(
                "the run folder does not name its label column, so labels cannot be found; give an NPZ file "
                "with the arrays 'x' and 'y'"
            )
        if column not in rows.columns:
            raise DataError(f"{where} has no label column {column!r}; add it")
        missing = made.missing if isinstance(made, Preprocessing) else ()
        frame, labels = LabelRule.labelled_rows(rows, column, missing)
        if frame.is_empty():
            raise DataError(f"{where} has no row with a label in column {column!r}")
        usual = made.patient_column if isinstance(made, Preprocessing) else None
        by = patient_column or (usual if usual in frame.columns else None)
        patients = None if by is None else patient_numbers(frame, by, where)
        if rule is not None:
            return rule.encode(labels), self.logits(frame), patients
        numbers = labels.cast(pl.Float64, strict=False).to_numpy()
        return self._class_numbers(numbers, where), self.logits(frame), patients

    def probabilities(self, logits: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return logits as probabilities."""
        given = torch.from_numpy(logits)
        if task_of(self.loss) == "binary":
            positive = given[:, 0].sigmoid().numpy()
            return np.stack([1 - positive, positive], axis=1)
        found: NDArray[np.float64] = given.softmax(1).numpy()
        return found

    @torch.no_grad()
    def _logits(self, x: Inputs) -> NDArray[np.float64]:
        x = mapped(lambda part: part.to(self._dtype(part)), x)
        parts = [call(self.model, part).reshape(len(part), -1) for part in x.split(_BATCH)]
        found: NDArray[np.float64] = torch.cat(parts).double().numpy()
        return found

    def _parts(self, rows: Rows) -> list[Rows]:
        """Return rows in parts whose inputs fit into memory."""
        at_once = max(1, MOST_NUMBERS // max(1, math.prod(self.inputs)))  # type: ignore[arg-type]  # one input
        return [rows[start : start + at_once] for start in range(0, max(1, len(rows)), at_once)]

    def _dtype(self, x: Tensor) -> torch.dtype:
        """Return the dtype of the model's inputs; whole numbers, as for embeddings, keep theirs."""
        return next(self.model.parameters()).dtype if x.is_floating_point() else x.dtype

    def _inputs(self, rows: Rows, where: str) -> Tensor:
        if isinstance(rows, np.ndarray):
            if isinstance(self.preprocessing, Preprocessing):
                rows = as_frame(rows, self.preprocessing, where)
            else:
                rows = as_inputs(rows, where)
        if isinstance(rows, Tensor):
            made = self.preprocessing
            if self.backbone is not None and tuple(rows.shape[1:]) == getattr(made, "pixels", None):
                return self.backbone.all_features(rows)
            if tuple(rows.shape[1:]) != self.inputs:
                raise DataError(
                    f"{where} has rows of shape {tuple(rows.shape[1:])}, but the model takes {self.inputs}"
                )
            return rows.float()
        if isinstance(rows, list):
            if not isinstance(self.preprocessing, ImagePreprocessing):
                raise DataError(
                    f"{where} is a folder, but the model was not trained with pictures; give a file"
                )
            return self.preprocessing.transform(rows, self.backbone)
        if rows.is_empty():
            raise DataError(f"{where} is empty: it has no rows")
        if isinstance(self.preprocessing, Preprocessing):
            return preprocessed(rows, self.preprocessing, where)
        if not self.columns:
            raise DataError(
                f"{where} has named columns, but the model was trained without; give an array (NPZ)"
            )
        return plain_inputs(rows, self.columns, where)

    def _several(self, values: Any) -> Inputs:
        """Return a dict or tuple of arrays as inputs; raise if they are not those of the model."""
        if not isinstance(values, Mapping | tuple):
            raise DataError(
                f"the model takes several inputs ({shape_text(self.inputs)}); give a dict or tuple of arrays "
                "from Python: fedilc.load(run, model=...).predict(...)"
            )
        x = make_inputs(values, "the inputs", "x")
        if shape_of(x) != self.inputs:
            raise DataError(
                f"the inputs have the shape {shape_text(shape_of(x))}, but the model takes "
                f"{shape_text(self.inputs)}"
            )
        return x

    def _class_numbers(self, y: NDArray[Any], where: str) -> NDArray[Any]:
        """Return labels as positions of their classes; quantities stay as they are."""
        if not has_classes(self.loss):
            return y
        known = np.array(self.classes, float)
        wrong = y[~np.isin(y, known)]
        if len(wrong):
            raise DataError(
                f"{where} has the label {wrong[0]:g}, but the model knows {listed(self.classes)} (such rows: "
                f"{len(wrong)}); correct the labels, or drop these rows"
            )
        places: NDArray[Any] = y - known[0]
        return places


def export_model(loaded: LoadedModel, out: Path) -> list[Path]:
    """Write the model as a `torch.export` program to `out`, and its meaning as JSON beside it; return both.

    The program takes (examples, *inputs) in float32, with any number of examples, and returns logits; it
    takes several inputs as the network does. With a backbone, the program contains it and takes pictures, as
    numbers from 0 to 1.
    """
    if not out.parent.is_dir():
        raise DataError(f"{out.parent} is not a folder; create it first")
    network, made = copy.deepcopy(loaded.model).float(), loaded.preprocessing
    if loaded.backbone is not None and isinstance(made, ImagePreprocessing):
        sample: Inputs = zeros(made.pixels)
        network = nn.Sequential(copy.deepcopy(loaded.backbone.network), network)
    else:
        sample = zeros(loaded.inputs)
    args, named = arguments(tree_of(sample))
    examples = {0: torch.export.Dim("examples", min=1)}
    dynamic = dict.fromkeys(named, examples) if named else tuple(examples for _ in args)
    try:
        program = torch.export.export(network, args, named, dynamic_shapes=dynamic)
    except Exception as error:  # a user's own network may fail in any way
        reason = str(error).splitlines()[0]
        raise ModelError(f"torch.export cannot take this network: {reason}") from error
    torch.export.save(program, out)
    about = out.with_suffix(".json")
    meaning = {
        "loss": loaded.loss,
        "classes": list(loaded.classes),
        "round": loaded.round,
        "inputs": shape_of(sample),
        "columns": list(loaded.columns),
        "preprocessing": None if made is None else made.model_dump(mode="json"),
    }
    about.write_text(json.dumps(meaning, indent=2) + "\n")
    return [out, about]
