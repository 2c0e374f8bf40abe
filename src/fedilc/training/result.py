"""The result of a run: the trained model, its history, and the weights of chosen rounds."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from fedilc.errors import CheckpointError
from fedilc.evaluation import select
from fedilc.federation import Record


@dataclass
class Result:
    """A trained model and the history of its training.

    Attributes:
        model: the trained copy, at the last round.
        history: one record per round, as JSON-like dictionaries.
        algorithm: the algorithm's name.
        stopped: why the run ended early, or None.
        kept: the weights of the rounds chosen, by criterion, with the number of the round.

    Raises:
        CheckpointError: by `best_model`, if the weights of the round chosen were not kept.

    >>> history = [{"round": 1, "validation_loss": 0.4}, {"round": 2, "validation_loss": 0.5}]
    >>> Result(nn.Linear(1, 1), history).best()["round"]
    1
    """

    model: nn.Module
    history: list[Record] = field(default_factory=list)
    algorithm: str = "custom"
    stopped: str | None = None
    kept: Mapping[str, tuple[int, Mapping[str, Tensor]]] = field(default_factory=dict, repr=False)

    def best(self, criterion: str = "validation") -> Record:
        """Return the record of the round that "validation", "last" or "oracle" chooses.

        The oracle chooses the round of lowest test loss, which nobody can know in practice.
        """
        return copy.deepcopy(dict(select(self.history, criterion)))

    def best_model(self, criterion: str = "validation") -> nn.Module:
        """Return a copy of the model with the weights of the round that `best` chooses, in evaluation mode.

        After a resume they come from the run folder, if it has them.
        """
        chosen = int(self.best(criterion)["round"])
        model = copy.deepcopy(self.model)
        if chosen == self.history[-1]["round"]:
            return model
        round_, weights = self.kept.get(criterion, (None, {}))
        if round_ != chosen:
            raise CheckpointError(
                f"the weights of round {chosen}, which {criterion!r} chooses, are not available: only the "
                "first rank keeps them, and a resumed run takes them from "
                f"best-{criterion}.safetensors, if it is there and whole",
                "train again to have them",
            )
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if name in weights:
                    parameter.copy_(weights[name])
        return model
