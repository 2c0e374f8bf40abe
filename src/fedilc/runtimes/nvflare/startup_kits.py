"""Make start-up kits whose sites may run our jobs: class allow-list, and which silo a site is.

`FedILCBuilder` does so while kits are provisioned: name it in the project's `builders`, before the signature.

    - path: fedilc.runtimes.nvflare.startup_kits.FedILCBuilder
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from nvflare.app_common.default_component_policy import DEFAULT_CLASS_ALLOW_LIST
from nvflare.lighter.ctx import ProvisionContext
from nvflare.lighter.entity import Project
from nvflare.lighter.spec import Builder

from fedilc.federation.tensor_files import write_atomically
from fedilc.runtimes.nvflare.local_config import FILE

ALLOWED = "fedilc.runtimes.nvflare."
ALLOW_LIST = "class_allow_list"
RESOURCES = ("resources.json", "resources.json.default")
ORGANISATION = "fedilc"
ADMIN = "admin@nvidia.com"
BUILDERS = "nvflare.lighter.impl"


def allow_fedilc(local: Path) -> None:
    """Add our prefix to the class allow-list of a `local` folder, or to NVIDIA FLARE's own if it has none."""
    paths = [local / name for name in RESOURCES if (local / name).exists()] or [local / RESOURCES[1]]
    for path in paths:
        resources: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {"format_version": 2}
        allowed = list(resources.get(ALLOW_LIST, DEFAULT_CLASS_ALLOW_LIST))
        if ALLOWED not in allowed:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, _json(resources | {ALLOW_LIST: [*allowed, ALLOWED]}))


class FedILCBuilder(Builder):  # type: ignore[misc]  # untyped nvflare: its class is Any
    """A provisioning step that allows our components in every kit.

    Args:
        local: the content of `local/fedilc.json`, by participant; a participant that is not named gets none.
    """

    def __init__(self, local: Mapping[str, Mapping[str, Any]] | None = None) -> None:
        super().__init__()
        self.local = dict(local or {})

    def build(self, project: Project, ctx: ProvisionContext) -> None:
        """Change the `local` folders of the server's and the sites' kits."""
        for participant in [project.get_server(), *project.get_clients()]:
            folder = Path(ctx.get_local_dir(participant))
            allow_fedilc(folder)
            if participant.name in self.local:
                write_atomically(folder / FILE, _json(self.local[participant.name]))


def write_poc_project(
    folder: Path, sites: Sequence[str], local: Mapping[str, Any], port: int = 8002, name: str = "fedilc"
) -> Path:
    """Write the `project.yml` of a proof of concept: a server and sites on this machine, with certificates.

    `local` is that of `FedILCBuilder`. The file is written as JSON, which is YAML too.
    """
    server = {"name": "server", "type": "server", "org": ORGANISATION, "default_host": "localhost"}
    admin = {"name": ADMIN, "type": "admin", "org": ORGANISATION, "role": "project_admin"}
    clients = [{"name": site, "type": "client", "org": ORGANISATION} for site in sites]
    templates = ["master_template.yml"]
    project: dict[str, Any] = {
        "api_version": 3,
        "name": name,
        "participants": [server | {"fed_learn_port": port}, *clients, admin],
        "builders": [
            {"path": f"{BUILDERS}.workspace.WorkspaceBuilder", "args": {"template_file": templates}},
            {"path": f"{BUILDERS}.static_file.StaticFileBuilder", "args": {"config_folder": "config"}},
            {"path": f"{BUILDERS}.cert.CertBuilder"},
            {"path": "fedilc.runtimes.nvflare.startup_kits.FedILCBuilder", "args": {"local": dict(local)}},
            {"path": f"{BUILDERS}.signature.SignatureBuilder"},
        ],
    }
    path = folder / "project.yml"
    path.write_bytes(_json(project))
    return path


def _json(value: Mapping[str, Any]) -> bytes:
    return (json.dumps(value, indent=2) + "\n").encode()
