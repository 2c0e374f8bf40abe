"""The inputs of examples: one tensor, or several by name or in order for models that take several."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, cast, overload

import numpy as np
import torch
from torch import Tensor, nn

from fedilc.errors import DataError

# The shape of one example: [3], {"image": [1, 8, 8], "age": []} or [[1, 8, 8], []].
Shape = Sequence[int] | Mapping[str, Sequence[int]] | Sequence[Sequence[int]]


@dataclass(frozen=True)
class Several:
    """Several inputs of the same examples, which a model takes as `model(**parts)` or `model(*parts)`.

    It is indexed, copied and cut like one tensor, so that code for one tensor works for several.

    >>> pair = Several({"image": torch.zeros(3, 8, 8), "age": torch.zeros(3)})
    >>> len(pair), shape_of(pair[:2])
    (3, {'image': [8, 8], 'age': []})
    """

    parts: dict[str, Tensor] | tuple[Tensor, ...]

    @property
    def tensors(self) -> list[Tensor]:
        """Return the tensors, in order."""
        return list(self.parts.values() if isinstance(self.parts, dict) else self.parts)

    @property
    def names(self) -> list[str]:
        """Return the names of the tensors; their places, from 0, if they have no names."""
        return list(self.parts) if isinstance(self.parts, dict) else [str(i) for i in range(len(self.parts))]

    @property
    def device(self) -> torch.device:
        """Return the device of the tensors."""
        return self.tensors[0].device

    def map(self, change: Callable[[Tensor], Tensor]) -> Several:
        """Return the inputs with each tensor changed."""
        if isinstance(self.parts, dict):
            return Several({name: change(tensor) for name, tensor in self.parts.items()})
        return Several(tuple(change(tensor) for tensor in self.parts))

    def __len__(self) -> int:
        return len(self.tensors[0])

    def __getitem__(self, rows: Any) -> Several:
        return self.map(lambda tensor: tensor[rows])

    def clone(self) -> Several:
        """Return a copy."""
        return self.map(Tensor.clone)

    def split(self, size: int) -> list[Several]:
        """Return consecutive parts of `size` examples; the last may be smaller."""
        return [self[start : start + size] for start in range(0, len(self), size)]

    def unflatten(self, dim: int, sizes: Sequence[int]) -> Several:
        """Return each tensor with one dimension cut into several, as `Tensor.unflatten` does."""
        return self.map(lambda tensor: tensor.unflatten(dim, sizes))


Inputs = Tensor | Several


class Reader(Protocol):
    """Where streamed examples come from."""

    def read(self, rows: range | Tensor) -> Inputs:
        """Return the inputs of some examples; raise if they differ from the first reading."""
        ...


@dataclass(frozen=True, eq=False)
class Streamed:
    """Inputs that are read each time they are used, and never all in memory.

    Rows are read by indexing; `select` and `map` only remember what to do then.

    Attributes:
        reader: reads examples by their places.
        examples: how many there are.
        sample: the first two, which stay in memory.
        rows: the places of the examples, if these are a selection or in another order.
        changes: applied to each tensor that is read, in order.
    """

    reader: Reader
    examples: int
    sample: Inputs
    rows: Tensor | None = None
    changes: tuple[Callable[[Tensor], Tensor], ...] = ()

    def __len__(self) -> int:
        return self.examples if self.rows is None else len(self.rows)

    def __getitem__(self, rows: slice | Tensor) -> Inputs:
        if self.rows is not None:
            places: range | Tensor = self.rows[rows.cpu() if isinstance(rows, Tensor) else rows]
        else:
            places = range(self.examples)[rows] if isinstance(rows, slice) else rows.cpu()
        x = self.reader.read(places)
        for change in self.changes:
            x = mapped(change, x)
        return x

    def select(self, rows: Tensor) -> Streamed:
        """Return some of the examples, which are read when they are used."""
        rows = rows.cpu()
        return replace(self, rows=rows if self.rows is None else self.rows[rows])

    def map(self, change: Callable[[Tensor], Tensor]) -> Streamed:
        """Return the examples with a change that is applied when they are read."""
        return replace(self, changes=(*self.changes, change))

    def clone(self) -> Streamed:
        """Return the examples so that each reading gives a copy."""
        return self.map(Tensor.clone)

    def split(self, size: int) -> Iterator[Inputs]:
        """Yield consecutive parts of `size` examples, each read when it is its turn."""
        for start in range(0, len(self), size):
            yield self[start : start + size]


Examples = Inputs | Streamed


def select(x: Examples, rows: Tensor) -> Examples:
    """Return some examples; streamed ones stay streamed."""
    return x.select(rows) if isinstance(x, Streamed) else x[rows]


def tensors_of(x: Inputs) -> list[Tensor]:
    """Return the tensors that inputs consist of."""
    return [x] if isinstance(x, Tensor) else x.tensors


@overload
def mapped(change: Callable[[Tensor], Tensor], x: Inputs) -> Inputs: ...


@overload
def mapped(change: Callable[[Tensor], Tensor], x: Examples) -> Examples: ...


def mapped(change: Callable[[Tensor], Tensor], x: Examples) -> Examples:
    """Return inputs with each tensor changed; those of streamed examples when they are read."""
    return change(x) if isinstance(x, Tensor) else x.map(change)


def tree_of(x: Inputs) -> Any:
    """Return inputs as plain tensors, in a dict or tuple if there are several, which torch.func can take."""
    return x if isinstance(x, Tensor) else x.parts


def arguments(tree: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the positional and the named arguments with which a model is called.

    >>> arguments({"age": 1})
    ((), {'age': 1})
    """
    if isinstance(tree, dict):
        return (), tree
    return (tree if isinstance(tree, tuple) else (tree,)), {}


