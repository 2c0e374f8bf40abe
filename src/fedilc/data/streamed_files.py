"""Silos that stay in their files: each is read when it is asked, and forgotten after its answer."""

from __future__ import annotations

from pathlib import Path

import torch

from fedilc.data.checks import numbered_from_one, trained_labels
from fedilc.data.files import Examined, SiloFiles, silo_of
from fedilc.data.silo import Silo, note_numbered_from_one, numbered_from_zero
from fedilc.data.silo_store import SiloStore
from fedilc.data.tables import read_table, same_columns


def streamed_store(files: SiloFiles, found: Examined, seed: int, folder: Path) -> SiloStore:
    """Return the silos of files that were examined, but no more than one of them in memory."""
    first = next(iter(found.files))
    assert found.sample is not None

    profiles = list(found.profiles.values())
    from_one = files.loss == "multiclass" and numbered_from_one(profiles, found.test)

    def open_(name: str) -> Silo:
        table = same_columns(name, read_table(found.files[name], files.label), first, found.columns)
        silo = silo_of(name, table, files.validation_share, seed, files.loss)
        return numbered_from_zero(silo) if from_one else silo

    labels = max(trained_labels(profiles))
    if from_one:
        note_numbered_from_one(labels)
    test = found.test_table
    x_test, y_test = None, None
    if test is not None:
        x_test, y_test = torch.from_numpy(test.x), torch.from_numpy(test.y) - int(from_one)
    return SiloStore(
        folder.name or "files",
        {name: len(profile.trained) for name, profile in found.profiles.items()},
        open_,
        found.sample.x,
        labels + 1 - int(from_one) if files.loss == "multiclass" else 1,
        files.loss,
        x_test,
        y_test,
        seen=found.digests,
        columns=found.columns,
        label=files.label,
        validates=any(len(profile.held_out) for profile in profiles),
    )
