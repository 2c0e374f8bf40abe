"""What a silo refuses: a run that it did not agree to, a network that is too large, too few examples."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path

from fedilc.errors import ConfigError, writing
from fedilc.federation.json_files import parse_json
from fedilc.federation.tensor_files import write_atomically
from fedilc.runtimes.remote.manifest import Manifest

MAX_PARAMETERS = 2**28
_FILE = "runs.json"


@dataclass(frozen=True)
class SiloLimits:
    """A silo's own limits; a run outside them is refused before anything is built or computed.

    Args:
        max_parameters: the largest network to build.
        min_examples: the fewest training examples with which this silo takes part.
        digest: the manifest's hash, or at least its first 16 digits; None accepts any run.
        state: a folder that stores the run joined at an address; another run there is refused.
    """

    max_parameters: int = MAX_PARAMETERS
    min_examples: int = 1
    digest: str | None = None
    state: Path | None = None

    def __post_init__(self) -> None:
        if self.digest is not None and not re.fullmatch("[0-9a-f]{16,64}", self.digest):
            raise ConfigError(
                f"--manifest-digest {self.digest!r} is not a manifest's digest; give 16 to 64 of the digits "
                "that `fedilc serve` shows"
            )

    def require_run(self, manifest: Manifest, url: str, silo: str) -> None:
        """Raise if the coordinator has another run than this silo agreed to, or too large a network."""
        if self.digest is not None and not manifest.hash.startswith(self.digest):
            raise ConfigError(
                f"the coordinator has manifest {manifest.hash[:16]} and this silo takes part only in "
                f"{self.digest[:16]}; find out why before you change --manifest-digest"
            )
        known = self._known().get(f"{silo} {url}")
        if self.digest is None and known is not None and known != manifest.hash:
            raise ConfigError(
                f"the coordinator has manifest {manifest.hash[:16]} and this silo joined {known[:16]} there "
                "before; if you agree to the new run, join it once with --manifest-digest "
                f"{manifest.hash[:16]}"
            )
        manifest.require_at_most(self.max_parameters)

    def require_examples(self, examples: int, silo: str) -> None:
        """Raise if the silo has too few examples to take part."""
        if examples < self.min_examples:
            raise ConfigError(
                f"silo {silo!r} has {examples} examples to train on, fewer than --min-examples "
                f"{self.min_examples}; it does not take part"
            )

    def remember(self, manifest: Manifest, url: str, silo: str) -> None:
        """Store the run in the state folder, as the one to expect at this address."""
        if self.state is None:
            return
        known = self._known() | {f"{silo} {url}": manifest.hash}
        with writing(self.state):
            self.state.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_atomically(self.state / _FILE, (json.dumps(known, indent=2) + "\n").encode())

    def _known(self) -> dict[str, str]:
        file = None if self.state is None else self.state / _FILE
        if file is None or not file.exists():
            return {}
        try:
            stored = parse_json(file.read_text())
            return {str(key): str(value) for key, value in stored.items()}
        except (OSError, ValueError, AttributeError) as error:
            raise ConfigError(f"{file} cannot be read: {error}; repair or delete it") from error