def call(model: nn.Module, x: Inputs) -> Any:
    """Return the output of a model for inputs.

    >>> call(nn.Bilinear(2, 3, 1), Several((torch.zeros(4, 2), torch.zeros(4, 3)))).shape
    torch.Size([4, 1])
    """
    if isinstance(x, Tensor):
        return model(x)
    args, named = arguments(x.parts)
    return model(*args, **named)


def shape_of(x: Examples) -> Shape:
    """Return the shape of one example, as JSON can hold it."""
    if isinstance(x, Streamed):
        x = x.sample
    if isinstance(x, Tensor):
        return list(x.shape[1:])
    if isinstance(x.parts, dict):
        return {name: list(tensor.shape[1:]) for name, tensor in x.parts.items()}
    return [list(tensor.shape[1:]) for tensor in x.parts]


def example_shape(x: Examples) -> Shape:
    """Return the shape of one example; a tuple if there is one input."""
    shape: Any = shape_of(x)
    return cast(Shape, shape if is_several(shape) else tuple(shape))


def is_several(shape: Shape) -> bool:
    """Return whether a shape is that of several inputs.

    >>> is_several([1, 8, 8]), is_several([]), is_several([[1, 8, 8], []])
    (False, False, True)
    """
    return isinstance(shape, Mapping) or any(not isinstance(size, int) for size in shape)


def shape_text(shape: Shape) -> str:
    """Return a shape in words.

    >>> shape_text([1, 8, 8]), shape_text({"image": [1, 8, 8], "age": []})
    ('(1, 8, 8)', 'image (1, 8, 8), age ()')
    """
    if not is_several(shape):
        return str(tuple(shape))
    names = shape if isinstance(shape, Mapping) else range(len(shape))
    return ", ".join(f"{name} {tuple(sizes)}" for name, sizes in zip(names, sizes_of(shape), strict=True))


def sizes_of(shape: Any) -> list[Sequence[int]]:
    """Return the shape of each input.

    >>> sizes_of([3]), sizes_of({"image": [1, 8, 8], "age": []})
    ([[3]], [[1, 8, 8], []])
    """
    if not is_several(shape):
        return [shape]
    return list(shape.values() if isinstance(shape, Mapping) else shape)


def zeros(shape: Shape, whole: Sequence[bool] = ()) -> Inputs:
    """Return two examples of zeros of a shape, to try a model on; `whole` says which are integers."""
    tensors = [
        torch.zeros(2, *sizes, dtype=torch.int64 if place < len(whole) and whole[place] else None)
        for place, sizes in enumerate(sizes_of(shape))
    ]
    if not is_several(shape):
        return tensors[0]
    return Several(dict(zip(shape, tensors, strict=True)) if isinstance(shape, Mapping) else tuple(tensors))


