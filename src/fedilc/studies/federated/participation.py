"""Who takes part in a study, since when, and who has left it for good: a file in the study's folder."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from pydantic import ValidationError

from fedilc.errors import ConfigError
from fedilc.section import Section
from fedilc.storage.files import write_atomically

FILE = "participation.json"


class Part(Section):
    """One silo's part: when it joined first, and when and why it left; times are of ISO 8601."""

    joined: str | None = None
    left: str | None = None
    reason: str | None = None


@dataclass
class Participation:
    """The parts of all silos, by name, kept in a folder."""

    folder: Path
    parts: dict[str, Part] = field(default_factory=dict)

    @classmethod
    def read(cls, folder: Path) -> Participation:
        """Return what a folder says; nothing if the study is new."""
        path = folder / FILE
        if not path.exists():
            return cls(folder)
        try:
            found = json.loads(path.read_text())
            return cls(folder, {silo: Part.model_validate(one) for silo, one in found.items()})
        except (OSError, ValueError, AttributeError, ValidationError) as error:
            raise ConfigError(f"{path} cannot be read; restore it, or start in another folder") from error

    @property
    def left(self) -> dict[str, str]:
        """Return why silos have left for good."""
        return {silo: str(one.reason) for silo, one in self.parts.items() if one.left is not None}

    def note(self, joined: Mapping[str, float]) -> None:
        """Keep when silos joined, in seconds since 1970; the first time counts."""
        new = [silo for silo in joined if self.parts.get(silo, Part()).joined is None]
        for silo in new:
            known = self.parts.get(silo, Part())
            self.parts[silo] = known.model_copy(update={"joined": _text(joined[silo])})
        if new:
            self._write()

    def leave(self, silo: str, reason: str, when: float) -> None:
        """Keep that a silo has left for good."""
        known = self.parts.get(silo, Part())
        self.parts[silo] = known.model_copy(update={"left": _text(when), "reason": reason})
        self._write()

    def _write(self) -> None:
        content = {silo: one.model_dump() for silo, one in self.parts.items()}
        write_atomically(self.folder / FILE, (json.dumps(content, indent=1) + "\n").encode())


def _text(when: float) -> str:
    return datetime.fromtimestamp(when, UTC).isoformat(timespec="seconds")
