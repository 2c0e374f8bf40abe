"""CIFAR-10's Python batches, read without unpickling them.

A pickle is a program, and whoever loads it runs it. Here its instructions are only looked at: those that
build numbers, text, lists and numpy's arrays of bytes are followed, and any other is refused. Nothing is
imported, and nothing is called.
"""

from __future__ import annotations

import pickletools
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedilc.errors import DataError

_VALUES = {
    *("BININT", "BININT1", "BININT2", "LONG1"),
    *("SHORT_BINSTRING", "BINSTRING", "SHORT_BINUNICODE", "BINUNICODE"),
    *("SHORT_BINBYTES", "BINBYTES", "BINBYTES8", "BYTEARRAY8"),
}
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False, "EMPTY_TUPLE": ()}
_NAMES = {
    *("numpy ndarray", "numpy dtype", "numpy.core.multiarray _reconstruct", "numpy.core.numeric _frombuffer"),
    "_codecs encode",  # how bytes are written for Python 2
}


@dataclass(frozen=True)
class _Name:
    """A name of `_NAMES`, as a word that stands for what it would import."""

    text: str


@dataclass
class _Array:
    """An array of bytes, not yet filled."""

    raw: bytes = b""
    shape: tuple[int, ...] = ()
    order: Any = "C"

    def values(self) -> NDArray[np.uint8]:
        return np.frombuffer(self.raw, np.uint8).reshape(self.shape, order=self.order)


def read_pickled(content: bytes, path: str) -> dict[str, Any]:
    """The dictionary that a pickle of plain values and arrays of bytes describes.

    >>> read_pickled(b"cos\\nsystem\\n(S'ls'\\ntR.", "batch")
    Traceback (most recent call last):
    fedilc.errors.DataError: batch asks for 'os system', which no batch of CIFAR-10 does, so it was not ...
    """
    try:
        found = _Machine().run(content)
        named = {_text(key): value for key, value in found.items()}
        return {key: each.values() if isinstance(each, _Array) else each for key, each in named.items()}
    except _RefusedError as refused:
        raise DataError(
            f"{path} asks for {str(refused)!r}, which no batch of CIFAR-10 does, so it was not read; "
            "`fedilc data fetch cifar-10` gets the published one"
        ) from None
    except (ValueError, LookupError, TypeError, AttributeError, OverflowError) as error:
        raise DataError(
            f"{path} is damaged or no batch of CIFAR-10; `fedilc data fetch cifar-10` gets the published one"
        ) from error


class _RefusedError(Exception):
    """An instruction or a name that plain data does not need."""


class _Machine:
    """The part of pickle's stack machine that builds plain data."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: dict[int, Any] = {}

    def run(self, content: bytes) -> Any:
        for opcode, argument, _ in pickletools.genops(content):
            if opcode.name in _VALUES:
                self.stack.append(argument)
            elif opcode.name in _CONSTANTS:
                self.stack.append(_CONSTANTS[opcode.name])
            else:
                self.follow(opcode.name, argument)
        return self.stack.pop()

    def follow(self, instruction: str, argument: Any) -> None:
        match instruction:
            case "PROTO" | "FRAME" | "STOP":
                pass
            case "MARK":
                self.marks.append(len(self.stack))
            case "EMPTY_DICT":
                self.stack.append({})
            case "EMPTY_LIST":
                self.stack.append([])
            case "TUPLE1" | "TUPLE2" | "TUPLE3":
                number = int(instruction[-1])
                self.stack[-number:] = [tuple(self.stack[-number:])]
            case "TUPLE":
                self.stack.append(tuple(self.marked()))
            case "APPEND":
                value = self.stack.pop()
                self.stack[-1].append(value)
            case "APPENDS":
                values = self.marked()
                self.stack[-1].extend(values)
            case "SETITEM" | "SETITEMS":
                pairs = self.marked() if instruction == "SETITEMS" else [self.stack.pop(-2), self.stack.pop()]
                self.stack[-1].update(zip(pairs[::2], pairs[1::2], strict=True))
            case "BINPUT" | "LONG_BINPUT" | "MEMOIZE":
                self.memo[len(self.memo) if argument is None else argument] = self.stack[-1]
            case "BINGET" | "LONG_BINGET":
                self.stack.append(self.memo[argument])
            case _:
                self.make(instruction, argument)

    def make(self, instruction: str, argument: Any) -> None:
        """The instructions that would import or call."""
        match instruction:
            case "GLOBAL":
                self.stack.append(_known(argument))
            case "STACK_GLOBAL":
                name, module = self.stack.pop(), self.stack.pop()
                self.stack.append(_known(f"{module} {name}"))
            case "REDUCE":
                values = self.stack.pop()
                self.stack[-1] = _made(self.stack[-1], values)
            case "BUILD":
                state = self.stack.pop()
                if isinstance(self.stack[-1], _Array):
                    _, shape, kind, fortran, raw = state
                    self.stack[-1] = _filled(self.stack[-1], raw, kind, shape, "F" if fortran else "C")
            case _:
                raise _RefusedError(instruction)

    def marked(self) -> list[Any]:
        start = self.marks.pop()
        values = self.stack[start:]
        del self.stack[start:]
        return values


def _known(name: str) -> _Name:
    name = name.replace("numpy._core.", "numpy.core.")
    if name not in _NAMES:
        raise _RefusedError(name)
    return _Name(name)


def _made(name: _Name, values: tuple[Any, ...]) -> Any:
    match name.text, values:
        case "numpy.core.multiarray _reconstruct", _:
            return _Array()
        case "numpy.core.numeric _frombuffer", (raw, kind, shape, order):
            return _filled(_Array(), raw, kind, shape, order)
        case "numpy dtype", (kind, *_):
            return _text(kind)
        case "_codecs encode", (text, "latin1"):
            return text.encode("latin-1")
        case _:
            raise _RefusedError(name.text)


def _filled(array: _Array, raw: Any, kind: str, shape: tuple[int, ...], order: Any) -> _Array:
    if kind != "u1":
        raise ValueError(f"an array of {kind}, not of bytes")
    array.raw = raw.encode("latin-1") if isinstance(raw, str) else bytes(raw)
    array.shape, array.order = shape, order
    return array


def _text(value: Any) -> str:
    return value.decode("latin-1") if isinstance(value, bytes) else str(value)
