"""Silos that stay in their files: each is read when it is asked, and forgotten after its answer."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from fedilc.data.files import SiloFiles, read_table, same_columns, silo_of
from fedilc.data.fingerprint import silo_digest
from fedilc.data.shelf import Shelf
from fedilc.data.silo import Federation, LossName, Silo


def shelf_from_files(files: SiloFiles, seed: int, folder: Path) -> Shelf:
    """The silos of files as `federation_from_files` has them, but no more than one of them in memory.

    Every file is read once now, so that what is wrong with any of them is said before the first round.
    """
    paths, loss = files.paths(folder), files.loss
    first = next(iter(paths))
    columns = read_table(paths[first], files.label).columns

    def open_(name: str) -> Silo:
        table = same_columns(name, read_table(paths[name], files.label), first, columns)
        return silo_of(name, table, files.validation_share, seed)

    x_test, y_test = files.outside(folder, first, columns)
    title = folder.name or "files"
    small = _two_of(open_(first))
    whole = Federation(title, [small], x_test, y_test, loss)
    seen = {name: _check(open_(name), small, loss) for name in paths}
    outputs = max(found.outputs for found in seen.values())
    last = max(seen, key=lambda name: seen[name].highest)
    if seen[last].highest >= outputs:
        Federation(title, [open_(last)], loss=loss).check_classes(outputs)
    whole.check_classes(outputs)
    sizes = {name: found.examples for name, found in seen.items()}
    digests = {name: found.digest for name, found in seen.items()}
    return Shelf(title, sizes, open_, small.x, outputs, loss, whole.x_test, whole.y_test, seen=digests)


class _Seen(NamedTuple):
    """What is kept of a silo: its size, the logits it needs, its highest held-out label, its fingerprint."""

    examples: int
    outputs: int
    highest: int
    digest: str


def _two_of(silo: Silo) -> Silo:
    return Silo(silo.name, silo.x[:2].clone(), silo.y[:2].clone())


def _check(silo: Silo, first: Silo, loss: LossName) -> _Seen:
    """Raise where the silo cannot be one of a federation with the first."""
    members = [silo] if silo.name == first.name else [first, silo]
    outputs = Federation("files", members, loss=loss).outputs
    held_out = silo.y_val
    highest = -1 if held_out is None or not len(held_out) else int(held_out.max())
    return _Seen(len(silo), outputs, highest if loss == "multiclass" else -1, silo_digest(silo))
