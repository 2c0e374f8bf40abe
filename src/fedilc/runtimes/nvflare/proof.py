"""The project of a proof of concept: a server and sites on this machine, whose kits know our jobs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ORGANISATION = "fedilc"
ADMIN = "admin@nvidia.com"
BUILDERS = "nvflare.lighter.impl"


def project_file(
    folder: Path, sites: Sequence[str], local: Mapping[str, Any], port: int = 8002, name: str = "fedilc"
) -> Path:
    """Write a `project.yml` into a folder: certificates and kits for all, `local` for some of them.

    It is written as JSON, which is YAML too.
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
    path.write_text(json.dumps(project, indent=2) + "\n")
    return path