def require_one_input(x: Examples, what: str) -> Tensor:
    """Return inputs that are one tensor in memory; raise if they are not. `what` begins the error."""
    if isinstance(x, Streamed):
        raise DataError(f"{what} takes examples in memory, but these are streamed; give arrays instead")
    if not isinstance(x, Tensor):
        raise DataError(
            f"{what} takes one input per example, but these data have several ({shape_text(shape_of(x))}); "
            "join them in one tensor"
        )
    return x


def make_inputs(values: Any, where: str, part: str) -> Inputs:
    """Return values as inputs; a dict, or a tuple of arrays, is several; raise if they cannot be used.

    `where` and `part` name the values in errors.
    """
    if isinstance(values, Several):
        return values
    if isinstance(values, Mapping) and values:
        named = {str(name): make_tensor(one, where, f"{part}[{name!r}]") for name, one in values.items()}
        return _same_length(Several(named), where, part)
    if isinstance(values, tuple) and values and all(_is_array(one) for one in values):
        tensors = (make_tensor(one, where, f"{part}[{place}]") for place, one in enumerate(values))
        return _same_length(Several(tuple(tensors)), where, part)
    return make_tensor(values, where, part)


def _is_array(values: Any) -> bool:
    return isinstance(values, Tensor | np.ndarray) and values.ndim > 0


def _same_length(x: Several, where: str, part: str) -> Several:
    """Raise if one of several inputs is a single number, or has more or fewer examples than the first."""
    for name, tensor in zip(x.names, x.tensors, strict=True):
        if tensor.dim() == 0:
            raise DataError(f"{where}: {part}[{name!r}] is one number; give one input per example")
        if len(tensor) != len(x):
            raise DataError(
                f"{where}: {part}[{name!r}] has {len(tensor)} examples and {part}[{x.names[0]!r}] has "
                f"{len(x)}; give each input of each example"
            )
    return x


def make_tensor(values: Any, where: str, part: str) -> Tensor:
    """Return values as a dense tensor of finite real numbers; raise if they cannot be."""
    if isinstance(values, list) and values and all(isinstance(one, Tensor) and one.dim() for one in values):
        raise DataError(
            f"{where}: {part} is a list of {len(values)} tensors (the first of shape "
            f"{tuple(values[0].shape)}); give one tensor, examples first, or a tuple or dict of tensors if "
            "the model takes several inputs"
        )
    if isinstance(values, np.ma.MaskedArray):
        raise DataError(
            f"{where}: {part} is a masked array, but masks are not kept; fill or drop masked values"
        )
    try:
        tensor = torch.as_tensor(_array(values))
    except (TypeError, ValueError, RuntimeError) as error:
        reason = str(error).splitlines()[0]
        raise DataError(f"{where}: {part} cannot be made into a tensor of numbers ({reason})") from error
    if tensor.is_complex() or tensor.is_meta or tensor.layout != torch.strided:
        kind = "complex" if tensor.is_complex() else "meta" if tensor.is_meta else "sparse"
        raise DataError(f"{where}: {part} is a {kind} tensor; give a dense one of real numbers")
    if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
        wrong = ~torch.isfinite(tensor)
        row = int(wrong.reshape(len(tensor), -1).any(1).nonzero()[0]) if tensor.dim() else 0
        raise DataError(
            f"{where}: {part} holds a NaN or an infinity (first in example {row}); remove or fill such values"
        )
    return tensor.detach().long() if tensor.dtype == torch.bool else tensor.detach()


def _array(values: Any) -> Any:
    """Return tables, lists of arrays and read-only arrays as arrays that torch can take."""
    if hasattr(values, "to_numpy"):
        values = values.to_numpy()
    elif isinstance(values, list | tuple) and len(values) and isinstance(values[0], np.ndarray):
        values = np.stack(values)
    return values.copy() if isinstance(values, np.ndarray) and not values.flags.writeable else values
