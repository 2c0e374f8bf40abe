"""A trained model that is recalibrated at a new site, and its run folder.

The line a + b z of the outputs z becomes part of the last linear layer (its weights times b, its bias times b
plus a), so that every use of the model, its coefficients and its export included, has the update. run.json
has what was fitted under "recalibrations", one entry per update.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from fedilc.algorithms.loss_registry import task_of
from fedilc.errors import ConfigError, ModelError, nearest
from fedilc.evaluation.learning_curve import answer, learning_curve
from fedilc.evaluation.recalibration import KINDS, Line, recalibrate
from fedilc.models import find_classifier
from fedilc.storage.files import chain_digest, json_bytes, write_atomically, write_tensors
from fedilc.storage.run_folder import FILES, PREPROCESSING, UPDATES, RunFolder, record_digest
from fedilc.training.model_card import FILE as CARD
from fedilc.training.model_card import updated_card

if TYPE_CHECKING:
    from fedilc.training.loaded_model import LoadedModel

_ROUNDING = 1e-4  # of logits, relative to their size; the network computes in float32


def recalibrated_model(
    loaded: LoadedModel, table: Any, kind: str, patient_column: str | None = None
) -> LoadedModel:
    """Return the model with its intercept, or slope and intercept, fitted to the rows of a table.

    The facts of the update are the last entry of `facts["recalibrations"]` of the model that is returned.
    """
    chosen = next((one for one in KINDS if one == kind), None)
    if chosen is None:
        raise ConfigError(f"`recalibrate` is intercept or slope, not {kind!r}{nearest(kind, KINDS)}")
    y, outputs, patients = loaded.labelled_patients(table, patient_column)
    fitted = recalibrate(loaded.loss, chosen, y, outputs, patients, loaded.classes)
    points = learning_curve(loaded.loss, chosen, y, outputs, patients)
    update = {
        **fitted.facts,
        "learning_curve": [asdict(point) for point in points],
        "answer": answer(task_of(loaded.loss), points),
    }
    network = with_line(loaded.model, fitted.line, loaded.facts.get("classifier"))
    facts = {**loaded.facts, UPDATES: [*loaded.facts.get(UPDATES, ()), update]}
    found = replace(loaded, model=network, facts=facts)
    expected = fitted.line(outputs)
    if not np.allclose(found.labelled(table)[1], expected, rtol=_ROUNDING, atol=_ROUNDING):
        raise ModelError(
            "this network does more to its outputs after its last linear layer, so that they cannot be "
            "recalibrated there; end the network with a linear layer"
        )
    return found


@torch.no_grad()
def with_line(model: nn.Module, line: Line, classifier: str | None = None) -> nn.Module:
    """Return a copy of the network whose outputs are those of the line.

    >>> network = nn.Linear(1, 1)
    >>> moved = with_line(network, Line(2.0, (1.0,)))
    >>> x = torch.ones(1, 1)
    >>> torch.allclose(moved(x), 1 + 2 * network(x))
    True
    """
    found = copy.deepcopy(model)
    name, layer = find_classifier(found, classifier)
    if layer.bias is None or layer.out_features != len(line.intercepts):
        raise ModelError(
            f"the last linear layer of this network ({name!r}) has no bias, or not one output per class, so "
            "that it cannot hold a recalibration; end the network with nn.Linear(..., bias=True)"
        )
    bias = line.slope * layer.bias.double() + torch.tensor(line.intercepts, dtype=torch.float64)
    layer.bias.copy_(bias)
    layer.weight.mul_(line.slope)
    return found


def save_recalibrated(loaded: LoadedModel, out: Path) -> None:
    """Write a recalibrated model as a run folder with a model card of its own.

    The folder has the settings of the run that was recalibrated, and its history up to the model's round.
    """
    made, facts = loaded.preprocessing, loaded.facts
    settings = {key: value for key, value in facts.items() if key != FILES}
    records = list(loaded.history[: loaded.round])
    weights = {name: values.detach().contiguous() for name, values in loaded.model.named_parameters()}
    text = None if made is None else made.model_dump_json(indent=2).encode()
    folder = RunFolder(out)
    folder.create(settings, {} if text is None else {PREPROCESSING: text})
    try:
        about: dict[str, Any] = {"round": loaded.round}
        if records:
            lines = [json_bytes(record) for record in records]
            write_atomically(folder.history_file, b"".join(lines))
            state = {f"weights.{name}": values for name, values in weights.items()}
            history = chain_digest(line.rstrip(b"\n") for line in lines)
            write_tensors(folder.checkpoint_file, state, {**about, "stopped": None, "history": history})
            about["record"] = record_digest(records[-1])
        write_tensors(folder.path / "best-validation.safetensors", weights, about)
        record: Mapping[str, Any] = records[-1] if records else {"round": loaded.round}
        card = updated_card(folder.settings(), record, loaded.model, made)
        write_atomically(folder.path / CARD, card.encode())
    finally:
        folder.release()
