"""Silos that stay in their files: each is read when it is asked, and forgotten after its answer."""

from __future__ import annotations

from pathlib import Path

from fedilc.data.files import Examined, SiloFiles, silo_of
from fedilc.data.silo import Federation, Silo
from fedilc.data.silo_store import SiloStore
from fedilc.data.tables import read_table, same_columns


def streamed_store(files: SiloFiles, found: Examined, seed: int, folder: Path) -> SiloStore:
    """Return the silos of files that were examined, but no more than one of them in memory."""
    first = next(iter(found.files))
    assert found.sample is not None

    def open_(name: str) -> Silo:
        table = read_table(found.files[name], files.label)
        return silo_of(name, same_columns(name, table, first, found.columns), files.validation_share, seed)

    test = found.test_table
    x_test, y_test = (test.x, test.y) if test is not None else (None, None)
    small = Federation(folder.name or "files", [found.sample], x_test, y_test, files.loss)
    labels = max(max(profile.trained_labels) for profile in found.profiles.values())
    return SiloStore(
        small.name,
        {name: len(profile.trained) for name, profile in found.profiles.items()},
        open_,
        found.sample.x,
        1 if files.loss == "binary" else labels + 1,
        files.loss,
        small.x_test,
        small.y_test,
        seen=found.digests,
        columns=found.columns,
        label=files.label,
        validates=any(len(profile.held_out) for profile in found.profiles.values()),
    )
