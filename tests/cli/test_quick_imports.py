"""Imports without garbage collection, which is afterwards as it was before."""

from __future__ import annotations

import gc
import importlib
import subprocess
import sys

import pytest

from fedilc.cli.console import quick_imports


@pytest.mark.parametrize("enabled", [True, False])
def test_garbage_collection_is_as_before_after_quick_imports_even_if_one_fails(enabled: bool) -> None:
    before = gc.isenabled()
    (gc.enable if enabled else gc.disable)()
    try:
        with pytest.raises(ImportError), quick_imports():
            importlib.import_module("fedilc.nothing_of_that_name")
        assert gc.isenabled() == enabled
    finally:
        (gc.enable if before else gc.disable)()


def test_nothing_is_collected_during_the_imports_and_what_they_loaded_is_not_collected_later() -> None:
    code = (
        "import gc\n"
        "from fedilc.cli.console import quick_imports\n"
        "before = [one['collections'] for one in gc.get_stats()]\n"
        "with quick_imports():\n    import asyncio, email.message, xml.dom.minidom\n"
        "assert [one['collections'] for one in gc.get_stats()] == before\n"
        "assert gc.get_freeze_count() > 1000\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_without_new_modules_nothing_is_frozen() -> None:
    before = gc.get_freeze_count()
    with quick_imports():
        importlib.import_module("gc")
    assert gc.get_freeze_count() == before
