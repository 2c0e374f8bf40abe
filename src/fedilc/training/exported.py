"""A trained model as a `torch.export` program, and what its inputs and outputs mean as JSON."""

from __future__ import annotations

import json
from pathlib import Path

import torch

from fedilc.errors import DataError, ModelError
from fedilc.training.loaded import LoadedModel


def export_model(loaded: LoadedModel, out: Path) -> list[Path]:
    """Write the model to `out` and its meaning beside it; return both files.

    The program takes (examples, *inputs) in float32, with any number of examples, and gives logits.
    """
    if not out.parent.is_dir():
        raise DataError(f"{out.parent} is no folder; create it first")
    sample = torch.zeros(2, *loaded.inputs)
    try:
        program = torch.export.export(
            loaded.model, (sample,), dynamic_shapes=({0: torch.export.Dim("examples", min=1)},)
        )
    except Exception as error:  # whatever a network of one's own cannot be traced for
        reason = str(error).splitlines()[0]
        raise ModelError(f"torch.export cannot take this network: {reason}") from error
    torch.export.save(program, out)
    about = out.with_suffix(".json")
    made = loaded.preprocessing
    meaning = {
        "loss": loaded.loss,
        "classes": list(loaded.classes),
        "round": loaded.round,
        "inputs": list(loaded.inputs),
        "columns": list(loaded.columns),
        "preprocessing": None if made is None else made.model_dump(mode="json"),
    }
    about.write_text(json.dumps(meaning, indent=2) + "\n")
    return [out, about]
