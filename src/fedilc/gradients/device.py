"""The device that a process computes on."""

from __future__ import annotations

import os

import torch

from fedilc.errors import ConfigError


def find_device(name: str) -> torch.device:
    """Return the device of a name; "auto" is a GPU if there is one, and another GPU for each local rank."""
    if name == "auto" and not torch.cuda.is_available():
        return torch.device("cpu")
    if name in ("auto", "cuda") and torch.cuda.is_available():
        place = os.environ.get("LOCAL_RANK", os.environ.get("SLURM_LOCALID", "0"))
        return torch.device("cuda", int(place) % torch.cuda.device_count())
    if name.startswith("cuda:") and int(os.environ.get("LOCAL_WORLD_SIZE", "1")) > 1:
        raise ConfigError(f"device {name!r} is one GPU for all ranks of a machine; give 'cuda', for one each")
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).item()
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(f"device {name!r} cannot be used here: {reason}") from error
    return device
