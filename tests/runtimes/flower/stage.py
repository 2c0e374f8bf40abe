"""Runs a story of Flower processes in a namespace with only loopback, in which no process survives it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from needs import need

from fedilc.runtimes.flower import ENVIRONMENT

ALONE = ["unshare", "--map-root-user", "--net", "--pid", "--fork", "--mount-proc", "--kill-child"]


def require_alone() -> None:
    """Skip where Flower is not installed, or processes cannot be kept from the network."""
    pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedilc[flower]'")
    need("unshare", "util-linux", "keeps Flower's processes from the network")
    need("ip", "iproute2", "gives them a loopback of their own")
    tried = subprocess.run([*ALONE, "ip", "link", "set", "lo", "up"], capture_output=True, text=True)
    if tried.returncode:
        pytest.skip(
            f"a namespace with only loopback is not allowed here ({tried.stderr.strip()}): allow user "
            "namespaces on this machine, or run in a container that has the capability SYS_ADMIN"
        )


def play(story: str, folder: Path, seconds: float, **given: Any) -> dict[str, Any]:
    """Run `story`, a file beside this one; what it leaves in told.json."""
    require_alone()
    script = Path(__file__).with_name(story)
    (folder / "given.json").write_text(json.dumps(given))
    with tempfile.TemporaryDirectory(prefix="ray") as short:  # sockets of Ray need short paths
        environment = os.environ | ENVIRONMENT
        environment |= {"FLWR_HOME": str(folder / "home"), "RAY_TMPDIR": short, "OMP_NUM_THREADS": "1"}
        environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"
        lines = f'ip link set lo up && exec "{sys.executable}" "{script}" "{folder}"'
        with (folder / "story.log").open("w") as log:
            command = [*ALONE, "sh", "-c", lines]
            with subprocess.Popen(command, stdout=log, stderr=log, env=environment, cwd=folder) as process:
                try:
                    process.wait(timeout=seconds)
                finally:
                    process.kill()
    told = folder / "told.json"
    said = (folder / "story.log").read_text()[-6000:]
    assert process.returncode == 0, said
    return {"said": said, **json.loads(told.read_text())}
