"""The identity of a run, which must be the same to resume it, and facts about the machine, which may differ.

Settings and data are the identity. Versions, threads, processor and instruction set may change, which may
change the last digits of the run.
"""

from __future__ import annotations

import platform
import shlex
import sys
import warnings
from collections.abc import Mapping
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedilc import __version__
from fedilc.aggregation import _kernels
from fedilc.algorithms import LocalSteps
from fedilc.algorithms.parts import LEVELS, PENALTIES, option_names, taken
from fedilc.algorithms.registry import PartRegistry
from fedilc.errors import CheckpointError, FedILCWarning, listed

_FORMERLY_FLAT = {  # values in a run.json up to version 0.2 for options of parts that were not given
    "zeros": "ignore",
    "covariance": "diagonal",
    **dict.fromkeys(("agreement", "min_side", "trim", *LocalSteps.FLAT)),
}
_NOT_IDENTITY = ("rounds", "device", "machines", "files", "on_divergence", "outlier_factor")
_DERIVED = ("model", "silos", "test")  # checked last: they may differ only because a setting does


def require_same(path: Path, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Raise if settings or data differ from those of the run in `path`, with the first difference."""
    before, now = _without_unknown(path, before, now)
    flat = {*_FORMERLY_FLAT, *option_names()}  # the choices hold them, with the parts that take them
    for key in sorted(set(before) | set(now), key=lambda key: (key in _DERIVED, key)):
        if key in _NOT_IDENTITY or key in flat or before.get(key) == now.get(key):
            continue
        if key in ("silos", "test"):
            whose = _whose(before.get(key), now.get(key))
            raise CheckpointError(
                f"the data of {whose} differ from those of the run in {path}",
                "restore the data, or choose another folder",
            )
        where, old, new = _difference(key, before.get(key), now.get(key))
        raise CheckpointError(
            f"{path} belongs to another configuration: {where} was {_short(old)} there and is {_short(new)} "
            "here",
            "resume with the same settings, or choose another folder",
        )


def _without_unknown(
    path: Path, before: Mapping[str, Any], now: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the facts without the digests of silos that lack one on either side; warn about these silos.

    A silo whose examples are streamed may have the digest None.
    """
    old, new = before.get("silos"), now.get("silos")
    if not isinstance(old, Mapping) or not isinstance(new, Mapping):
        return dict(before), dict(now)
    unknown = [name for name in old if name in new and None in (_digest(old[name]), _digest(new[name]))]
    if unknown:
        warnings.warn(
            f"the examples of {listed([repr(name) for name in unknown])} could not be compared with those of "
            f"the run in {path}, because they are streamed without a digest; make sure that they are the "
            "same, or give Silo.from_dataset digest=True from the first round on",
            FedILCWarning,
            stacklevel=5,
        )
    kept = [
        {name: {**facts, "digest": ""} if name in unknown else facts for name, facts in silos.items()}
        for silos in (old, new)
    ]
    return {**before, "silos": kept[0]}, {**now, "silos": kept[1]}


def _digest(facts: Any) -> Any:
    return facts.get("digest", "") if isinstance(facts, Mapping) else ""


def upgraded(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the facts of a run in today's form: with each part as its name and options.

    Folders up to version 0.2 have only the names of parts, and beside them all options that parts can have;
    `silo_weights` is called `weights` there. Some have the reduction of the penalty among the options of
    every run.
    """
    facts = _with_reduction(_renamed(facts))
    choices = facts.get("choices")
    if isinstance(choices, Mapping):
        facts["choices"] = choices = _renamed(choices)
    if not isinstance(choices, Mapping) or not any(isinstance(choices.get(key), str) for key in LEVELS):
        return facts
    kept = {key: v for key, v in facts.items() if key not in _FORMERLY_FLAT or v != _FORMERLY_FLAT[key]}
    given = {key: v for key, v in kept.items() if key in _FORMERLY_FLAT or key == "reduction"}
    parts = {level: _part(registry, choices.get(level), given) for level, registry in LEVELS.items()}
    return {**kept, "choices": {**choices, **parts}}


def _renamed(facts: Mapping[str, Any]) -> dict[str, Any]:
    return {"silo_weights" if key == "weights" else key: value for key, value in facts.items()}


def _with_reduction(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return facts in which the penalty holds its reduction, formerly `fishr_reduction` beside it."""
    if "fishr_reduction" not in facts:
        return dict(facts)
    found = {key: value for key, value in facts.items() if key != "fishr_reduction"}
    reduction, choices = facts["fishr_reduction"], facts.get("choices") or {}
    if reduction != "mean":
        found["reduction"] = reduction
    penalty = choices.get("penalty")
    if isinstance(penalty, Mapping) and "reduction" in PENALTIES.declared(str(penalty.get("name"))):
        found["choices"] = {**choices, "penalty": {**penalty, "reduction": reduction}}
    return found


def _part(registry: PartRegistry[Any], choice: Any, given: Mapping[str, Any]) -> Any:
    """Return a part that was recorded by name with its options; a name that no longer exists stays a name."""
    if not isinstance(choice, str) or choice not in registry.names():
        return None if choice == "whole" else choice
    return registry.describe(registry.build(choice, **taken(registry, choice, given)))


def _whose(before: Any, now: Any) -> str:
    """Return the first silo whose data differ, or the test set."""
    if not isinstance(before, dict) or not isinstance(now, dict):
        return "the test set"
    return next(f"silo {name!r}" for name in [*before, *now] if before.get(name) != now.get(name))


def _difference(where: str, old: object, new: object) -> tuple[str, object, object]:
    """Return the first key at which two values differ, also inside nested objects, and both values there.

    >>> _difference("model", {"layers": "a", "weights": 1}, {"layers": "a", "weights": 2})
    ('model.weights', 1, 2)
    """
    if isinstance(old, dict) and isinstance(new, dict):
        for key in sorted({*old, *new}):
            if old.get(key) != new.get(key):
                return _difference(f"{where}.{key}", old.get(key), new.get(key))
    return where, old, new


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def machine_facts() -> dict[str, Any]:
    """Return facts about this process and machine; they are not part of a run's identity."""
    return {
        "python": platform.python_version(),
        "fedilc": __version__,
        "torch": str(torch.__version__),
        "numpy": np.__version__,
        "numba": version("numba") if _kernels.installed() else "not installed",
        "threads": torch.get_num_threads(),
        "processor": _processor(),
        "instruction_set": torch.backends.cpu.get_cpu_capability(),
    }


def command_line() -> str:
    """Return the command that started this process, as typed in a shell."""
    program = Path(sys.argv[0])
    name = program.parent.name if program.name == "__main__.py" else program.name.removesuffix(".exe")
    return shlex.join([name, *sys.argv[1:]])


def changed_facts(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """Return text that says what has changed; "" if nothing has.

    >>> changed_facts({"torch": "2.4", "threads": 2}, {"torch": "2.5", "threads": 2})
    'torch 2.4, now 2.5'
    """
    return "; ".join(f"{key} {before.get(key)}, now {now[key]}" for key in now if before.get(key) != now[key])


@cache
def _processor() -> str:
    """Return the processor's model: from Linux's list, or what Python knows on other systems."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())
