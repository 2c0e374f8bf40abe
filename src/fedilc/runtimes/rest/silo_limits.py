"""What a silo refuses: a run that it did not agree to, a network that is too large, too few examples."""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass
from pathlib import Path

from fedilc.errors import ConfigError, writing
from fedilc.federation.json_files import parse_json
from fedilc.federation.tensor_files import write_atomically
from fedilc.runtimes.remote.manifest import Manifest

MAX_PARAMETERS = 2**28
_FILE = "runs.json"
_CONSENTS = "summaries.json"


@dataclass(frozen=True)
class SiloLimits:
    """A silo's own limits; a run outside them is refused before anything is built or computed.

    Args:
        max_parameters: the largest network to build.
        min_examples: the fewest training examples with which this silo takes part.
        digest: the manifest's hash, or at least its first 16 digits; None accepts any run.
        state: a folder that stores the run joined at an address; another run there is refused. It also stores
            which summary of a table the owner agreed to send; without it, the user's own folder does.
    """

    max_parameters: int = MAX_PARAMETERS
    min_examples: int = 1
    digest: str | None = None
    state: Path | None = None

    def __post_init__(self) -> None:
        if self.digest is not None and not re.fullmatch("[0-9a-f]{16,64}", self.digest):
            raise ConfigError(
                f"`manifest_digest` {self.digest!r} is not a manifest's digest; give 16 to 64 of the digits "
                "that `fedilc serve` shows"
            )

    def require_run(self, manifest: Manifest, url: str, silo: str) -> None:
        """Raise if the coordinator has another run than this silo agreed to, or too large a network."""
        if self.digest is not None and not manifest.hash.startswith(self.digest):
            raise ConfigError(
                f"the coordinator has manifest {manifest.hash[:16]} and this silo takes part only in "
                f"{self.digest[:16]}; find out why before you change `manifest_digest`"
            )
        known = self._known().get(f"{silo} {url}")
        if self.digest is None and known is not None and known != manifest.hash:
            raise ConfigError(
                f"the coordinator has manifest {manifest.hash[:16]} and this silo joined {known[:16]} there "
                "before; if you agree to the new run, join it once with "
                f"`manifest_digest={manifest.hash[:16]}`"
            )
        manifest.require_at_most(self.max_parameters)

    def require_examples(self, examples: int, silo: str) -> None:
        """Raise if the silo has too few examples to take part."""
        if examples < self.min_examples:
            raise ConfigError(
                f"silo {silo!r} has {examples} examples to train on, fewer than "
                f"`min_examples={self.min_examples}`; it does not take part"
            )

    def remember(self, manifest: Manifest, url: str, silo: str) -> None:
        """Store the run in the state folder, as the one to expect at this address."""
        if self.state is None:
            return
        self._store(_FILE, self._known() | {f"{silo} {url}": manifest.hash})

    def agreed(self, url: str, silo: str, run: str, table: str) -> str | None:
        """Return the digest of the summary that the owner agreed to send; raise if the table has changed.

        `table` is the digest of the table's file. What was agreed for another run does not count.
        """
        known = self._stored(_CONSENTS)
        if known.get(f"{silo} {url} run") != run:
            return None
        before = known.get(f"{silo} {url} table")
        if before is not None and before != table:
            raise ConfigError(
                f"the table of silo {silo!r} has changed since its summary was sent to the run {run!r}, and "
                "the difference of two summaries tells about single patients; restore the table, take part "
                f"in a new run of another name, or delete {self.consent_folder / _CONSENTS} if you agree"
            )
        return known.get(f"{silo} {url} summary")

    def last_summary(self, url: str, silo: str) -> str | None:
        """Return the digest of the summary that was last sent to this address, whatever the run."""
        return self._stored(_CONSENTS).get(f"{silo} {url} summary")

    def remember_summary(self, url: str, silo: str, run: str, table: str, summary: str) -> None:
        """Store which summary the owner agreed to send, so that a restart need not ask again."""
        facts = {"run": run, "table": table, "summary": summary}
        known = self._stored(_CONSENTS) | {f"{silo} {url} {key}": value for key, value in facts.items()}
        self._store(_CONSENTS, known)

    @property
    def consent_folder(self) -> Path:
        """Return the folder that stores which summaries the owner agreed to: `state`, or the user's own."""
        if self.state is not None:
            return self.state
        return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "fedilc"

    def _store(self, name: str, values: dict[str, str]) -> None:
        folder = self.consent_folder
        with writing(folder):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_atomically(folder / name, (json.dumps(values, indent=2) + "\n").encode())

    def _known(self) -> dict[str, str]:
        return {} if self.state is None else self._stored(_FILE)

    def _stored(self, name: str) -> dict[str, str]:
        file = self.consent_folder / name
        if not file.exists():
            return {}
        try:
            stored = parse_json(file.read_text())
            return {str(key): str(value) for key, value in stored.items()}
        except (OSError, ValueError, AttributeError) as error:
            raise ConfigError(f"{file} cannot be read: {error}; repair or delete it") from error
