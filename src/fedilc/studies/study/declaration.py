"""The plan of a study, declared before its data are analysed: everything that the result depends on.

The plan is made of the study's own objects, so that a new setting enters by itself. It names the data by
digests and holds none of their rows. A digest of the plan, stored in it, shows whether the file was edited.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from fedilc import __version__
from fedilc.algorithms.user_code import code_digest
from fedilc.data.digests import digest
from fedilc.errors import ConfigError, DataError, writing
from fedilc.storage.files import parse_json, read_plain, write_atomically
from fedilc.studies.study.data import StudyData, StudyTables
from fedilc.studies.study.plan import StudyPlan

FILE = "plan.json"
FORMAT = 1
INPUTS = {"data", "options", "settings"}
_ABSENT = object()  # in place of what one of two plans does not have
_REPORTED = (
    "as the headline, the primary score of the procedure that chooses the method and its settings on the "
    "training sites",
    "the primary score of every method at every held-out site, with its 95 % interval, whatever it is",
    "what to expect of it at a new site: random effects over the held-out sites, with a 95 % prediction "
    "interval",
    "the difference of every method from the reference, by site and over sites",
    "the other scores, the settings chosen for every held-out site, and notes on the data",
)


@dataclass(frozen=True)
class Protocol:
    """A declared plan.

    Attributes:
        content: what is declared: `inputs` is what the command was given, the rest is what follows from it.
    """

    content: Mapping[str, Any]

    @classmethod
    def of(cls, plan: StudyPlan, inputs: Mapping[str, Any]) -> Protocol:
        """Return the plan of a study; `inputs` has what the command was given, to be given again."""
        data, scores = plan.data, plan.metrics
        tables = data.tables.settings.model_dump(mode="json") if isinstance(data, StudyTables) else None
        content = {
            "format": FORMAT,
            "fedilc": __version__,
            "inputs": inputs,
            "tables": tables,
            "loss": data.loss,
            "outputs": data.outputs,
            "settings": asdict(plan.settings),
            "network_code": _network_code(plan.settings.model),
            "scalings": plan.scalings,
            "networks": plan.networks,
            "steps": plan.steps,
            "methods": {method: plan.grid(method) for method in plan.methods},
            "chosen_among": plan.algorithms,
            "reference": plan.reference,
            "primary": scores[0],
            "scores": scores,
            "choose_by": plan.choose_by,
            "choosing_rows": plan.choosing_rows,
            "groups": plan.groups,
            "held_out": plan.held_out,
            "seeds": list(range(plan.settings.seeds)),
            "reported": _REPORTED,
            "data": _digests(data),
        }
        return cls(json.loads(json.dumps(content)))

    @property
    def digest(self) -> str:
        """Return the SHA-256 of what is declared."""
        return hashlib.sha256(json.dumps(self.content, sort_keys=True).encode()).hexdigest()

    @classmethod
    def read(cls, path: Path) -> Protocol:
        """Return the plan in a file; raise if it is none, or was edited since it was written."""
        try:
            content = dict(parse_json(read_plain(path)))
            stored = content.pop("digest")
            if content["format"] != FORMAT or content["inputs"].keys() != INPUTS:
                raise ValueError("it has another format")
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not what `protocol` writes"
            raise ConfigError(f"{path} is no plan of a study: {reason}; write one with `protocol`") from error
        found = cls(content)
        if found.digest != stored:
            raise ConfigError(
                f"{path} was edited after it was written: its content does not match its digest; restore it, "
                "or write a new plan with `protocol`"
            )
        return found

    def write(self, path: Path) -> None:
        """Write the plan to a file, unless another one is there already."""
        if path.exists() and Protocol.read(path).digest != self.digest:
            raise ConfigError(f"{path} declares another analysis; delete it, or name another file")
        with writing(path):
            text = json.dumps({**self.content, "digest": self.digest}, indent=1)
            write_atomically(path, f"{text}\n".encode())

    def require(self, found: Protocol, path: Path) -> None:
        """Raise one sentence that names what differs if a study is not the one that the plan declares."""
        if self.content["fedilc"] != __version__:
            raise ConfigError(
                f"{path} was declared with fedilc {self.content['fedilc']}, and this is {__version__}; "
                "install that version"
            )
        for key in {**self.content, **found.content}:
            declared, here = self.content.get(key), found.content.get(key)
            if key == "inputs" or here == declared:
                continue
            if key == "network_code" and self.content["settings"] == found.content["settings"]:
                model = self.content["settings"]["model"]
                raise ConfigError(
                    f"the code of the network {model!r} changed since {path} was written; restore it, or "
                    "write a new plan with `protocol`"
                )
            place, declared, here = _first_difference((key,), declared, here)
            if key == "data":
                raise DataError(f"{_changed(place, declared, here)}; {path} declares other data")
            raise ConfigError(
                f"{path} declares {'.'.join(place)} = {_told(declared)}, and this analysis has "
                f"{_told(here)}; follow the plan as it is, or write a new one with `protocol`"
            )

    def claim(self, folder: Path) -> None:
        """Keep the plan in the folder of results; raise if runs were done there without it."""
        kept = folder / FILE
        if (folder / "runs").exists() and not (kept.exists() and Protocol.read(kept).digest == self.digest):
            raise ConfigError(
                f"{folder} has runs that were done without this plan, so that the plan would not come before "
                "them; name another folder with `out`"
            )
        with writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
        self.write(kept)


def declaration(protocol: str | None) -> str:
    """Return the sentence that says whether a study was declared, given the digest of its plan.

    >>> declaration(None)
    'Exploratory: no plan was declared before the data were analysed.'
    >>> declaration("2f0c")
    'Declared before the data were analysed: sha256 2f0c.'
    """
    if protocol is None:
        return "Exploratory: no plan was declared before the data were analysed."
    return f"Declared before the data were analysed: sha256 {protocol}."


def _network_code(model: str | None) -> str | None:
    """Return a digest of the code of the user's own network, `module:function`; None for other networks."""
    return code_digest(model) if model is not None and ":" in model else None


