"""Stream a silo's examples from a dataset or from batches: read when they are used, never all in memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

from fedilc.data.inputs import Inputs, Several, Streamed, make_inputs, make_tensor, shape_of, tensors_of
from fedilc.errors import DataError

_BLOCK_BYTES = 8 << 20


def stream(source: Any, where: str) -> tuple[Streamed, Tensor]:
    """Return the examples of a source as streamed inputs, and their labels, which are read once and kept.

    All examples are read once, to count and check them. `where` begins errors.
    """
    reader = _Items(source, where) if _has_items(source) else _Batches(source, where)
    labels = []
    sample: Inputs | None = None
    for x, y in reader.blocks():
        if sample is None:
            sample = x[:2].clone()
        elif shape_of(x) != shape_of(sample):
            raise DataError(
                f"{where} has examples of shape {shape_of(sample)} and of {shape_of(x)}; all must have the "
                "same shape"
            )
        elif len(sample) < 2:
            sample = _joined([sample, x[:1]])
        labels.append(y)
    if sample is None:
        raise DataError(f"{where} is empty: its dataset holds no example; leave it out or give it data")
    reader.labels = torch.cat(labels)
    return Streamed(reader, len(reader.labels), sample), reader.labels


def _has_items(source: Any) -> bool:
    return hasattr(source, "__getitem__") and hasattr(source, "__len__")


def _joined(parts: list[Inputs]) -> Inputs:
    """Return examples that follow one another as one."""
    if len(parts) == 1:
        return parts[0]
    columns = [torch.cat(column) for column in zip(*map(tensors_of, parts), strict=True)]
    if isinstance(parts[0], Tensor):
        return columns[0]
    named = isinstance(parts[0].parts, dict)
    return Several(dict(zip(parts[0].names, columns, strict=True)) if named else tuple(columns))


def _checked(pair: Any, where: str) -> tuple[Inputs, Tensor]:
    """Return a batch as inputs and labels; raise if it is not a pair of them."""
    if not isinstance(pair, tuple | list) or len(pair) != 2:
        raise DataError(f"{where} has items of type {type(pair).__name__}; each must be a pair (x, y)")
    x, y = pair
    # Collating makes lists of tuples: these are several inputs.
    inputs = make_inputs(tuple(x) if isinstance(x, list) else x, where, "x")
    labels = make_tensor(y, where, "y")
    labels = labels[:, 0] if labels.dim() == 2 and labels.shape[1] == 1 else labels
    if any(not tensor.dim() or not tensor.numel() for tensor in tensors_of(inputs)):
        raise DataError(f"{where} has a batch without examples or inputs; leave it out")
    if labels.dim() != 1 or len(labels) != len(inputs):
        raise DataError(
            f"{where}: y has shape {tuple(labels.shape)} in a batch of {len(inputs)} examples; give one "
            "label per example"
        )
    return inputs, labels


class _Known:
    """The base of readers: the labels of the first reading, with which every later one must agree."""

    def __init__(self, where: str) -> None:
        self.where = where
        self.labels = torch.empty(0)

    def require_same(self, y: Tensor, rows: range | Tensor) -> None:
        """Raise if labels are not those of the first reading, as in batches that are shuffled each time."""
        first = self.labels[rows.start : rows.stop] if isinstance(rows, range) else self.labels[rows]
        if not torch.equal(y.to(first), first):
            raise DataError(
                f"{self.where} gave different labels when it was read again; its examples must come in the "
                "same order each time: turn off shuffling"
            )


class _Items(_Known):
    """A dataset with one example (x, y) per index."""

    def __init__(self, dataset: Any, where: str) -> None:
        super().__init__(where)
        self.dataset = dataset

    def blocks(self) -> Iterator[tuple[Inputs, Tensor]]:
        """Yield all examples in blocks of a few megabytes."""
        size = 1  # the first example shows how many fit in a block
        start = 0
        while start < len(self.dataset):
            x, y = self._fetch(range(start, min(start + size, len(self.dataset))))
            yield x, y
            start += len(y)
            each = sum(tensor[0].numel() * tensor.element_size() for tensor in tensors_of(x))
            size = max(1, _BLOCK_BYTES // each)

    def read(self, rows: range | Tensor) -> Inputs:
        """Return the inputs of some examples."""
        x, y = self._fetch(rows)
        self.require_same(y, rows)
        return x

    def _fetch(self, rows: range | Tensor) -> tuple[Inputs, Tensor]:
        from torch.utils.data import default_collate

        places = list(rows) if isinstance(rows, range) else rows.tolist()
        try:
            items = [_item(self.dataset[place], self.where) for place in places]
            pair = default_collate(items)
        except (TypeError, RuntimeError, ValueError, KeyError, IndexError) as error:
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            raise DataError(f"{self.where}: its examples cannot be read as tensors ({reason})") from error
        return _checked(pair, self.where)


def _item(item: Any, where: str) -> tuple[Any, Any]:
    """Return an item as a pair; a list of numbers is one input, and a tuple several."""
    if not isinstance(item, tuple | list) or len(item) != 2:
        raise DataError(f"{where} has items of type {type(item).__name__}; each must be a pair (x, y)")
    x, y = item
    return (torch.tensor(x) if isinstance(x, list) else x), y


class _Batches(_Known):
    """An iterable of batches (x, y), read from its beginning again and again."""

    def __init__(self, batches: Any, where: str) -> None:
        super().__init__(where)
        if isinstance(batches, torch.utils.data.IterableDataset):
            raise DataError(
                f"{where} is an IterableDataset, which yields single examples; give "
                "torch.utils.data.DataLoader(dataset, batch_size=...), which yields batches"
            )
        if not isinstance(batches, Iterable):
            raise DataError(
                f"{where} is a {type(batches).__name__}; give a dataset with __len__ and __getitem__, or an "
                "iterable of batches (x, y)"
            )
        if isinstance(batches, Iterator):
            raise DataError(
                f"{where} is an iterator, which can be read only once; give what creates it, such as a "
                "DataLoader, or an object whose __iter__ begins again"
            )
        self.batches = batches
        self._restart()

    def blocks(self) -> Iterator[tuple[Inputs, Tensor]]:
        """Yield all batches."""
        for pair in self.batches:
            yield _checked(pair, self.where)

    def read(self, rows: range | Tensor) -> Inputs:
        """Return the inputs of consecutive examples; continue where the last reading ended, if possible."""
        if isinstance(rows, Tensor):
            raise DataError(
                f"{self.where} is an iterable of batches, which can only be read in order, but this run "
                "draws examples at random; give a dataset with __len__ and __getitem__, or set batch_size "
                "to 'all', environment_size to 1 or None, and balance to 'weights' or None"
            )
        if rows.start < self._place:
            self._restart()
        self._take(rows.start - self._place)
        x, y = self._take(len(rows))
        self.require_same(y, rows)
        if self._place == len(self.labels):
            self._restart()
        return x

    def _restart(self) -> None:
        self._place = 0
        self._left: tuple[Inputs, Tensor] | None = None
        self._open: Iterator[Any] | None = None

    def _take(self, count: int) -> tuple[Inputs, Tensor]:
        """Return the next examples; what is left of the last batch stays for the next call."""
        xs, ys = [], []
        while count > 0:
            if self._left is None:
                self._open = iter(self.batches) if self._open is None else self._open
                pair = next(self._open, None)
                if pair is None:
                    raise DataError(f"{self.where} gave fewer examples when it was read again; give it whole")
                self._left = _checked(pair, self.where)
            x, y = self._left
            xs.append(x[:count])
            ys.append(y[:count])
            self._left = (x[count:], y[count:]) if len(y) > count else None
            self._place += len(ys[-1])
            count -= len(ys[-1])
        return (_joined(xs), torch.cat(ys)) if xs else (torch.empty(0), torch.empty(0))
