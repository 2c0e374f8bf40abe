"""What commands and modules load: a silo no server, a site no trainer, a listing no torch."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SERVER = {"fastapi", "starlette", "uvicorn"}
STATISTICS = {"matplotlib", "scipy.stats", "sklearn"}
COMMAND = """
from fedilc.cli import main
try:
    main()
except SystemExit as end:
    assert not end.code, end.code
"""


def loaded(code: str, *words: str, folder: Path | None = None) -> set[str]:
    """Return the modules that a fresh interpreter has loaded after it ran the code."""
    code += "\nsys.stderr.write('\\nLOADED ' + ' '.join(sys.modules))"
    command = [sys.executable, "-c", f"import sys\n{code}", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=folder)
    return set(done.stderr.split("\nLOADED ")[1].split())


def test_listing_loads_no_torch() -> None:
    found = loaded(COMMAND, "list")
    assert "fedilc.config" in found
    assert not found & {"torch", "numpy", "polars", "jinja2", *SERVER, *STATISTICS}


def test_the_help_of_join_loads_no_torch() -> None:
    found = loaded(COMMAND, "join", "--help")
    assert not found & {"torch", "numpy", "polars", "jinja2", *SERVER, *STATISTICS}


def test_a_silo_that_joins_loads_no_server_and_no_trainer() -> None:
    found = loaded("from fedilc.runtimes.rest import participant; import fedilc.runtimes.remote.silo_client")
    assert {"torch", "httpx"} <= found
    assert not found & {
        "fedilc.training.loop",
        "fedilc.runtimes.rest.coordinator",
        "numba",
        "polars",
        "jinja2",
        *SERVER,
        *STATISTICS,
    }


def test_a_site_of_nvidia_flare_loads_no_trainer() -> None:
    pytest.importorskip("nvflare", reason="NVIDIA FLARE is not installed: pip install 'fedilc[nvflare]'")
    found = loaded("import fedilc.runtimes.nvflare.executor")
    assert not found & {"fedilc.training.loop", "fedilc.runtimes.nvflare.controller", *SERVER, *STATISTICS}


def test_a_run_loads_neither_scikit_learn_nor_the_compiler_of_torch(tmp_path: Path) -> None:
    found = loaded(COMMAND, "run", "color-digits", "--rounds", "1", "--out", "run", folder=tmp_path)
    assert "matplotlib" in found, "which draws the picture"
    assert not found & {"polars", "scipy.stats", "sklearn", "sympy", "torch._dynamo", *SERVER}