def _digests(data: StudyData) -> dict[str, dict[str, Any]]:
    return {
        silo: {
            "examples": len(y),
            "features": data.fingerprints[silo],
            "labels": digest(torch.as_tensor(y)),
        }
        for silo, y in data.labels.items()
    }


def _changed(place: Sequence[str], declared: Any, here: Any) -> str:
    """Return which silo's data are not those declared, and in what.

    >>> _changed(("data", "north", "examples"), 40, 39)
    "the examples of silo 'north' changed (39, declared: 40)"
    """
    silo = place[1]
    if len(place) == 2:
        return f"silo {silo!r} is {'new' if declared is _ABSENT else 'missing'}"
    count = f" ({here}, declared: {declared})" if place[2] == "examples" else ""
    return f"the {place[2]} of silo {silo!r} changed{count}"


def _first_difference(place: tuple[str, ...], declared: Any, here: Any) -> tuple[tuple[str, ...], Any, Any]:
    """Return where two values first differ, and both there.

    >>> _first_difference(("settings",), {"seeds": 3, "rounds": 5}, {"seeds": 3, "rounds": 9})
    (('settings', 'rounds'), 5, 9)
    """
    if isinstance(declared, dict) and isinstance(here, dict):
        for key in {**declared, **here}:
            there, now = declared.get(key, _ABSENT), here.get(key, _ABSENT)
            if there != now:
                return _first_difference((*place, key), there, now)
    return place, declared, here


def _told(value: Any) -> str:
    """Return a value in a sentence.

    >>> _told([5]), _told(_ABSENT)
    ('[5]', 'no such entry')
    """
    return "no such entry" if value is _ABSENT else json.dumps(value)
