"""What a site's start-up kit must say before it runs our jobs: the class allow-list, and its silo.

`FedILCBuilder` says it while kits are made: name it in the project's `builders`, before the signature.

    - path: fedilc.runtimes.nvflare.startup_kits.FedILCBuilder
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from nvflare.lighter.ctx import ProvisionContext
from nvflare.lighter.entity import Project
from nvflare.lighter.spec import Builder

from fedilc.federation.tensor_files import write_atomically
from fedilc.runtimes.nvflare.local_config import FILE

ALLOWED = "fedilc.runtimes.nvflare."
ALLOW_LIST = "class_allow_list"
RESOURCES = ("resources.json", "resources.json.default")


def allow_fedilc(local: Path, otherwise: Iterable[str]) -> None:
    """Put our prefix on the class allow-list of a `local` folder; `otherwise` is the list where none is."""
    found = [local / name for name in RESOURCES if (local / name).exists()] or [local / RESOURCES[1]]
    for path in found:
        resources: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {"format_version": 2}
        allowed = list(resources.get(ALLOW_LIST, otherwise))
        if ALLOWED not in allowed:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, _json(resources | {ALLOW_LIST: [*allowed, ALLOWED]}))


class FedILCBuilder(Builder):  # type: ignore[misc]  # untyped nvflare: its class is Any
    """Makes kits whose sites may run our jobs.

    Args:
        local: for some participants, by name, what their `local/fedilc.json` says.
    """

    def __init__(self, local: Mapping[str, Mapping[str, Any]] | None = None) -> None:
        super().__init__()
        self.local = dict(local or {})

    def build(self, project: Project, ctx: ProvisionContext) -> None:
        """Change the `local` folders of the server's and the sites' kits."""
        from nvflare.app_common.default_component_policy import DEFAULT_CLASS_ALLOW_LIST

        for participant in [project.get_server(), *project.get_clients()]:
            folder = Path(ctx.get_local_dir(participant))
            allow_fedilc(folder, DEFAULT_CLASS_ALLOW_LIST)
            if participant.name in self.local:
                write_atomically(folder / FILE, _json(self.local[participant.name]))


def _json(value: Mapping[str, Any]) -> bytes:
    return (json.dumps(value, indent=2) + "\n").encode()
